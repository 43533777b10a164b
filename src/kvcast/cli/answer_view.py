"""Shows an answer in a terminal while it is generated: Markdown by rich, reasoning dimmed.

Finished blocks are printed once. The block under way is drawn again and again below them.
"""

import re
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from kvcast.cli.console import escaped
from kvcast.cli.line_breaks import LineBreaks

_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)
_CODE = re.compile(r"(?ms)(^ {0,3}(?:```|~~~).*?(?:^ {0,3}(?:```|~~~)|\Z)|`[^`\n]*`)")
# What Markdown would take away: tags, intraword stars, underscores around a name.
_LITERAL = re.compile(r"<|(?<=\w)\*(?=\w)|(?<!\w)__(?=\w+__)|(?<=\w)__(?!\w)")


class AnswerView:
    """A context manager; afterwards the whole answer stands in the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._lines = LineBreaks(console.width)  # of the reasoning
        self._open = ""  # Markdown that later text may change
        self._reasons = False

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        self._end_reasoning()
        if self._open.strip():
            self._console.print(_rendered(self._open))

    def add(self, reasoning: str, answer: str) -> None:
        """Take the next pieces, of which one may be empty."""
        if reasoning:
            self._reasons = True
            self._live.stop()
            self._print_reasoning(self._lines.add(escaped(reasoning)))
        if not answer:
            return
        self._end_reasoning()
        finished, self._open = split(self._open + escaped(answer))
        if finished:
            self._live.update(Text())
            self._console.print(_rendered(finished))
        self._live.start()
        self._live.update(_rendered(self._tail()), refresh=True)

    def _end_reasoning(self) -> None:
        if self._reasons:
            self._print_reasoning(self._lines.end())
            self._console.print("\n")
            self._lines = LineBreaks(self._console.width)
            self._reasons = False

    def _print_reasoning(self, text: str) -> None:
        self._console.print(Text(text, style="dim italic"), end="", soft_wrap=True)

    def _tail(self) -> str:
        """As much of the open block as the terminal has room for."""
        return "\n".join(self._open.splitlines()[-max(1, self._console.height - 2) :])


def _rendered(markdown: str) -> Markdown:
    return Markdown(legible(markdown), hyperlinks=False)


def legible(markdown: str) -> str:
    """Return Markdown that keeps line breaks, tags and names, as models mean them."""
    parts = _CODE.split(markdown)
    for i in range(0, len(parts), 2):  # the others are code
        literal = _LITERAL.sub(lambda found: "".join(f"\\{char}" for char in found[0]), parts[i])
        parts[i] = re.sub(r"(?<=\S)[ \t]*\n(?=[^\n])", "  \n", literal)
    return "".join(parts)


def split(markdown: str) -> tuple[str, str]:
    """Divide at the last blank line outside of code: what is finished, and what may change."""
    end = 0
    for blank in re.finditer(r"\n[ \t]*\n", markdown):
        if len(_FENCE.findall(markdown[: blank.start()])) % 2 == 0:
            end = blank.end()
    return markdown[:end], markdown[end:]
