/** The options of the transcription panel: what the chosen model can do, and what is asked of it. */

import { fill, number, rememberOpen } from "/page/dom.js";

const panel = document.getElementById("transcribe");
const setting = (name) => panel.querySelector(`[name=${name}]`);
const [model, language, translate] = ["model", "language", "translate"].map(setting);

let models = [];

/** Offer these models. */
export function offer(found) {
  models = found;
  fill(model, models.map(({ id }) => [id, id]));
  offerOptions();
}

function able() {
  return models.find(({ id }) => id === model.value)?.abilities ?? {};
}

function offerOptions() {
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
  offerField(translate, translates);
  if (!translates) translate.checked = false;
  offerField(setting("words"), able().words);
  for (const name of ["prompt", "hotwords"]) offerField(setting(name), able().hints);
}

function offerField(field, can) {
  field.closest("label").hidden = !can;
}

/** Return the path of a transcription and the fields of its form, except the file. */
export function request() {
  const fields = [
    ["model", model.value],
    ["stream", "true"],
    ["response_format", "verbose_json"],
    ["timestamp_granularities[]", "segment"],
  ];
  if (able().words && setting("words").checked) fields.push(["timestamp_granularities[]", "word"]);
  if (language.value && !language.disabled) fields.push(["language", language.value]);
  if (setting("vad").checked) fields.push(["vad", "true"]);
  for (const name of able().hints ? ["prompt", "hotwords"] : []) {
    const value = setting(name).value.trim();
    if (value) fields.push([name, value]);
  }
  return { path: `/v1/audio/${translate.checked ? "translations" : "transcriptions"}`, fields };
}

/** Return what a live session is asked for; null where words cannot be shown. */
export function live() {
  if (translate.checked || !able().live) return null; // live text is not translated
  return { model: model.value, language: language.disabled ? "" : language.value };
}

/** Return how subtitles are laid out. */
export function layout() {
  return { width: number(setting("width")), lines: number(setting("lines")) };
}

model.addEventListener("change", offerOptions);
rememberOpen(panel.querySelector(".more"), "kvcast-transcribe-options");
