/** The panel that holds conversations. */

import { ask, events, stopped } from "/page/api.js";
import * as conversations from "/page/conversation.js";
import { fill, number, rememberOpen, show, swap } from "/page/dom.js";
import { Following } from "/page/following.js";
import { History } from "/page/history.js";
import { Turn } from "/page/turn.js";

const panel = document.getElementById("chat");
const find = (selector) => panel.querySelector(selector);
const model = find("[name=model]");
const log = find(".messages");
const form = find("form.ask");
const { message, send, stop, regenerate, newest } = form.elements;
const error = find(".error");

const SETTINGS = ["model", "temperature", "top_p", "max_tokens", "stop_at", "seed", "system"];
const setting = (name) => find(`[name=${name}]`);

let conversation = conversations.current();
let turns = [];
let running = null; // {turn, abort, began, first, tokens} of the answer under way
let wanted = null; // the model of a conversation, until models are known
const following = new Following(panel, log, newest);
const history = new History(find("nav"), find("[name=list]"), {
  opened: (id) => enter(conversations.open(id) ?? new conversations.Conversation()),
  renamed: (title) => {
    conversation.title = title;
    save();
  },
  deleted: () => {
    conversations.remove(conversation);
    begin();
  },
});

/** Show this panel's models. */
export function offer(models) {
  fill(model, models.map(({ id }) => [id, id]));
  choose(wanted);
}

function choose(id) {
  wanted = model.options.length ? null : id;
  if ([...model.options].some(({ value }) => value === id)) model.value = id;
}

/** Show the path of the conversation; turns that are in it already stay. */
function draw() {
  const path = conversation.path();
  const same = path.findIndex((message, at) => message !== turns[at]?.message);
  const kept = same < 0 ? path.length : same;
  for (const turn of turns.splice(kept)) turn.article.remove();
  for (const message of path.slice(kept)) {
    const turn = new Turn(message, conversation.siblings(message), { edited, chosen });
    turns.push(turn);
    log.append(turn.article);
  }
  update();
}

function enter(another) {
  running?.abort.abort();
  running = null;
  conversation = another;
  for (const [name, value] of Object.entries(conversation.settings)) {
    if (SETTINGS.includes(name) && name !== "model") setting(name).value = value;
  }
  choose(conversation.settings.model);
  show(error);
  draw();
  following.follow();
  conversations.goOn(conversation);
  history.show(conversation);
}

function begin() {
  enter(new conversations.Conversation({ settings: conversation.settings }));
  message.focus();
}

function save() {
  const values = SETTINGS.map((name) => [name, setting(name).value]);
  conversation.settings = { ...Object.fromEntries(values), ...(wanted ? { model: wanted } : {}) };
  keep(conversation);
}

function keep(changed) {
  const kept = conversations.keep(changed);
  find(".unkept").hidden = conversations.goOn(conversation) && kept;
  history.show(conversation);
}

/** Return the messages that the model is given: what had no answer is left out, so that they alternate. */
function given(path) {
  const told = path.filter((message, at) => {
    const answer = message.role === "assistant" ? message : path[at + 1];
    return answer?.content !== ""; // the last message's is still to come
  });
  return told.map(({ role, content }) => ({ role, content }));
}

function request(path) {
  const system = setting("system").value.trim();
  const stops = setting("stop_at").value.split("\n").filter((line) => line !== "");
  return {
    model: model.value,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...given(path)],
    temperature: number(setting("temperature")),
    top_p: number(setting("top_p")),
    max_completion_tokens: number(setting("max_tokens")),
    stop: stops.length ? stops : undefined,
    seed: number(setting("seed")),
    stream: true,
    stream_options: { include_usage: true },
  };
}

/** Answer the message at the end; what came before an error or a stop is kept. */
async function answer() {
  const mine = conversation;
  const abort = new AbortController();
  mine.addAnswer(model.value);
  const body = request(mine.path().slice(0, -1));
  draw();
  const turn = turns.at(-1);
  const run = (running = { turn, abort, began: performance.now(), first: null, tokens: null });
  turn.busy = true;
  show(error);
  update();
  save();
  let remark = "";
  try {
    const response = await ask("/v1/chat/completions", { body, signal: abort.signal });
    for await (const { choices, usage } of events(response)) {
      run.tokens = usage?.completion_tokens ?? run.tokens;
      for (const { delta, finish_reason: reason } of choices) {
        write(run, delta);
        if (reason === "length") remark = "Cut off: it reached the max tokens.";
      }
    }
  } catch (failure) {
    remark = stopped(failure) ? "Stopped." : turn.message.content ? "Cut off." : "No answer.";
    if (!stopped(failure) && run === running) show(error, failure);
  }
  end(run, mine, remark);
}

function end(run, mine, why) {
  const { message: written } = run.turn;
  Object.assign(written, { remark: remarkOf(written, why), speed: speedOf(run) });
  run.turn.busy = false;
  if (run === running) {
    find("[data-announce]").textContent = run.turn.text.innerText;
    running = null;
    update();
  }
  keep(mine);
}

/** Return the remark for an answer that ends, and why if the model did not end it. */
function remarkOf({ content }, why) {
  return content === "" ? `${why || "An empty answer."} Later messages leave this one out.` : why;
}

function speedOf({ began, first, tokens }) {
  if (first === null) return "";
  const seconds = (performance.now() - first) / 1000;
  const rate = tokens > 1 && seconds > 0 ? `${((tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
  const count = tokens ? `${tokens} ${tokens === 1 ? "token" : "tokens"}` : "";
  const wait = `${((first - began) / 1000).toFixed(2)} s to first token`;
  return [count, rate, wait].filter(Boolean).join(" · ");
}

function write(run, { content, reasoning_content: thoughts }) {
  if (content || thoughts) run.first ??= performance.now();
  run.turn.message.content += content ?? "";
  run.turn.message.thoughts += thoughts ?? "";
  run.turn.drawSoon();
}

function update() {
  const busy = running !== null;
  swap(...(busy ? [stop, send] : [send, stop]));
  if (busy && document.activeElement === regenerate) stop.focus(); // nothing has it when disabled
  regenerate.disabled = busy || turns.length === 0;
  for (const turn of turns) turn.locked = busy;
}

function say(parent, content) {
  conversation.add(parent, { role: "user", content, name: "You" });
  draw();
  following.follow();
  answer();
}

function submit() {
  const text = message.value.trim();
  if (running || !text) return;
  message.value = "";
  say(conversation.leaf, text);
}

/** Go on from another version of a message. */
function edited({ parent }, text) {
  if (running) return;
  say(parent, text);
  message.focus({ preventScroll: true });
}

/** Show another version, and stay at it. */
function chosen(version, name) {
  following.rest();
  conversation.choose(version);
  draw();
  save();
  const { article } = turns.find((turn) => turn.message === version);
  const buttons = [...article.querySelectorAll("[name=previous], [name=next]")];
  const usable = buttons.filter(({ disabled }) => !disabled);
  (usable.find((button) => button.name === name) ?? usable[0]).focus({ preventScroll: true });
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
  if (!running && turns.length) answer();
});
newest.addEventListener("click", () => {
  following.follow();
  message.focus({ preventScroll: true });
});
find("[name=fresh]").addEventListener("click", begin);
for (const name of SETTINGS) setting(name).addEventListener("change", save);
window.addEventListener("pagehide", () => {
  if (!running) return;
  const { message: written } = running.turn;
  written.remark = remarkOf(written, "Cut off.");
  keep(conversation);
});
rememberOpen(find(".more"), "kvcast-chat-settings");
enter(conversation);
