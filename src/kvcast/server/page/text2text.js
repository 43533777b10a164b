/** The panel that turns a source into targets, side by side. */

import { ask, stopped } from "/page/api.js";
import { fill, make, number, show, swap } from "/page/dom.js";

const panel = document.getElementById("text2text");
const find = (selector) => panel.querySelector(selector);
const form = find("form");
const { model, n, beam, max_tokens: most, input, send, stop } = form.elements;
const status = find(".status");

let running = null;

/** Show this panel's models. */
export function offer(models) {
  fill(model, models.map(({ id }) => [id, id]));
}

async function run() {
  if (running || !form.reportValidity()) return;
  running = new AbortController();
  show(find(".error"));
  find(".targets").replaceChildren();
  status.textContent = "Writing…";
  update();
  const body = {
    model: model.value,
    input: input.value,
    n: number(n),
    beam: number(beam),
    max_tokens: number(most),
  };
  try {
    const response = await ask("/v1/text2text", { body, signal: running.signal });
    tell(await response.json());
  } catch (failure) {
    status.textContent = stopped(failure) ? "Stopped." : "";
    if (!stopped(failure)) show(find(".error"), failure);
  }
  running = null;
  update();
}

function tell({ choices, usage }) {
  status.textContent =
    `${usage.prompt_tokens} tokens read, ${usage.completion_tokens} written.`;
  find(".targets").replaceChildren(...choices.map(target));
}

function target({ index, text, score, similarity, finish_reason: reason }) {
  const facts = [
    score === null ? null : ["score", score.toFixed(3)],
    similarity === null ? null : ["similarity", similarity.toFixed(3)],
    reason === "length" ? ["cut off", "max tokens"] : null,
  ].filter(Boolean);
  const terms = facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
  return make(
    "li",
    {},
    make("header", {}, make("span", { className: "rank" }, `${index + 1}`), make("dl", {}, ...terms)),
    make("p", { className: "text" }, text),
  );
}

function update() {
  swap(...(running ? [stop, send] : [send, stop]));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
});
// The n best of a beam are at most the beam, and one beam has but one.
n.addEventListener("change", () => {
  if (number(n) > number(beam)) beam.value = n.value;
});
beam.addEventListener("change", () => {
  if (number(n) > number(beam)) n.value = beam.value;
});
stop.addEventListener("click", () => running?.abort());
