/** The panel that holds a conversation. */

import { ask, events, stopped } from "/page/api.js";
import { fill, make, number, show, swap } from "/page/dom.js";

const panel = document.getElementById("chat");
const find = (selector) => panel.querySelector(selector);
const model = find("[name=model]");
const log = find(".messages");
const form = find("form");
const { message, send, stop, regenerate } = form.elements;
const error = find(".error");

let turns = [];
let running = null;

/** Show this panel's models. */
export function offer(models) {
  fill(model, models.map(({ id }) => [id, id]));
}

function add(role, content) {
  const text = make("div", { className: "text" }, content);
  const name = role === "user" ? "You" : model.value;
  const article = make("article", { className: role }, make("h2", {}, name), text);
  log.append(article);
  article.scrollIntoView({ block: "nearest" });
  const turn = { role, content, article, text };
  turns.push(turn);
  return turn;
}

function remove(turn) {
  turn.article.remove();
  turns = turns.filter((other) => other !== turn);
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
  const mine = (running = new AbortController());
  const body = request();
  const turn = add("assistant", "");
  turn.article.ariaBusy = "true";
  show(error);
  update();
  let remark = "";
  try {
    const response = await ask("/v1/chat/completions", { body, signal: mine.signal });
    for await (const { choices } of events(response)) {
      for (const { delta, finish_reason: reason } of choices) {
        if (delta.content) write(turn, delta.content);
        if (reason === "length") remark = "Cut: the most tokens are reached.";
      }
    }
  } catch (failure) {
    if (stopped(failure)) remark = "Stopped.";
    else if (turns.includes(turn)) show(error, failure);
  }
  turn.article.ariaBusy = "false";
  if (turn.content === "") {
    remark ||= error.hidden ? "An empty answer." : "No answer.";
    remark += " Later messages leave this one out.";
  }
  if (remark) turn.article.append(make("p", { className: "hint" }, remark));
  if (turns.includes(turn)) find("[data-announce]").textContent = turn.content;
  if (mine === running) running = null;
  update();
}

function write(turn, piece) {
  const follow = window.innerHeight + window.scrollY > document.body.scrollHeight - 80;
  turn.content += piece;
  turn.text.append(piece);
  if (follow) window.scrollTo(0, document.body.scrollHeight);
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
  add("user", text);
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
  running?.abort();
  message.focus();
});
regenerate.addEventListener("click", () => {
  if (running) return;
  const last = turns.at(-1);
  if (last?.role === "assistant") remove(last);
  if (turns.length) answer();
});
find("[name=fresh]").addEventListener("click", () => {
  running?.abort();
  running = null;
  turns = [];
  log.replaceChildren();
  show(error);
  update();
  message.focus();
});
