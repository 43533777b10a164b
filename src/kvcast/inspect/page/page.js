/** Places the story's slots, masks, tokens and costs of one call. Computes none of them. */
"use strict";

const MOST_ON_A_RING = 16;
const SVG = "http://www.w3.org/2000/svg";
const story = JSON.parse(document.getElementById("story").textContent);
const slider = document.getElementById("call");
const drawn = [];

function element(name, text = "", kind = "", children = []) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  made.append(...children);
  return made;
}

function shape(name, attributes, children = []) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function heading(text, scope) {
  const made = element("th", text);
  made.scope = scope;
  return made;
}

function state(position, start) {
  return position < 0 ? "empty" : position >= start ? "now" : "held";
}

function text(row, position) {
  return position < 0 ? "" : story.rows[row].tokens[position];
}

function table(kind, columns) {
  const made = element("table", "", kind);
  made.createTHead().append(
    element("tr", "", "", [element("td"), ...columns.map((name) => heading(name, "col"))]));
  made.createTBody();
  return made;
}

function scrolled(child, label) {
  const made = element("div", "", "scroll", [child]);
  made.tabIndex = 0;
  made.setAttribute("role", "region");
  made.setAttribute("aria-label", label);
  return made;
}

/** A ring of slots for one row, whose hand points at the position that was written last. */
function ring(row, slots) {
  const places = Array.from({ length: slots }, (_, slot) => {
    const angle = (2 * Math.PI * slot) / slots;
    const label = shape("text", {});
    const group = shape("g", {}, [shape("circle", { r: 17 }), label]);
    group.setAttribute("transform", `translate(${55 * Math.sin(angle)} ${-55 * Math.cos(angle)})`);
    return { group, label };
  });
  const hand = shape("line", { class: "hand", y1: -12, y2: -36 });
  const name = shape("text", {});
  name.textContent = story.rows[row].name;
  const title = shape("title", {});
  title.textContent = `the ring of row ${story.rows[row].name}`;
  const picture = shape("svg", { viewBox: "-75 -75 150 150", role: "img" },
    [title, hand, ...places.map(({ group }) => group), name]);
  return {
    picture,
    show(positions, start, end) {
      positions.forEach((position, slot) => {
        places[slot].group.setAttribute("class", state(position, start));
        places[slot].label.textContent = text(row, position).slice(0, 5);
      });
      // Positions go on, so the hand turns on instead of back.
      hand.style.transform = `rotate(${(360 * (end - 1)) / slots}deg)`;
    },
  };
}

function kindSection(kind) {
  const slots = table("slots", Array.from({ length: kind.slots }, (_, slot) => `slot ${slot}`));
  slots.tBodies[0].append(...story.rows.map((row) => element("tr", "", "",
    [heading(row.name, "row"), ...Array.from({ length: kind.slots }, () => element("td"))])));
  const has = kind.name === "ring" && kind.slots <= MOST_ON_A_RING;
  const rings = has ? story.rows.map((_, row) => ring(row, kind.slots)) : [];
  const beside = element("p", "", "about");
  const mask = element("div");
  const section = element("section", "", "kind", [
    element("h3", `${kind.name} layers`), element("p", kind.about, "about"),
    scrolled(slots, `slots of ${kind.name} layers`),
    element("div", "", "rings", rings.map(({ picture }) => picture)),
    element("h4", "Mask"), beside, mask]);
  return { section, slots, rings, beside, mask };
}

function maskTable(kind, call, seen) {
  const keys = seen.keys.map(([row, position]) => text(row, position));
  const made = table("mask", keys);
  seen.queries.forEach(([row, position], line) => {
    const cells = seen.keys.map(([of], column) => {
      const other = of !== row;
      return element("td", "", other ? "other" : seen.seen[line][column] === "#" ? "seen" : "hidden");
    });
    made.tBodies[0].append(element("tr", "", "", [heading(text(row, position), "row"), ...cells]));
  });
  return scrolled(made, `mask of ${kind.name} layers in ${call.name}`);
}

function showKind(parts, kind, call, of) {
  of.slots.forEach((positions, row) => {
    positions.forEach((position, slot) => {
      const cell = parts.slots.tBodies[0].rows[row].cells[slot + 1];
      cell.textContent = text(row, position);
      cell.className = state(position, call.starts[row]);
    });
    parts.rings[row]?.show(positions, call.starts[row], call.ends[row]);
  });
  const rows = of.beside.map((row) => story.rows[row].name).join(", ");
  parts.beside.textContent = rows ? `old ring beside the chunk: ${rows}` : "";
  parts.mask.replaceChildren(maskTable(kind, call, of));
}

function tokens(call) {
  return story.rows.map((row, index) => element("ul", "", "row", [element("li", row.name),
    ...row.tokens.map((token, position) => {
      const kind = position >= call.ends[index] ? "ahead" : state(position, call.starts[index]);
      return element("li", token, kind);
    })]));
}

function show(index) {
  const call = story.calls[index];
  slider.value = index;
  slider.setAttribute("aria-valuetext", call.name);
  document.getElementById("previous").disabled = index === 0;
  document.getElementById("next").disabled = index === story.calls.length - 1;
  document.getElementById("heading").textContent = call.heading;
  document.getElementById("tokens").replaceChildren(...tokens(call));
  story.kinds.forEach((kind, i) => showKind(drawn[i], kind, call, call.kinds[i]));
  story.costs.forEach((cost, i) => {
    const { cells } = document.getElementById("costs").tBodies[0].rows[i];
    cost.calls[index].forEach((number, column) => { cells[column + 1].textContent = number; });
  });
}

function go(index) {
  show(Math.max(0, Math.min(story.calls.length - 1, index)));
}

function keyed(event) {
  const at = Number(slider.value);
  const wanted = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: story.calls.length }[event.key];
  const busy = event.altKey || event.ctrlKey || event.metaKey || event.target.closest(".scroll");
  if (wanted === undefined || busy) return;
  event.preventDefault();
  go(wanted);
}

slider.max = story.calls.length - 1;
slider.addEventListener("input", () => show(Number(slider.value)));
document.getElementById("previous").addEventListener("click", () => go(Number(slider.value) - 1));
document.getElementById("next").addEventListener("click", () => go(Number(slider.value) + 1));
document.addEventListener("keydown", keyed);
drawn.push(...story.kinds.map(kindSection));
document.getElementById("kinds").append(...drawn.map(({ section }) => section));
document.getElementById("costs").tBodies[0].append(...story.costs.map((cost) => element("tr", "", "",
  [heading(cost.name, "row"), ...Array.from({ length: 4 }, () => element("td"))])));
document.getElementById("notes").append(...story.notes.map((note) => element("li", note)));
show(0);
