/** The list of the conversations that the browser keeps. Knows no server. */

import { store, Conversation } from "/page/conversation.js";
import { make, save } from "/page/dom.js";
import { put } from "/page/store.js";

const SHOWN = "kvcast-conversations";

const FORMS = {
  md: { type: "text/markdown", write: (conversation) => conversation.markdown() },
  json: {
    type: "application/json",
    write: (conversation) => `${JSON.stringify(conversation.document(), null, 2)}\n`,
  },
};

export class History {
  /** `button` opens the list; `acts` has what it calls: opened, renamed, deleted. */
  constructor(nav, button, acts) {
    Object.assign(this, { nav, button, acts, wide: window.matchMedia("(min-width: 56rem)") });
    this.list = nav.querySelector("ol");
    this.open = this.wide.matches && localStorage.getItem(SHOWN) !== "closed";
    button.addEventListener("click", () => {
      this.open = nav.hidden;
      put(localStorage, SHOWN, nav.hidden ? "closed" : "open");
      if (!this.wide.matches) nav.scrollIntoView({ block: "nearest" });
    });
    window.addEventListener("storage", ({ key }) => {
      if (key === null || store.has(key)) this.show(this.current);
    });
  }

  set open(open) {
    this.nav.hidden = !open;
    this.button.ariaExpanded = String(open);
  }

  /** Show all conversations, and this one as the current. */
  show(current) {
    this.current = current;
    if (this.list.querySelector("input")) return; // a name is being typed
    const focused = this.list.contains(document.activeElement) ? document.activeElement.name : null;
    const kept = store.all().map((document) => new Conversation(document));
    this.list.replaceChildren(...kept.map((one) => this.item(one)));
    this.nav.querySelector(".hint").hidden = kept.length > 0;
    const at = (selector) => this.list.querySelector(`[aria-current]${selector}`);
    if (focused) (at(` ~ * [name=${focused}]`) ?? at(""))?.focus();
  }

  item(conversation) {
    const { id, name } = conversation;
    const isCurrent = id === this.current.id;
    const button = make("button", { type: "button", className: "name quiet", name: "open" }, name);
    button.addEventListener("click", () => {
      if (!this.wide.matches) this.open = false;
      this.acts.opened(id);
    });
    if (!isCurrent) return make("li", {}, button);
    button.ariaCurrent = "true";
    return make("li", {}, button, this.actions(button));
  }

  actions(name) {
    const act = (said, label, then) => {
      const button = make("button", { type: "button", className: "quiet", name: said.toLowerCase() }, said);
      button.ariaLabel = label;
      button.addEventListener("click", then);
      return button;
    };
    return make(
      "div",
      { className: "actions", role: "group", ariaLabel: "Current conversation" },
      act("Rename", "Rename", () => this.rename(name)),
      act("md", "Download md", () => this.download("md")),
      act("json", "Download json", () => this.download("json")),
      act("Delete", "Delete", () => this.remove()),
    );
  }

  /** Put a field in the name's place; Enter or leaving it keeps the name, Escape does not. */
  rename(shown) {
    const ariaLabel = "Name of the conversation";
    const field = make("input", { value: this.current.name, maxLength: 100, ariaLabel });
    const end = (keep) => {
      field.onblur = null;
      field.replaceWith(shown);
      shown.focus();
      if (keep) this.acts.renamed(field.value.trim());
    };
    field.onblur = () => end(true);
    field.onkeydown = (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      end(event.key === "Enter");
    };
    shown.replaceWith(field);
    field.select();
  }

  download(form) {
    const { type, write } = FORMS[form];
    const name = this.current.name.replace(/[^\p{L}\p{N} ._-]/gu, "").trim() || "conversation";
    save(`${name}.${form}`, type, write(this.current));
  }

  remove() {
    if (window.confirm(`Delete the conversation “${this.current.name}”?`)) this.acts.deleted();
  }
}
