/**
 * Conversations that can branch, kept in the browser. Knows no element.
 *
 * A message has a parent; an edited message, or another answer, is a sibling of the first. What is shown is
 * the path to one message, the leaf. A tab goes on with its own conversation, a new one with the newest.
 */

import { newId, parsed, put, Store } from "/page/store.js";

const TAB = "kvcast-chat"; // {id, settings} of this tab's conversation
const TEXTS = ["role", "content", "name", "thoughts", "remark", "speed"];
const WORDS = 6; // of the first message, in a conversation's name

export const store = new Store("conversation");

export class Conversation {
  constructor({ id = newId(), title, settings, messages, leaf } = {}) {
    this.id = id;
    this.title = typeof title === "string" ? title : "";
    this.settings = { ...settings };
    this.messages = valid(messages);
    this.leaf = this.messages.some((message) => message.id === leaf) ? leaf : null;
    this.deleted = false;
  }

  /** The given name, or else the first words of the first message. */
  get name() {
    const words = this.messages[0]?.content.trim().split(/\s+/) ?? [];
    const first = words.slice(0, WORDS).join(" ").slice(0, 60);
    return this.title || (words.length > WORDS ? `${first}…` : first) || "Conversation";
  }

  find(id) {
    return this.messages.find((message) => message.id === id);
  }

  /** Return the messages from the first one to the leaf. */
  path() {
    const path = [];
    for (let at = this.find(this.leaf); at; at = this.find(at.parent)) path.unshift(at);
    return path;
  }

  siblings({ parent }) {
    return this.messages.filter((message) => message.parent === parent);
  }

  /** Add a message after the one with the id `parent`, null for none; it becomes the leaf. */
  add(parent, { role, content = "", name }) {
    const message = { id: newId(), parent, role, content, name, thoughts: "", remark: "", speed: "" };
    this.messages.push(message);
    this.leaf = message.id;
    return message;
  }

  /** Add an answer after the leaf, or another version of it; one without a text is written anew. */
  addAnswer(name) {
    const last = this.find(this.leaf);
    if (last.role === "user") return this.add(last.id, { role: "assistant", name });
    if (last.content || last.thoughts) return this.add(last.parent, { role: "assistant", name });
    const fresh = { ...last, name, remark: "", speed: "" };
    this.messages[this.messages.indexOf(last)] = fresh;
    return fresh;
  }

  /** Show the branch that has this message, as far as it was continued last. */
  choose(message) {
    this.leaf = message.id;
    const next = this.messages.findLast(({ parent }) => parent === message.id);
    if (next) this.choose(next);
  }

  /** Return what is shown as Markdown. */
  markdown() {
    const parts = this.path().map(({ name, content }) => `## ${name}\n\n${content.trim()}\n`);
    return [`# ${this.name}\n`, ...parts].join("\n");
  }

  /** Return all branches. */
  document() {
    const { id, title, settings, messages, leaf } = this;
    return { id, title, settings, messages, leaf };
  }
}

/** Return the messages that are such, and whose parent comes before them. */
function valid(messages) {
  const known = new Set([null]);
  return (Array.isArray(messages) ? messages : []).filter((message) => {
    const texts = ["id", ...TEXTS].every((name) => typeof message?.[name] === "string");
    const fits = texts && known.has(message.parent) && ["user", "assistant"].includes(message.role);
    if (fits) known.add(message.id);
    return fits;
  });
}

/** Let this tab go on with a conversation after a reload; false if the browser has no room. */
export function goOn({ id, settings }) {
  return put(sessionStorage, TAB, JSON.stringify({ id, settings }));
}

/** Keep a conversation that has messages; false if the browser has no room for it. */
export function keep(conversation) {
  const { id, messages, deleted } = conversation;
  if (deleted || messages.length === 0) return true;
  const stored = valid(store.read(id)?.messages); // another tab may have gone on with it
  const own = new Map(messages.map((message) => [message.id, message]));
  const known = new Set(stored.map((message) => message.id));
  const all = stored.map((message) => own.get(message.id) ?? message);
  const fresh = messages.filter((message) => !known.has(message.id));
  return store.write({ ...conversation.document(), messages: [...all, ...fresh], changed: Date.now() });
}

/** Return the kept conversation with this id; null if there is none. */
export function open(id) {
  const document = store.read(id);
  return document && new Conversation(document);
}

/** Return the conversation that this tab goes on with. */
export function current() {
  takeOld();
  const tab = parsed(sessionStorage.getItem(TAB));
  const document = tab ? (store.read(tab.id) ?? tab) : store.all()[0];
  return new Conversation(document);
}

/** Take over the one conversation that earlier versions kept. */
function takeOld() {
  const before = parsed(localStorage.getItem("kvcast-conversation"));
  localStorage.removeItem("kvcast-conversation");
  if (!Array.isArray(before?.turns)) return;
  const messages = before.turns.map((turn, at) => {
    return { speed: "", ...turn, id: `${at}`, parent: at ? `${at - 1}` : null };
  });
  const conversation = new Conversation({ settings: before.settings, messages });
  conversation.leaf = conversation.messages.at(-1)?.id ?? null;
  if (conversation.leaf) store.write({ ...conversation.document(), changed: Date.now() });
}

/** Forget a conversation, also if it is kept again. */
export function remove(conversation) {
  conversation.deleted = true;
  store.remove(conversation.id);
}
