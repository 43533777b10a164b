/** The panel that turns recordings into text: files or the microphone in, segments as they come. */

import { ask, events, stopped } from "/page/api.js";
import { copyButton } from "/page/copy.js";
import { save, show, swap } from "/page/dom.js";
import { acceptDrops } from "/page/drop.js";
import { archive, FORMATS, stem, textOf, written } from "/page/formats.js";
import { Microphone } from "/page/microphone.js";
import { Recordings, statusOf } from "/page/recordings.js";
import * as options from "/page/speech-options.js";
import { Transcript } from "/page/transcript.js";

const panel = document.getElementById("transcribe");
const find = (selector) => panel.querySelector(selector);
const audio = find("audio");
const again = find("[name=again]");

const transcript = new Transcript(find(".transcript"), {
  sought: (seconds) => {
    audio.currentTime = seconds;
    audio.play().catch(() => {}); // what cannot be played is told of by the player
  },
  changed: (recording) => {
    recording.edited = true;
    keep(recording);
    tell(recording);
  },
});
const recordings = new Recordings(find(".recordings"), view);
const microphone = new Microphone(find(".drop"), options.live, (file, live) => take([file], live));

let running = null; // {recording, abort} of the transcription under way
let frame = null;

export { offer } from "/page/speech-options.js";

/** Transcribe files, one after the other; the first of them is shown. */
function take(files, live = null) {
  if (live === null && microphone.recorder === null) microphone.forget(microphone.live);
  const request = options.request();
  const [first] = [...files].map((file) => recordings.add(file, request, live));
  recordings.show(first);
  transcribeNext();
}

async function transcribeNext() {
  const recording = recordings.next;
  if (running !== null || !recording) return;
  const { path, fields } = recording.request;
  const abort = new AbortController();
  running = { recording, abort };
  recording.state = "running";
  tell(recording);
  const body = new FormData();
  for (const [name, value] of [...fields, ["file", recording.file]]) body.append(name, value);
  try {
    const response = await ask(path, { body, signal: abort.signal });
    for await (const event of events(response)) hear(recording, event);
  } catch (failure) {
    if (recording.segments.length === 0) keepLive(recording);
    const kept = recording.segments.length ? "What was heard is kept." : "";
    recording.remark = [stopped(failure) ? "Stopped." : "", kept].filter(Boolean).join(" ");
    recording.error = stopped(failure) ? null : failure;
  }
  end(recording);
}

function end(recording) {
  running = null;
  recording.state = "ended";
  if (recording.live) microphone.forget(recording.live);
  keep(recording);
  tell(recording);
  transcribeNext();
}

function hear(recording, event) {
  if (event.type === "transcript.text.segment") {
    const { id, start, end, text, words } = event;
    recording.segments.push({ id, start, end, text, words });
    if (recording === recordings.current) find("[data-announce]").textContent = text;
  } else if (event.type === "transcript.text.done") {
    Object.assign(recording, { language: event.language, duration: event.duration });
  }
  tell(recording);
}

/** Let what was heard while it was spoken stand for the recording. */
function keepLive({ live, segments }) {
  for (const [id, { start, end, text }] of (live?.segments ?? []).entries()) {
    segments.push({ id, start, end: end ?? live.samples / live.rate, text: ` ${text.trim()}` });
  }
}

function keep(recording) {
  recording.unkept = !recordings.keep(recording);
  find(".unkept").hidden = !recordings.all.some(({ unkept }) => unkept);
}

/** Show a recording and its transcript; null for none. */
function view(recording) {
  find(".heard").hidden = recording === null;
  URL.revokeObjectURL(audio.src);
  audio.removeAttribute("src");
  audio.load(); // so that it forgets the last one
  transcript.show(recording);
  if (recording === null) return;
  find(".player .name").textContent = recording.name;
  for (const element of [audio, again]) element.hidden = recording.file === null;
  find(".player .hint").hidden = recording.file !== null;
  if (recording.file) audio.src = URL.createObjectURL(recording.file);
  tell(recording);
}

/** Show how far a recording is. */
function tell(recording) {
  recordings.tell(recording);
  const { state, segments, file } = recording;
  if (recording !== recordings.current) return;
  transcript.addNew();
  find(".bar .status").textContent = statusOf(recording, audio.duration);
  const progress = find("progress");
  progress.hidden = state !== "running";
  if (segments.length && audio.duration) progress.value = segments.at(-1).end / audio.duration;
  else progress.removeAttribute("value");
  const buttons = [find("[name=stop]"), again];
  swap(...(state === "ended" ? buttons.reverse() : buttons));
  if (file === null) again.hidden = true;
  find(".heard .downloads").hidden = segments.length === 0;
  show(find(".heard .error"), recording.error);
}

function stop(recording) {
  if (recording === running?.recording) running.abort.abort();
  else if (recording.state === "waiting") {
    Object.assign(recording, { state: "ended", remark: "Stopped." });
    tell(recording);
  }
}

function remove(some) {
  for (const recording of some) stop(recording);
  for (const recording of some) recordings.remove(recording);
  find("#file").focus();
}

function download(form) {
  const { current } = recordings;
  const { type, text } = written(current, form, options.layout());
  save(`${stem(current.name)}.${form}`, type, text);
}

function light() {
  cancelAnimationFrame(frame); // of an earlier event: one chain is enough
  transcript.light(audio.currentTime);
  frame = audio.paused ? null : requestAnimationFrame(light);
}

/** Transcribe the shown recording anew. */
function transcribeAgain() {
  const { current } = recordings;
  transcript.commit();
  const lost = "Throw away what you edited in this transcript?";
  if (current.edited && !window.confirm(lost)) return;
  recordings.queue(current, options.request());
  transcript.show(current);
  tell(current);
  transcribeNext();
}

function removeAll() {
  const count = recordings.all.length;
  const lost = `Remove all ${count} recordings and their transcripts?`;
  if (window.confirm(lost)) remove([...recordings.all]);
}

function removeCurrent() {
  const { name, segments } = recordings.current;
  const lost = `Remove “${name}” and its transcript?`;
  if (segments.length === 0 || window.confirm(lost)) remove([recordings.current]);
}

again.addEventListener("click", transcribeAgain);
find("[name=stop]").addEventListener("click", () => stop(recordings.current));
find("[name=remove]").addEventListener("click", removeCurrent);
find("[name=clear]").addEventListener("click", removeAll);
find("#file").addEventListener("change", ({ target }) => {
  if (target.files.length) take(target.files);
  target.value = ""; // so that the same file can be chosen again
});
const copied = () => textOf(recordings.current);
find(".heard .downloads").prepend(copyButton("Copy transcript", copied));
find(".heard .downloads").addEventListener("click", ({ target }) => {
  if (Object.hasOwn(FORMATS, target.value)) download(target.value);
});
find(".recordings .downloads").addEventListener("click", ({ target: { value } }) => {
  if (!Object.hasOwn(FORMATS, value)) return;
  const files = archive(recordings.all, value, options.layout());
  save(`transcripts-${value}.zip`, "application/zip", files);
});
for (const event of ["play", "seeked"]) audio.addEventListener(event, light);
audio.addEventListener("loadedmetadata", () => {
  if (recordings.current) tell(recordings.current);
});
acceptDrops(find(".drop"), take);
window.addEventListener("beforeunload", (event) => {
  const lost = recordings.all.some(({ state, unkept }) => state !== "ended" || unkept);
  if (lost || microphone.recorder) event.preventDefault();
});
window.addEventListener("pagehide", () => {
  transcript.commit();
  if (running) recordings.keep({ ...running.recording, remark: "Cut off." });
});
recordings.show(recordings.all.at(-1) ?? null);
