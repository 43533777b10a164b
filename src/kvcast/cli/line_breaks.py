"""Breaks a text into a terminal's lines at words, as it comes."""

import re

from rich.cells import cell_len

# Of East Asian scripts, a line may end after each.
_WIDE = r"\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60"
_UNITS = re.compile(rf"\n|[^\S\n]+|[{_WIDE}]|[^\s{_WIDE}]+")
_TAB = 8


class LineBreaks:
    """Text in, lines out. The word at the end waits for what follows, since it may go on.

    Spaces at the end of a line are left out. A word that is longer than a line is left to the
    terminal.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0
        self._space = self._word = ""

    def add(self, text: str) -> str:
        """Take the next piece; return what can be shown."""
        units = _UNITS.findall(self._word + text)
        self._word = units.pop() if units and units[-1].strip() else ""
        return "".join(map(self._place, units))

    def end(self) -> str:
        """Return what has waited."""
        word, self._word = self._word, ""
        return self._place(word) if word else ""

    def _place(self, unit: str) -> str:
        if unit == "\n":
            self._column, self._space = 0, ""
            return unit
        if unit.isspace():
            self._space += unit
            return ""
        shown, self._space = f"{self._space}{unit}".expandtabs(_TAB), ""
        end = self._column + cell_len(shown)
        if self._column and end > self._width:
            shown, end = f"\n{unit}", cell_len(unit)
        self._column = (end - 1) % self._width + 1
        return shown
