/** Words of a segment in its text, also after the text was edited. Knows no element. */

/**
 * Return a segment's words with the text before each: [{before, word, start, end}], and the rest.
 *
 * A segment without words is one word. Not every language writes spaces, so they are not guessed
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
  return { found: [{ word: text.trim(), start, end, before: "" }], rest: "" };
}

/**
 * Return the words of a segment whose text becomes another.
 *
 * Words before and after what changed keep their times; those between share the time that is left
 * by their lengths.
 */
export function retimed(segment, text) {
  if (!segment.words?.length) return undefined;
  const spaced = /\s/.test(segment.text.trim());
  const old = placed(segment);
  const head = commonStart(segment.text, text, spaced);
  const tail = commonEnd(segment.text.slice(head), text.slice(head), spaced);
  const cut = segment.text.length - tail;
  const before = old.filter((word) => word.to <= head);
  const after = old.filter((word) => word.from >= Math.max(cut, head));
  const between = old.slice(before.length, old.length - after.length);
  const middle = text.slice(head, text.length - tail).trim();
  const fresh = middle === "" ? [] : spaced ? middle.split(/\s+/) : [...middle];
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

function commonStart(one, other, spaced) {
  let length = 0;
  while (length < one.length && one[length] === other[length]) length += 1;
  return spaced ? one.slice(0, length).search(/\S*$/) : length;
}

function commonEnd(one, other, spaced) {
  const most = Math.min(one.length, other.length);
  let length = 0;
  while (length < most && one.at(-1 - length) === other.at(-1 - length)) length += 1;
  if (!spaced) return length;
  const common = one.slice(one.length - length);
  const space = common.search(/\s/);
  return space < 0 ? 0 : common.length - space;
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
