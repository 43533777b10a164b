/**
 * Markdown as elements. Knows no server.
 *
 * What it is given is written by models, so that no text ever becomes markup: elements are made
 * one by one, HTML stays text, images are links, and links lead to other sites or nowhere. Tokens
 * come from marked.js, which is lib/marked.esm.js of npm's marked 18.2.1.
 */

import { copyButton } from "/page/copy.js";
import { make } from "/page/dom.js";
import { Lexer } from "/page/marked.js";

const LINKS = ["http:", "https:", "mailto:"];
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const ABOVE = 2; // the level of the heading under which a text stands

const MOST_LEVELS = 100; // of elements in elements, which browsers lay out one within the other

const LONGEST = 10_000; // characters of a paragraph: the lexer takes their square of time, at worst

class BoundedLexer extends Lexer {
  inlineTokens(text, tokens = []) {
    if (text.length <= LONGEST) return super.inlineTokens(text, tokens);
    tokens.push({ type: "text", raw: text, text });
    return tokens;
  }
}

/** A text that grows, as the children of an element. */
export class Markdown {
  constructor(element) {
    this.element = element;
    this.shown = [];
  }

  /** Show a text; elements of what has not changed stay, and with them what is selected. */
  show(text) {
    const blocks = parsed(text);
    const same = blocks.findIndex(({ key }, i) => key !== this.shown[i]?.key);
    const kept = same < 0 ? blocks.length : same;
    for (const { node } of this.shown.slice(kept)) node.remove();
    let level = this.shown[kept - 1]?.level ?? ABOVE;
    const fresh = blocks.slice(kept).map(({ key, token }) => {
      if (token.type === "heading") level = Math.min(6, token.depth + ABOVE, level + 1);
      return { key, level, node: levels(token) > MOST_LEVELS ? plain(token) : block(token, level) };
    });
    this.element.append(...fresh.map(({ node }) => node));
    this.shown = [...this.shown.slice(0, kept), ...fresh];
  }
}

/** Return the blocks of a text, each with a key that says all that it depends on. */
function parsed(text) {
  let tokens;
  try {
    tokens = new BoundedLexer({ gfm: true, breaks: true }).lex(text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // it is nested too deep
    return [{ key: text, token: { type: "plain", raw: text } }];
  }
  const links = JSON.stringify(tokens.links);
  const blocks = tokens.filter(({ type }) => type !== "space" && type !== "def");
  return blocks.map((token) => ({ key: `${token.type} ${links} ${token.raw}`, token }));
}

const BLOCKS = {
  blockquote: ({ tokens }, level) => make("blockquote", {}, ...tokens.map((it) => block(it, level))),
  code,
  heading: ({ tokens }, level) => make(`h${Math.max(ABOVE + 1, level)}`, {}, ...spans(tokens)),
  hr: () => make("hr"),
  list,
  paragraph: ({ tokens }) => make("p", {}, ...spans(tokens)),
  space: () => "",
  table,
};

function block(token, level) {
  return Object.hasOwn(BLOCKS, token.type) ? BLOCKS[token.type](token, level) : plain(token);
}

function plain({ raw }) {
  return make("p", { className: "plain" }, raw.trimEnd());
}

function code({ text }) {
  const scrolled = make("pre", { tabIndex: 0 }, make("code", {}, text));
  return make("div", { className: "code" }, scrolled, copyButton("Copy code", () => text));
}

function levels({ type, tokens = [], items = [], header, rows }) {
  const inner = type === "table" ? [...header, ...rows.flat()] : [...tokens, ...items];
  return 1 + inner.reduce((most, token) => Math.max(most, levels(token)), 0);
}

function list({ ordered, start, loose, items }, level) {
  const element = make(ordered ? "ol" : "ul", {}, ...items.map((item) => entry(item, loose, level)));
  if (ordered && start !== 1) element.start = start;
  return element;
}

function entry({ tokens }, loose, level) {
  const nodes = tokens.flatMap((token) => {
    if (!Object.hasOwn(SPANS, token.type)) return [block(token, level)];
    return loose ? [make("p", {}, ...spans([token]))] : spans([token]);
  });
  return make("li", {}, ...nodes);
}

function table({ header, rows }) {
  const cells = (tag, row) =>
    make("tr", {}, ...row.map(({ tokens, align }) => cell(tag, tokens, align)));
  const head = make("thead", {}, cells("th", header));
  const body = make("tbody", {}, ...rows.map((row) => cells("td", row)));
  const whole = make("table", {}, head, body);
  return make("div", { className: "wide", tabIndex: 0, role: "group", ariaLabel: "Table" }, whole);
}

function cell(tag, tokens, align) {
  const element = make(tag, {}, ...spans(tokens));
  element.style.textAlign = align ?? "";
  return element;
}

const SPANS = {
  br: () => make("br"),
  checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  codespan: ({ text }) => make("code", {}, text),
  del: ({ tokens }) => make("del", {}, ...spans(tokens)),
  em: ({ tokens }) => make("em", {}, ...spans(tokens)),
  escape: ({ text }) => text,
  html: ({ raw }) => (/^<br\s*\/?>$/i.test(raw) ? make("br") : raw), // the only line break in a table
  image: ({ raw, href, text }) => link(raw, href, [text || href]),
  link: ({ raw, href, tokens }) => link(raw, href, spans(tokens)),
  strong: ({ tokens }) => make("strong", {}, ...spans(tokens)),
  text: ({ text, tokens }) => (tokens ? spans(tokens) : unescaped(text)),
};

function spans(tokens) {
  return tokens.flatMap((token) =>
    Object.hasOwn(SPANS, token.type) ? SPANS[token.type](token) : token.raw,
  );
}

/** Return a link to another site; what leads elsewhere stays as it was written. */
function link(raw, href, children) {
  if (!URL.canParse(href) || !LINKS.includes(new URL(href).protocol)) return raw;
  const { href: address } = new URL(href);
  return make("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

function unescaped(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|(\w+));/gi, (all, decimal, hexadecimal, name) => {
    if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : all;
    const point = decimal ? Number(decimal) : Number.parseInt(hexadecimal, 16);
    return point > 0 && point <= 0x10ffff ? String.fromCodePoint(point) : all;
  });
}
