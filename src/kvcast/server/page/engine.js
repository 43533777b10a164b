/** The panel that shows what the engines do, once a second while it can be seen. */

import { ask } from "/page/api.js";
import { clock, make, show } from "/page/dom.js";
import { put } from "/page/store.js";

const panel = document.getElementById("engine");
const button = document.getElementById("show-engine");
const SHOWN = "kvcast-engine";
const EVERY = 1000;
const KEPT = 60;

const cards = new Map();
let timer = null;
let kinds = new Map();

/** Begin to show the engines of these models. */
export function offer(models) {
  kinds = new Map(models.map(({ id, kind }) => [id, kind]));
  poll();
}

class Card {
  constructor(id, aliases) {
    this.facts = {};
    const list = make("dl");
    for (const name of ["running", "waiting", "tokens/s"]) {
      this.facts[name] = make("dd", {}, "0");
      list.append(make("div", {}, make("dt", {}, name), this.facts[name]));
    }
    this.rows = make("ol", { className: "rows" });
    this.rows.ariaLabel = `Rows of the cache of ${id}`;
    this.line = spark();
    this.size = make("p", { className: "hint" });
    this.done = make("p", { className: "hint" });
    const kind = kinds.get(id) ?? "";
    this.speech = kind === "speech";
    const names = [make("span", {}, id)];
    if (aliases.length) {
      names.push(make("span", { className: "aliases" }, `also ${aliases.join(", ")}`));
    }
    const head = make("h2", {}, ...names, make("span", { className: "kind" }, kind));
    const told = make("div", {}, this.size, this.done);
    this.element = make("section", {}, head, list, this.line.svg, this.rows, told);
    this.element.dataset.kind = kind;
    this.rates = [];
  }

  show(status, at) {
    const written = status.generated_tokens - (this.before ?? status).generated_tokens;
    // A server that was started anew counts from 0.
    const rate = (1000 * Math.max(0, written)) / (at - (this.at ?? 0));
    this.before = status;
    this.at = at;
    this.rates = [...this.rates, rate].slice(-KEPT);
    this.line.draw(this.rates);
    this.facts.running.textContent = status.running;
    this.facts.waiting.textContent = status.waiting;
    this.facts["tokens/s"].textContent = rate.toFixed(rate < 10 ? 1 : 0);
    this.size.textContent =
      `${status.rows} rows of ${status.capacity} positions, ` +
      `${(status.cache_bytes / 2 ** 20).toFixed(1)} MiB`;
    this.done.textContent = this.speech
      ? `${clock(status.audio_seconds)} of recordings heard`
      : `${status.cached_tokens.toLocaleString("en")} of ` +
        `${status.prompt_tokens.toLocaleString("en")} prompt tokens were cached`;
    this.showRows(status);
  }

  showRows({ rows, capacity, held, busy }) {
    while (this.rows.children.length < rows) this.rows.append(make("li", {}, gauge()));
    for (let row = 0; row < rows; row += 1) {
      const meter = this.rows.children[row].firstChild;
      const positions = held[row] ?? 0;
      const used = busy.includes(row);
      meter.ariaValueMax = capacity;
      meter.ariaValueNow = positions;
      meter.firstChild.style.width = `${(100 * positions) / capacity}%`;
      meter.ariaLabel = `Row ${row}${used ? ", in use" : ""}`;
      meter.title = `row ${row}: ${positions} of ${capacity} positions${used ? ", in use" : ""}`;
      meter.classList.toggle("busy", used);
    }
  }
}

/** Return a meter; browsers draw their own in too many ways. */
function gauge() {
  return make("div", { className: "meter", role: "meter", ariaValueMin: 0 }, make("div"));
}

/** Return a small curve of the last minute. */
function spark() {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const line = document.createElementNS(space, "polyline");
  svg.setAttribute("viewBox", `0 0 ${KEPT - 1} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true"); // the figure above it says the same
  svg.classList.add("spark");
  svg.append(line);
  const draw = (values) => {
    const most = Math.max(1, ...values);
    const first = KEPT - values.length;
    const points = values.map((value, i) => `${first + i},${19 - (18 * value) / most}`);
    line.setAttribute("points", points.join(" "));
  };
  return { svg, draw };
}

function visible() {
  return !panel.hidden && !document.hidden;
}

async function poll() {
  clearTimeout(timer);
  timer = null;
  if (!visible()) return;
  try {
    const response = await ask("/v1/engine", { quiet: true });
    const { models } = await response.json();
    for (const model of models.filter(({ alias_of: first }) => first === null)) {
      if (!cards.has(model.id)) {
        const aliases = models.filter(({ alias_of: first }) => first === model.id);
        cards.set(model.id, new Card(model.id, aliases.map(({ id }) => id)));
        panel.querySelector(".engines").append(cards.get(model.id).element);
      }
      cards.get(model.id).show(model, performance.now());
    }
    show(panel.querySelector(".error"));
  } catch (failure) {
    show(panel.querySelector(".error"), failure);
  }
  clearTimeout(timer);
  timer = setTimeout(poll, EVERY);
}

function open(shown) {
  panel.hidden = !shown;
  button.ariaExpanded = String(shown);
  put(localStorage, SHOWN, shown ? "open" : "closed");
  poll();
}

button.addEventListener("click", () => open(panel.hidden));
document.addEventListener("visibilitychange", poll);
panel.hidden = localStorage.getItem(SHOWN) !== "open";
button.ariaExpanded = String(!panel.hidden);
