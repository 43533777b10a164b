/** The panel that turns recordings into text: a file or the microphone in, segments as they come. */

import { ask, events, stopped } from "/page/api.js";
import { clock, fill, save, show, swap } from "/page/dom.js";
import { FORMATS } from "/page/formats.js";
import { Live } from "/page/live.js";
import { Recorder } from "/page/recorder.js";
import { Transcript } from "/page/transcript.js";

const panel = document.getElementById("transcribe");
const find = (selector) => panel.querySelector(selector);
const model = find("[name=model]");
const language = find("[name=language]");
const translate = find("[name=translate]");
const record = find("[name=record]");
const audio = find("audio");
const status = find(".status");
const error = find(".error");

const transcript = new Transcript(find(".transcript"), (seconds) => {
  audio.currentTime = seconds;
  audio.play().catch(() => {}); // what cannot be played is told of by the player
});
let models = [];
let file = null;
let told = { language: null, duration: null };
let running = null;
let recorder = null;
let live = null; // of the recording that is made, or transcribed
let frame = null;

/** Show this panel's models. */
export function offer(found) {
  models = found;
  fill(model, models.map(({ id }) => [id, id]));
  offerLanguages();
}

/** Return what the chosen model can do. */
function able() {
  return models.find(({ id }) => id === model.value)?.abilities ?? {};
}

function offerLanguages() {
  const { languages } = models.find(({ id }) => id === model.value) ?? { languages: [] };
  const finds = ["detected", "heard"].includes(able().language); // or else it is told
  const names = new Intl.DisplayNames(["en"], { type: "language" });
  const known = languages.map((code) => [code, names.of(code)]);
  known.sort(([, one], [, other]) => one.localeCompare(other));
  const several = languages.length > 1;
  if (language.disabled) language.replaceChildren(); // it was not the user's choice
  fill(language, several && finds ? [["", "Detect"], ...known] : known);
  if (!finds && !language.value) language.value = "en";
  language.disabled = !several;
  const translates = able().translates && several;
  translate.closest("label").hidden = !translates;
  if (!translates) translate.checked = false;
}

/** Return whether the transcript may go: it is only asked if something was edited. */
function mayReplace() {
  return !transcript.edited() || window.confirm("Throw away what you edited in this transcript?");
}

/** Take a recording, and transcribe it; false if the transcript must stay. */
function take(given, words = null) {
  if (live !== words) endLive();
  if (!mayReplace()) return false;
  file = given;
  find(".name").textContent = file.name;
  URL.revokeObjectURL(audio.src);
  audio.src = URL.createObjectURL(file);
  transcribe();
  return true;
}

function request() {
  const form = new FormData();
  const fields = [
    ["model", model.value],
    ["stream", "true"],
    ["response_format", "verbose_json"],
    ["timestamp_granularities[]", "segment"],
  ];
  if (able().words) fields.push(["timestamp_granularities[]", "word"]);
  if (language.value && !language.disabled) fields.push(["language", language.value]);
  for (const [name, value] of fields) form.append(name, value);
  form.append("file", file);
  return form;
}

async function transcribe() {
  running?.abort();
  const mine = (running = new AbortController());
  transcript.clear();
  told = { language: null, duration: null };
  show(error);
  const task = translate.checked ? "translations" : "transcriptions";
  say("Listening…");
  try {
    const options = { body: request(), signal: mine.signal };
    for await (const event of events(await ask(`/v1/audio/${task}`, options))) hear(event);
    ended("");
  } catch (failure) {
    if (mine !== running) return; // another recording took its place
    if (transcript.segments.length === 0 && recorder === null) keepLive();
    const kept = transcript.segments.length ? "What was heard is kept." : "";
    ended(stopped(failure) ? `Stopped. ${kept}` : kept);
    if (!stopped(failure)) show(error, failure);
  }
}

function hear(event) {
  if (event.type === "transcript.text.segment") {
    const { id, start, end, text, words } = event;
    transcript.add({ id, start, end, text, words });
    find("[data-announce]").textContent = text;
    say(`Heard ${clock(end)}${audio.duration ? ` of ${clock(audio.duration)}` : ""}`);
    find("progress").value = audio.duration ? end / audio.duration : 0;
  } else if (event.type === "transcript.text.done") {
    told = { language: event.language, duration: event.duration };
  }
}

/** Let what was heard while it was spoken stand for the recording. */
function keepLive() {
  for (const [id, { start, end, text }] of (live?.segments ?? []).entries()) {
    transcript.add({ id, start, end: end ?? live.samples / live.rate, text: ` ${text.trim()}` });
  }
}

function ended(remark) {
  running = null;
  if (recorder === null) endLive();
  const { length } = transcript.segments;
  const counted = told.duration === null ? "" : `${clock(told.duration)}, ${length} segments.`;
  say([counted, remark].filter(Boolean).join(" "));
}

function say(text) {
  status.textContent = text;
  const busy = running !== null;
  find(".heard").hidden = false;
  find("progress").hidden = !busy;
  if (text === "Listening…") find("progress").removeAttribute("value");
  const buttons = [find("[name=stop]"), find("[name=again]")];
  swap(...(busy ? buttons : buttons.reverse()));
  if (file === null) find("[name=again]").hidden = true;
  find(".downloads").hidden = transcript.segments.length === 0;
}

function whole() {
  const { segments } = transcript;
  const text = segments.map((segment) => segment.text).join("").trim();
  return { text, ...told, segments };
}

/** Show words while somebody speaks, if the server can; the recording itself is what counts. */
function beginLive(rate) {
  if (translate.checked || !able().live) return; // live text is not translated
  const asked = { model: model.value, language: language.disabled ? "" : language.value, rate };
  live = new Live(asked, showLive, (failure) => {
    find(".unheard").hidden = recorder === null;
    find(".unheard").textContent =
      `Words are not shown while you speak (${failure.message}). They come when you stop.`;
  });
  for (const block of recorder.blocks) live.add(block);
}

function showLive() {
  find(".live").hidden = live.segments.length === 0;
  find(".live").textContent = live.segments.map(({ text }) => text.trim()).join(" ");
}

function endLive() {
  live?.close();
  live = null;
  for (const name of [".live", ".unheard"]) find(name).hidden = true;
}

async function toggleRecording() {
  // Not disabled while it begins or ends: that would take the keyboard's focus from it.
  if (record.ariaDisabled === "true" || (recorder === null && !mayReplace())) return;
  show(error);
  record.ariaDisabled = "true";
  try {
    if (recorder === null) {
      endLive();
      const begun = new Recorder((block, level, seconds) => {
        live?.add(block);
        find(".level").ariaValueNow = level.toFixed(2);
        find(".level > div").style.width = `${100 * level}%`;
        find(".elapsed").textContent = clock(seconds);
      });
      await begun.start();
      recorder = begun;
      transcript.forgetEdits(); // the user agreed
      beginLive(begun.rate);
    } else {
      const done = recorder;
      recorder = null;
      const recorded = await done.stop();
      live?.finish();
      find(".unheard").hidden = true;
      if (!take(recorded, live)) {
        save(recorded.name, recorded.type, recorded);
        endLive();
      }
    }
  } catch (failure) {
    if (running === null) say(status.textContent);
    show(error, failure);
  } finally {
    record.ariaDisabled = "false";
    record.ariaPressed = String(recorder !== null);
    record.querySelector(".said").textContent = recorder ? "Stop recording" : "Record";
    find(".recording").hidden = recorder === null;
  }
}

function light() {
  cancelAnimationFrame(frame); // of an earlier event: one chain is enough
  transcript.light(audio.currentTime);
  frame = audio.paused ? null : requestAnimationFrame(light);
}

function acceptDrops() {
  const drop = find(".drop");
  // Anywhere, and on any panel, so that a near miss does not leave the page. Text is not ours.
  const on = (name, handle) =>
    document.addEventListener(name, (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      handle(event, drop.checkVisibility());
    });
  on("dragover", ({ dataTransfer }, shown) => {
    if (!shown) dataTransfer.dropEffect = "none";
    drop.classList.toggle("over", shown);
  });
  on("dragleave", () => drop.classList.remove("over"));
  on("drop", ({ dataTransfer }, shown) => {
    drop.classList.remove("over");
    const [dropped] = dataTransfer.files;
    if (shown && dropped) take(dropped);
  });
}

model.addEventListener("change", offerLanguages);
record.addEventListener("click", toggleRecording);
find("[name=stop]").addEventListener("click", () => running?.abort());
find("[name=again]").addEventListener("click", () => {
  if (mayReplace()) transcribe();
});
find("#file").addEventListener("change", ({ target }) => {
  if (target.files.length) take(target.files[0]);
  target.value = ""; // so that the same file can be chosen again
});
find(".downloads").addEventListener("click", ({ target }) => {
  const format = FORMATS[target.value];
  const name = file.name.replace(/\.[^.]*$/, "");
  if (format) save(`${name}.${target.value}`, format.type, format.write(whole()));
});
for (const event of ["play", "seeked"]) audio.addEventListener(event, light);
acceptDrops();
