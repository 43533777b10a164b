/** Buttons that copy a text. Knows nothing of what the page is for. */

import { make } from "/page/dom.js";

/** Return a button that copies what `text` returns. */
export function copyButton(label, text) {
  const button = make("button", { className: "copy quiet", type: "button", ariaLabel: label }, "Copy");
  let timer = null;
  const say = (said, name) => Object.assign(button, { textContent: said, ariaLabel: name });
  button.addEventListener("click", async () => {
    const said = (await copied(text())) ? "Copied" : "Not copied";
    say(said, said);
    clearTimeout(timer);
    timer = setTimeout(() => say("Copy", label), 2000);
  });
  return button;
}

/** Copy a text; browsers have no clipboard over plain HTTP from another machine. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedFromField(text);
  }
}

function copiedFromField(text) {
  const before = document.activeElement;
  const field = make("textarea", { className: "unseen", value: text });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  before?.focus();
  return done;
}
