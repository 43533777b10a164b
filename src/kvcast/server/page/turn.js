/** A message of a conversation on the page. Knows no server. */

import { copyButton } from "/page/copy.js";
import { make } from "/page/dom.js";
import { Markdown } from "/page/markdown.js";

export class Turn {
  /**
   * `siblings` are the versions of the message; `edited` is called with the message and
   * a new version's text,
   * `chosen` with a sibling and the name of the button that led to it.
   */
  constructor(message, siblings, { edited, chosen }) {
    Object.assign(this, { message, edited, took: 0, timer: null });
    this.changing = []; // [button, whether it can be used] of those that change the conversation
    this.text = make("div", { className: "text" });
    this.markdown = new Markdown(this.text);
    this.thinking = make("details", { hidden: true }, make("summary", {}, "Thoughts"), make("p"));
    this.remark = make("p", { className: "hint" });
    this.speed = make("span", { className: "speed" });
    this.actions = make("div", { className: "actions" }, ...this.branches(siblings, chosen));
    if (message.role === "user") this.actions.append(this.button({ name: "edit" }, "Edit", () => this.edit()));
    else this.actions.append(copyButton("Copy answer", () => message.content), this.speed);
    const parts = [make("h2", {}, message.name), this.thinking, this.text, this.actions];
    this.article = make("article", { className: message.role }, ...parts);
    this.draw();
    this.end();
  }

  branches(siblings, chosen) {
    if (siblings.length < 2) return [];
    const at = siblings.indexOf(this.message);
    const button = (name, sign, step) => {
      const to = siblings[at + step];
      const ariaLabel = `${step < 0 ? "Previous" : "Next"} version`;
      return this.button({ name, ariaLabel }, sign, () => chosen(to, name), to !== undefined);
    };
    const place = make("span", { className: "place" }, `${at + 1}/${siblings.length}`);
    return [button("previous", "‹", -1), place, button("next", "›", 1)];
  }

  button(properties, said, act, usable = true) {
    const button = make("button", { className: "quiet", type: "button", ...properties }, said);
    button.addEventListener("click", act);
    button.disabled = !usable;
    this.changing.push([button, usable]);
    return button;
  }

  /** Show the text; an answer is Markdown, a user's message is what was typed. */
  draw() {
    const began = performance.now();
    const { role, content, thoughts } = this.message;
    if (role === "user") this.text.textContent = content;
    else this.markdown.show(content);
    this.thinking.hidden = thoughts === "";
    this.thinking.querySelector("p").textContent = thoughts.trim();
    this.took = performance.now() - began;
  }

  /** Show a text that grows, soon; long ones take longer. */
  drawSoon() {
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.draw();
    }, Math.max(16, 10 * this.took));
  }

  /** Show that an answer is being written, or that it is over. */
  set busy(busy) {
    this.article.ariaBusy = String(busy);
    if (busy) return;
    clearTimeout(this.timer);
    this.draw();
    this.end();
  }

  end() {
    const { remark, speed } = this.message;
    this.remark.textContent = remark;
    if (remark) this.text.after(this.remark);
    this.speed.textContent = speed;
  }

  /** Allow, or not, what changes the conversation. */
  set locked(locked) {
    for (const [button, usable] of this.changing) button.disabled = locked || !usable;
  }

  /** Put a field in the text's place; Enter sends it as another version, Escape does not. */
  edit() {
    const field = make("textarea", { value: this.message.content, ariaLabel: "Edit message" });
    const cancel = make("button", { className: "quiet", type: "button" }, "Cancel");
    const send = make("button", { className: "main", type: "submit" }, "Send");
    const buttons = make("div", { className: "buttons" }, cancel, send);
    const form = make("form", { className: "editing" }, field, buttons);
    const close = () => {
      form.replaceWith(this.text, this.actions);
      this.actions.querySelector("[name=edit]").focus();
    };
    const submit = () => {
      const text = field.value.trim();
      if (!text || text === this.message.content) close();
      else this.edited(this.message, text);
    };
    cancel.addEventListener("click", close);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || event.shiftKey || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      if (event.key === "Enter") submit();
      else close();
    });
    this.actions.remove();
    this.text.replaceWith(form);
    field.focus();
  }
}
