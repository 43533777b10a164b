/**
 * The transcript on the page: segments of words, of which one is lit, and that can be edited.
 *
 * Knows no server and no player.
 */

import { clock, make } from "/page/dom.js";
import { pieces, retimed } from "/page/words.js";

export class Transcript {
  /**
   * `sought` is called with seconds when the user chooses a word, `changed` with the recording whose
   * segments the user edited.
   */
  constructor(list, { sought, changed }) {
    Object.assign(this, { list, seek: sought, changed });
    list.addEventListener("click", (event) => this.clicked(event));
    list.addEventListener("keydown", (event) => this.pressed(event));
    list.addEventListener("focusin", ({ target }) => {
      if (target.matches(".word")) this.reach(target);
    });
    this.show(null);
  }

  /** Show the segments of a recording; null for none. */
  show(recording) {
    this.commit();
    Object.assign(this, { recording, segments: recording?.segments ?? [], words: null, lit: null });
    this.list.replaceChildren();
    this.addNew();
  }

  /** Keep what is in a field. */
  commit() {
    this.list.querySelector("textarea")?.blur();
  }

  /** Show the segments that were added. */
  addNew() {
    for (const segment of this.segments.slice(this.list.childElementCount)) this.add(segment);
  }

  add(segment) {
    const item = make("li", {}, this.time(segment), make("p"), edit());
    item.segment = segment;
    this.list.append(item);
    this.fill(item);
  }

  time(segment) {
    return make("button", {
      className: "time",
      type: "button",
      textContent: clock(segment.start),
      ariaLabel: `Play from ${clock(segment.start)}`,
    });
  }

  fill(item) {
    const { found, rest } = pieces(item.segment);
    const nodes = found.flatMap(({ before, word, start, end }) => {
      const span = make("span", { className: "word", role: "button", tabIndex: -1 }, word);
      Object.assign(span, { start, end });
      return [before, span];
    });
    item.querySelector("p").replaceChildren(...nodes, rest);
    this.recount();
  }

  /** Words came or went: Tab must still reach one. */
  recount() {
    this.words = null;
    if (this.list.querySelector('.word[tabindex="0"]') === null) {
      this.reach(this.list.querySelector(".word"));
    }
  }

  /** Let Tab reach this word, and no other. */
  reach(word) {
    for (const other of this.list.querySelectorAll('.word[tabindex="0"]')) other.tabIndex = -1;
    if (word) word.tabIndex = 0;
  }

  clicked({ target }) {
    const item = target.closest("li");
    if (target.matches(".word")) this.choose(target);
    else if (target.matches(".time")) this.seek(item.segment.start);
    else if (target.matches(".edit")) this.edit(item);
  }

  choose(word) {
    this.reach(word);
    this.seek(word.start);
  }

  pressed(event) {
    if (!event.target.matches(".word")) return;
    const words = this.all();
    const at = words.indexOf(event.target);
    const to = {
      ArrowRight: at + 1,
      ArrowLeft: at - 1,
      ArrowDown: words.indexOf(neighbour(event.target, "nextElementSibling")),
      ArrowUp: words.indexOf(neighbour(event.target, "previousElementSibling")),
      Home: 0,
      End: words.length - 1,
    }[event.key];
    if (to !== undefined) words[to]?.focus();
    else if (event.key === "Enter" || event.key === " ") this.choose(event.target);
    else return;
    event.preventDefault();
  }

  all() {
    this.words ??= [...this.list.querySelectorAll(".word")];
    return this.words;
  }

  /** Light the word that is said at this time, or none. */
  light(seconds) {
    const words = this.all();
    let [low, high] = [0, words.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (words[middle].start <= seconds) low = middle + 1;
      else high = middle;
    }
    const found = words[low - 1];
    const word = found && seconds < found.end ? found : null;
    if (word === this.lit) return;
    this.lit?.classList.remove("lit");
    word?.classList.add("lit");
    if (word && word.closest("li") !== this.lit?.closest("li")) {
      word.closest("li").scrollIntoView({ block: "nearest" });
    }
    this.lit = word;
  }

  /**
   * Put a field in a segment's place; Enter or leaving it keeps the text, Escape does not.
   *
   * A segment without a text is dropped.
   */
  edit(item) {
    const { segment } = item;
    const shown = item.querySelector("p");
    const field = make("textarea", { value: segment.text.trim(), rows: 1, ariaLabel: "Text of the segment" });
    item.classList.add("edited");
    shown.replaceWith(field);
    field.focus();
    const end = (keep) => {
      field.onblur = null;
      const text = segment.text.match(/^\s*/)[0] + field.value.trim().replace(/\s+/g, " ");
      const edited = keep && text !== segment.text;
      if (edited) Object.assign(segment, { words: retimed(segment, text), text });
      field.replaceWith(shown);
      item.classList.remove("edited");
      if (segment.text.trim() === "") this.drop(item);
      else this.fill(item);
      if (edited) this.changed(this.recording);
    };
    field.onblur = () => end(true);
    field.onkeydown = (event) => {
      if (event.isComposing || (event.key !== "Enter" && event.key !== "Escape")) return;
      event.preventDefault();
      const near = item.nextElementSibling ?? item.previousElementSibling;
      end(event.key === "Enter");
      const left = item.isConnected ? item : near;
      (left?.querySelector(".edit") ?? this.list).focus();
    };
  }

  drop(item) {
    this.segments.splice(this.segments.indexOf(item.segment), 1);
    if (item.contains(this.lit)) this.lit = null;
    item.remove();
    this.recount();
  }
}

function neighbour(word, side) {
  return word.closest("li")[side]?.querySelector(".word") ?? null;
}

function edit() {
  return make("button", { className: "edit quiet", type: "button", textContent: "Edit" });
}
