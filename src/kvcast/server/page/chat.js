/** The panel that holds a conversation. */

import { ask, events, stopped } from "/page/api.js";
import { keep, kept } from "/page/conversation.js";
import { fill, make, number, show, swap } from "/page/dom.js";
import { Markdown } from "/page/markdown.js";

const panel = document.getElementById("chat");
const find = (selector) => panel.querySelector(selector);
const model = find("[name=model]");
const log = find(".messages");
const form = find("form");
const { message, send, stop, regenerate, newest } = form.elements;
const error = find(".error");

const SETTINGS = ["model", "temperature", "max_tokens", "system"];

let turns = [];
let running = null; // {turn, abort} of the answer under way
let wanted = null; // the model of a conversation that was kept
let following = true; // the end of the conversation stays in view until the reader scrolls up
let scrolled = 0;

/** Show this panel's models. */
export function offer(models) {
  fill(model, models.map(({ id }) => [id, id]));
  if (models.some(({ id }) => id === wanted)) model.value = wanted;
  wanted = null;
}

function add({ role, content = "", name = model.value, remark = "", thoughts = "" }) {
  const text = make("div", { className: "text" });
  const thinking = make("details", { hidden: true }, make("summary", {}, "Thoughts"), make("p"));
  const article = make("article", { className: role }, make("h2", {}, name), thinking, text);
  log.append(article);
  const markdown = new Markdown(text);
  const turn = { role, content, name, thoughts, article, thinking, text, markdown };
  turns.push(turn);
  draw(turn);
  tell(turn, remark);
  return turn;
}

/** Show a turn; an answer is Markdown, a user's message is what was typed. */
function draw(turn) {
  const began = performance.now();
  if (turn.role === "user") turn.text.textContent = turn.content;
  else turn.markdown.show(turn.content);
  turn.thinking.hidden = turn.thoughts === "";
  turn.thinking.querySelector("p").textContent = turn.thoughts.trim();
  turn.took = performance.now() - began;
}

function follow() {
  following = true;
  newest.hidden = true;
  window.scrollTo(0, document.documentElement.scrollHeight);
}

new ResizeObserver(() => {
  if (following && !panel.hidden) follow();
}).observe(log); // also as the panel is shown
window.addEventListener("scroll", () => {
  if (panel.hidden) return;
  const left = document.documentElement.scrollHeight - window.innerHeight - window.scrollY;
  following = left < 24 || (following && window.scrollY >= scrolled); // it may have grown meanwhile
  scrolled = window.scrollY;
  newest.hidden = following || turns.length === 0;
}, { passive: true });
newest.addEventListener("click", () => {
  follow();
  message.focus({ preventScroll: true });
});

function tell(turn, remark) {
  turn.remark = remark;
  if (remark) turn.article.append(make("p", { className: "hint" }, remark));
}

function remove(turn) {
  turn.article.remove();
  turns = turns.filter((other) => other !== turn);
}

function save() {
  const settings = Object.fromEntries(SETTINGS.map((name) => [name, find(`[name=${name}]`).value]));
  const saved = turns.map((turn) => {
    const { role, content, name, thoughts } = turn;
    const remark = turn === running?.turn ? remarkOf(turn, "Cut off.") : turn.remark;
    return { role, content, name, thoughts, remark };
  });
  find(".unkept").hidden = keep({ settings, turns: saved });
}

function restore() {
  const { settings, turns: before } = kept();
  for (const name of SETTINGS) {
    if (name !== "model" && name in settings) find(`[name=${name}]`).value = settings[name];
  }
  wanted = settings.model;
  for (const turn of before) add(turn);
  update();
}

/** Return the turns that the model is told: what had no answer is left out, so that they alternate. */
function told() {
  return turns.filter((turn, at) => {
    const answer = turn.role === "assistant" ? turn : turns[at + 1];
    return answer?.content !== ""; // the last message's is still to come
  });
}

function request() {
  const system = find("[name=system]").value.trim();
  const before = system ? [{ role: "system", content: system }] : [];
  return {
    model: model.value,
    messages: [...before, ...told().map(({ role, content }) => ({ role, content }))],
    temperature: number(find("[name=temperature]")),
    max_completion_tokens: number(find("[name=max_tokens]")),
    stream: true,
  };
}

/** Answer the last message; what came before an error or a stop is kept. */
async function answer() {
  const abort = new AbortController();
  const body = request();
  const turn = add({ role: "assistant" });
  const mine = (running = { turn, abort });
  turn.article.ariaBusy = "true";
  show(error);
  update();
  save();
  let remark = "";
  try {
    const response = await ask("/v1/chat/completions", { body, signal: abort.signal });
    for await (const { choices } of events(response)) {
      for (const { delta, finish_reason: reason } of choices) {
        write(turn, delta);
        if (reason === "length") remark = "Cut: the most tokens are reached.";
      }
    }
  } catch (failure) {
    remark = stopped(failure) ? "Stopped." : turn.content ? "Cut off." : "No answer.";
    if (!stopped(failure) && turns.includes(turn)) show(error, failure);
  }
  clearTimeout(turn.timer);
  draw(turn);
  turn.article.ariaBusy = "false";
  tell(turn, remarkOf(turn, remark));
  if (turns.includes(turn)) find("[data-announce]").textContent = turn.text.innerText;
  if (mine === running) running = null;
  update();
  save();
}

/** Return the remark for an answer that ends, and why if the model did not end it. */
function remarkOf({ content }, why) {
  return content === "" ? `${why || "An empty answer."} Later messages leave this one out.` : why;
}

function write(turn, { content, reasoning_content: thoughts }) {
  turn.content += content ?? "";
  turn.thoughts += thoughts ?? "";
  const draws = () => {
    turn.timer = null;
    draw(turn);
  };
  turn.timer ??= setTimeout(draws, Math.max(16, 10 * turn.took)); // long texts take longer
}

function update() {
  const busy = running !== null;
  swap(...(busy ? [stop, send] : [send, stop]));
  if (busy && document.activeElement === regenerate) stop.focus(); // nothing has it when disabled
  regenerate.disabled = busy || turns.length === 0;
}

function submit() {
  const text = message.value.trim();
  if (running || !text) return;
  message.value = "";
  add({ role: "user", content: text, name: "You" });
  follow();
  answer();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
stop.addEventListener("click", () => {
  running?.abort.abort();
  message.focus();
});
regenerate.addEventListener("click", () => {
  if (running) return;
  const last = turns.at(-1);
  if (last?.role === "assistant") remove(last);
  if (turns.length) answer();
});
find("[name=fresh]").addEventListener("click", () => {
  running?.abort.abort();
  running = null;
  turns = [];
  log.replaceChildren();
  show(error);
  update();
  save();
  message.focus();
});
for (const name of SETTINGS) find(`[name=${name}]`).addEventListener("change", save);
window.addEventListener("pagehide", () => {
  if (running) save();
});
restore();
