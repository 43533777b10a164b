/** Transcripts as files: text, subtitles, JSON. Knows no element. */

import { timed } from "/page/words.js";
import { zip } from "/page/zip.js";

/** Each format's type, and what returns its text from {text, language, duration, segments} and a layout. */
export const FORMATS = {
  txt: {
    type: "text/plain",
    write: ({ segments }) => spoken(segments).map(({ text }) => `${text}\n`).join(""),
  },
  srt: { type: "application/x-subrip", write: srt },
  vtt: { type: "text/vtt", write: vtt },
  json: {
    type: "application/json",
    write: (transcript) => `${JSON.stringify(transcript, null, 2)}\n`,
  },
};

/** Return a recording's transcript as a file: {type, text}. */
export function written(recording, form, layout) {
  const { language, duration, segments } = recording;
  const { type, write } = FORMATS[form];
  return { type, text: write({ text: textOf(recording), language, duration, segments }, layout) };
}

/** Return the transcripts of recordings as an archive. */
export function archive(recordings, form, layout) {
  const files = {};
  for (const recording of recordings.filter(({ segments }) => segments.length)) {
    const first = stem(recording.name);
    let name = `${first}.${form}`;
    for (let i = 2; Object.hasOwn(files, name); i += 1) name = `${first} (${i}).${form}`;
    files[name] = written(recording, form, layout).text;
  }
  return zip(files);
}

/** Return the text of all segments. */
export function textOf({ segments }) {
  return segments.map(({ text }) => text).join("").trim();
}

/** Return a file's name without its extension. */
export function stem(name) {
  return name.replace(/\.[^.]*$/, "");
}

function srt({ segments }, layout) {
  const texts = cues(segments, layout).map(
    ({ start, end, text }, i) =>
      `${i + 1}\n${time(start, ",")} --> ${time(end, ",")}\n${text.replaceAll("-->", "->")}\n`,
  );
  return texts.join("\n");
}

function vtt({ segments }, layout) {
  const texts = cues(segments, layout).map(
    ({ start, end, text }) => `\n${time(start, ".")} --> ${time(end, ".")}\n${escaped(text)}\n`,
  );
  return `WEBVTT\n${texts.join("")}`;
}

function spoken(segments) {
  return segments
    .map((segment) => ({ ...segment, text: segment.text.trim() }))
    .filter(({ text }) => text !== "");
}

/** Return cues [{start, end, text}] of at most so many lines of at most so many characters. */
function cues(segments, { width, lines = Infinity } = {}) {
  if (!width) return spoken(segments);
  return spoken(segments).flatMap((segment) => {
    const rows = wrapped(timed(segment), width);
    const starts = rows.map((_, at) => at).filter((at) => at % lines === 0 || at === 0);
    return starts.map((at) => {
      const some = rows.slice(at, at + lines);
      return {
        start: at === 0 ? segment.start : some[0][0].start,
        end: at + lines >= rows.length ? segment.end : some.at(-1).at(-1).end,
        text: some.map(lineOf).join("\n"),
      };
    });
  });
}

function lineOf(words) {
  return words.map(({ before, word }) => before + word).join("").trim();
}

/** Divide words among lines; a word that is longer than a line has one for itself. */
function wrapped(words, width) {
  const rows = [];
  for (const word of words) {
    const row = rows.at(-1);
    if (row && lineOf([...row, word]).length <= width) row.push(word);
    else rows.push([word]);
  }
  return rows;
}

function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function time(seconds, point) {
  const whole = Math.round(seconds * 1000);
  const pad = (value, length = 2) => String(value).padStart(length, "0");
  const minutes = Math.floor(whole / 60_000);
  const parts = [Math.floor(minutes / 60), minutes % 60, Math.floor(whole / 1000) % 60];
  return `${parts.map((part) => pad(part)).join(":")}${point}${pad(whole % 1000, 3)}`;
}
