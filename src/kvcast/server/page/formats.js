/** Transcripts as files: text, subtitles, JSON. Knows no element. */

/** Return what a file of each format has, from {text, language, duration, segments}. */
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

function srt({ segments }) {
  const cues = spoken(segments).map(
    ({ start, end, text }, i) =>
      `${i + 1}\n${time(start, ",")} --> ${time(end, ",")}\n${text.replaceAll("-->", "->")}\n`,
  );
  return cues.join("\n");
}

function vtt({ segments }) {
  const cues = spoken(segments).map(
    ({ start, end, text }) => `\n${time(start, ".")} --> ${time(end, ".")}\n${escaped(text)}\n`,
  );
  return `WEBVTT\n${cues.join("")}`;
}

function spoken(segments) {
  return segments
    .map((segment) => ({ ...segment, text: segment.text.trim() }))
    .filter(({ text }) => text !== "");
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
