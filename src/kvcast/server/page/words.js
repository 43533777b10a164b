/** Words of a segment in its text, also after the text was edited. Knows no element. */

/**
 * Return a segment's words with the text before each: [{before, word, start, end}], and the rest.
 *
 * A segment without words is one word, unless it is empty. Not every language writes spaces, so they are not guessed
 * but found in the text.
 */
export function pieces({ text, words, start, end }) {
  const found = [];
  let from = 0;
  for (const word of words ?? []) {
    const at = word.word === "" ? -1 : text.indexOf(word.word, from);
    if (at < 0) continue;
    found.push({ ...word, before: text.slice(from, at) });
    from = at + word.word.length;
  }
  if (found.length > 0) return { found, rest: text.slice(from) };
  if (text.trim() === "") return { found, rest: text };
  return { found: [{ word: text.trim(), start, end, before: "" }], rest: "" };
}

/** Return a segment's words with the text before each; without times of words they share its time. */
export function timed(segment) {
  const { found, rest } = pieces(segment);
  if (segment.words?.length && found.length) {
    const last = found.at(-1);
    return [...found.slice(0, -1), { ...last, word: last.word + rest.trimEnd() }];
  }
  const words = segment.text.trim().split(/\s+/);
  return shared(words, segment.start, segment.end).map((word) => ({ ...word, before: " " }));
}

/**
 * Return the words of a segment whose text becomes another.
 *
 * Words before and after what changed keep their times; those between share the time that is left
 * by their lengths, or, where none is left, that of a neighbour.
 */
export function retimed(segment, text) {
  if (!segment.words?.length) return undefined;
  const spaced = /\s/.test(segment.text.trim());
  const old = placed(segment);
  const head = common(segment.text, text, 0, 1, spaced);
  const tail = common(segment.text, text, head, -1, spaced);
  const before = old.filter(({ to }) => to <= head);
  const after = old.slice(before.length).filter(({ from }) => from >= segment.text.length - tail);
  const between = old.slice(before.length, old.length - after.length);
  const middle = text.slice(head, text.length - tail).trim();
  const fresh = middle === "" ? [] : spaced ? middle.split(/\s+/) : [...middle];
  if (fresh.length && !between.length) {
    const room = (after[0]?.start ?? segment.end) - (before.at(-1)?.end ?? segment.start);
    if (room <= 0 && before.length) {
      between.push(before.pop());
      fresh.unshift(between[0].word);
    } else if (room <= 0) {
      between.push(after.shift());
      fresh.push(between[0].word);
    }
  }
  const start = between[0]?.start ?? before.at(-1)?.end ?? segment.start;
  const end = between.at(-1)?.end ?? after[0]?.start ?? segment.end;
  return [...before.map(bare), ...shared(fresh, start, end), ...after.map(bare)];
}

function placed(segment) {
  let at = 0;
  return pieces(segment).found.map((word) => {
    const from = at + word.before.length;
    at = from + word.word.length;
    return { ...word, from, to: at };
  });
}

function bare({ word, start, end }) {
  return { word, start, end };
}

/**
 * Return how many letters two texts have in common, from the start or, with step -1, from the end.
 *
 * `taken` letters are in common at the other side already. Where there are spaces no word is cut.
 */
function common(one, other, taken, step, spaced) {
  const at = (text, length) => (step > 0 ? length : text.length - length);
  const letter = (text, length) => text[step > 0 ? length : text.length - 1 - length];
  const most = Math.min(one.length, other.length) - taken;
  let length = 0;
  while (length < most && letter(one, length) === letter(other, length)) length += 1;
  const cuts = (text) => at(text, length) > 0 && /^\S\S/.test(text.slice(at(text, length) - 1));
  while (spaced && length > 0 && (cuts(one) || cuts(other))) length -= 1;
  return length;
}

function shared(words, start, end) {
  const letters = words.join("").length;
  let at = start;
  return words.map((word) => {
    const begin = at;
    at += ((end - start) * word.length) / letters;
    return { word, start: begin, end: at };
  });
}
