/** Small helpers for elements. Knows nothing of what the page is for. */

import { put } from "/page/store.js";

/** Return a new element with these properties (className, ariaLabel, …) and children. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Fill a select with [value, text] pairs, keeping what is chosen if it is among them. */
export function fill(select, pairs) {
  const chosen = select.value;
  select.replaceChildren(...pairs.map(([value, text]) => new Option(text, value)));
  if (pairs.some(([value]) => value === chosen)) select.value = chosen;
}

/** Show an error's message at an element, or hide it. */
export function show(element, error = null) {
  element.hidden = error === null;
  element.textContent = error?.message ?? "";
}

/** Show one button in another's place; the keyboard's focus goes with it. */
export function swap(shown, hidden) {
  const focused = document.activeElement === hidden;
  shown.hidden = false;
  hidden.hidden = true;
  if (focused) shown.focus();
}

/** Return the number in a field; undefined if it is empty. */
export function number(input) {
  return input.value === "" ? undefined : input.valueAsNumber;
}

/** Keep for later visits whether a disclosure is open. */
export function rememberOpen(details, key) {
  details.open = localStorage.getItem(key) === "open";
  details.addEventListener("toggle", () => put(localStorage, key, details.open ? "open" : "closed"));
}

/** Hand text to the browser as a download. */
export function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Return seconds as 1:02 or 1:01:02. */
export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (parts[0] === 0) parts.shift();
  return parts.map((part, i) => (i ? String(part).padStart(2, "0") : part)).join(":");
}
