/** The panel that turns recordings into text: a file or the microphone in, segments as they come. */

import { ask, events, stopped } from "/page/api.js";
import { clock, fill, save, show } from "/page/dom.js";
import { FORMATS } from "/page/formats.js";
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
let told = {};
let running = null;
let recorder = null;
let frame = null;

/** Show this panel's models. */
export function offer(found) {
  models = found;
  fill(model, models.map(({ id }) => [id, id]));
  offerLanguages();
}

function offerLanguages() {
  const { languages } = models.find(({ id }) => id === model.value) ?? { languages: [] };
  const names = new Intl.DisplayNames(["en"], { type: "language" });
  const known = languages.map((code) => [code, names.of(code)]);
  known.sort(([, one], [, other]) => one.localeCompare(other));
  const several = languages.length > 1;
  if (language.disabled) language.replaceChildren(); // it was not the user's choice
  fill(language, several ? [["", "Detect"], ...known] : known);
  language.disabled = !several;
  translate.closest("label").hidden = !several;
  if (!several) translate.checked = false;
}

/** Take a recording, and transcribe it. */
function take(given) {
  file = given;
  find(".name").textContent = file.name;
  URL.revokeObjectURL(audio.src);
  audio.src = URL.createObjectURL(file);
  transcribe();
}

function request() {
  const form = new FormData();
  const fields = [
    ["model", model.value],
    ["stream", "true"],
    ["response_format", "verbose_json"],
    ["timestamp_granularities[]", "word"],
    ["timestamp_granularities[]", "segment"],
  ];
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

function ended(remark) {
  running = null;
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
  find("[name=stop]").hidden = !busy;
  find("[name=again]").hidden = busy;
  find(".downloads").hidden = transcript.segments.length === 0;
}

function whole() {
  const { segments } = transcript;
  const text = segments.map((segment) => segment.text).join("").trim();
  return { text, ...told, segments };
}

async function toggleRecording() {
  show(error);
  try {
    if (recorder === null) {
      const begun = new Recorder((level, seconds) => {
        find(".level").ariaValueNow = level.toFixed(2);
        find(".level > div").style.width = `${100 * level}%`;
        find(".elapsed").textContent = clock(seconds);
      });
      record.disabled = true;
      await begun.start();
      recorder = begun;
    } else {
      const done = recorder;
      recorder = null;
      take(await done.stop());
    }
  } catch (failure) {
    find(".heard").hidden = false;
    ended("");
    show(error, failure);
  } finally {
    record.disabled = false;
    record.ariaPressed = String(recorder !== null);
    record.querySelector(".said").textContent = recorder ? "Stop recording" : "Record";
    find(".recording").hidden = recorder === null;
  }
}

function light() {
  transcript.light(audio.currentTime);
  frame = audio.paused ? null : requestAnimationFrame(light);
}

function acceptDrops() {
  const drop = find(".drop");
  const over = (event, inside) => {
    event.preventDefault();
    drop.classList.toggle("over", inside);
  };
  // Anywhere in the panel, so that a near miss does not leave the page.
  cancelAnimationFrame(frame); // of an earlier event: one chain is enough
  panel.addEventListener("dragover", (event) => over(event, true));
  panel.addEventListener("dragleave", (event) => over(event, false));
  panel.addEventListener("drop", (event) => {
    over(event, false);
    const [dropped] = event.dataTransfer.files;
    if (dropped) take(dropped);
  });
}

model.addEventListener("change", offerLanguages);
record.addEventListener("click", toggleRecording);
find("[name=stop]").addEventListener("click", () => running?.abort());
find("[name=again]").addEventListener("click", transcribe);
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
