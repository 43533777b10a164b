/** Starts the page: tabs, the theme, and the models that each panel offers. */

import { ask } from "/page/api.js";
import * as chat from "/page/chat.js";
import * as engine from "/page/engine.js";
import { put } from "/page/store.js";
import * as text2text from "/page/text2text.js";
import * as transcribe from "/page/transcribe.js";

const PANELS = {
  transcribe: { kind: "speech", offer: transcribe.offer },
  chat: { kind: "chat", offer: chat.offer },
  text2text: { kind: "text2text", offer: text2text.offer },
};
const tabs = [...document.querySelectorAll("[role=tab]")];

function choose(name) {
  document.body.dataset.tab = name;
  for (const tab of tabs) {
    const chosen = tab.getAttribute("aria-controls") === name;
    tab.ariaSelected = String(chosen);
    tab.tabIndex = chosen ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
}

function followTabs() {
  for (const [at, tab] of tabs.entries()) {
    const name = tab.getAttribute("aria-controls");
    tab.addEventListener("click", () => {
      choose(name);
      history.replaceState(null, "", `#${name}`);
    });
    tab.addEventListener("keydown", ({ key }) => {
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[key];
      if (to === undefined) return;
      const next = tabs.at(to % tabs.length);
      next.focus();
      next.click();
    });
  }
}

/** Return the panel that the address names, if there is such a one. */
function asked() {
  const name = location.hash.slice(1);
  return Object.hasOwn(PANELS, name) ? name : null;
}

function followAddress() {
  window.addEventListener("hashchange", () => {
    if (asked()) choose(asked());
  });
}

function followTheme() {
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const tell = () => (button.ariaPressed = String(isDark()));
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    put(localStorage, "kvcast-theme", root.dataset.theme);
    tell();
  });
  system.addEventListener("change", tell);
  tell();
}

async function start() {
  const trouble = document.getElementById("trouble");
  let models;
  try {
    models = (await (await ask("/v1/models")).json()).data;
  } catch (failure) {
    trouble.hidden = false;
    trouble.querySelector("span").textContent = failure.message;
    return;
  }
  const again = trouble.contains(document.activeElement);
  trouble.hidden = true;
  for (const [name, { kind, offer }] of Object.entries(PANELS)) {
    const fitting = models.filter((model) => model.kind === kind);
    const panel = document.getElementById(name);
    panel.querySelector(".none").hidden = fitting.length > 0;
    panel.querySelector(".work").hidden = fitting.length === 0;
    if (fitting.length) offer(fitting);
  }
  const usable = Object.keys(PANELS).find((name) =>
    models.some(({ kind }) => kind === PANELS[name].kind),
  );
  choose(asked() ?? usable ?? "transcribe");
  if (again) tabs.find((tab) => tab.tabIndex === 0).focus(); // its button is hidden
  engine.offer(models);
}

followTabs();
followAddress();
followTheme();
document.querySelector("#trouble button").addEventListener("click", start);
start();
