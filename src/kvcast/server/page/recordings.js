/**
 * The recordings of the page: a list of which one is shown, and a queue. Knows no server.
 *
 * The browser keeps transcripts over a reload, and not the sound.
 */

import { clock, make } from "/page/dom.js";
import { newId, Store } from "/page/store.js";

const store = new Store("transcript");
const languages = new Intl.DisplayNames(["en"], { type: "language" });

export class Recordings {
  /** `shown` is called with the recording to show, null for none. */
  constructor(section, shown) {
    Object.assign(this, { section, shown, list: section.querySelector("ol"), buttons: new Map() });
    this.all = [];
    for (const kept of store.all().sort((one, other) => one.added - other.added)) {
      const nothing = { file: null, live: null, state: "ended", error: null };
      if (isTranscript(kept)) this.append({ ...kept, ...nothing });
    }
  }

  /** Add a file to the queue, with the request and words that were heard live. */
  add(file, request, live = null) {
    const added = Math.max(Date.now(), (this.all.at(-1)?.added ?? 0) + 1);
    const recording = { id: newId(), added, name: file.name, file, live };
    this.queue(recording, request);
    this.append(recording);
    return recording;
  }

  append(recording) {
    const parts = ["name", "state"].map((className) => make("span", { className }));
    const button = make("button", { type: "button", className: "quiet" }, ...parts);
    button.addEventListener("click", () => this.show(recording));
    this.all.push(recording);
    this.buttons.set(recording, button);
    this.list.append(make("li", {}, button));
    this.tell(recording);
  }

  /** Let a recording wait, without a transcript. */
  queue(recording, request) {
    const nothing = { segments: [], language: null, duration: null, remark: "", error: null };
    Object.assign(recording, { ...nothing, request, edited: false, state: "waiting" });
    this.tell(recording);
  }

  /** The recording whose turn is next, if one waits. */
  get next() {
    return this.all.find(({ state }) => state === "waiting");
  }

  show(recording) {
    this.current = recording;
    for (const [other, button] of this.buttons) button.ariaCurrent = String(other === recording);
    this.shown(recording);
  }

  /** Show in the list what became of a recording. */
  tell(recording) {
    const [name, state] = this.buttons.get(recording)?.children ?? [];
    if (!name) return;
    name.textContent = recording.name;
    state.textContent = statusOf(recording);
    this.section.hidden = this.all.length < 2;
  }

  /** Keep a transcript; false if the browser has no room for it. */
  keep(recording) {
    if (!this.all.some(({ id }) => id === recording.id)) return true; // it was removed
    if (recording.segments.length === 0) {
      store.remove(recording.id);
      return true;
    }
    const { file, live, request, state, error, unkept, ...document } = recording;
    return store.write({ ...document, changed: Date.now() });
  }

  remove(recording) {
    const at = this.all.indexOf(recording);
    this.all.splice(at, 1);
    this.buttons.get(recording).parentElement.remove();
    this.buttons.delete(recording);
    store.remove(recording.id);
    this.section.hidden = this.all.length < 2;
    if (recording === this.current) this.show(this.all[Math.min(at, this.all.length - 1)] ?? null);
  }
}

/** Return a line that says how far a recording is transcribed. */
export function statusOf({ state, segments, duration, language, remark, error }, length = null) {
  if (state === "waiting") return "Waiting";
  if (state === "running") {
    if (segments.length === 0) return "Listening…";
    return `Heard ${clock(segments.at(-1).end)}${length ? ` of ${clock(length)}` : ""}`;
  }
  const plural = segments.length === 1 ? "" : "s";
  const counted = `${clock(duration ?? 0)}, ${segments.length} segment${plural}`;
  const heard = duration === null ? "" : `${[counted, named(language)].filter(Boolean).join(", ")}.`;
  return [heard, error ? "Failed." : "", remark].filter(Boolean).join(" ");
}

function named(language) {
  try {
    return language ? languages.of(language) : "";
  } catch {
    return language; // it is no code
  }
}

function isTranscript({ added, name, segments, remark, duration, language }) {
  const texts = [name, remark].every((text) => typeof text === "string");
  const told = duration === null || Number.isFinite(duration);
  const coded = language === null || typeof language === "string";
  const spoken = Array.isArray(segments) && segments.every(isSegment);
  return texts && told && coded && spoken && Number.isFinite(added);
}

function isSegment(segment) {
  const { text, start, end, words = [] } = segment ?? {};
  const timed = typeof text === "string" && Number.isFinite(start) && Number.isFinite(end);
  return timed && Array.isArray(words) && words.every((word) => typeof word?.word === "string");
}
