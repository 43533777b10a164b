"""Finds stop strings in text that arrives in pieces. Knows neither tokens nor models."""

from dataclasses import dataclass

from kvcast.errors import UsageError


@dataclass(frozen=True)
class StopStrings:
    """Strings that end a generation where they first occur; the output does not include them."""

    strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise UsageError for an empty string, which would end every text at once."""
        if "" in self.strings:
            raise UsageError("a stop string is empty: give at least one character, or leave it out")

    def matcher(self) -> "StopMatcher":
        """Return a matcher for one text."""
        return StopMatcher(self.strings)


class StopMatcher:
    """Looks for stop strings in one text, however it is split into pieces.

    The text ends before the stop string that is complete first; if several end at the same
    character, before the longest of them.
    """

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._longest = max(map(len, strings), default=0)
        self._held = ""
        self._stopped = False

    def push(self, piece: str) -> tuple[str, bool]:
        """Take a piece; return the text that can be shown now, and whether it ends the text.

        Text that could be the start of a stop string is held back. After the end, nothing follows.
        """
        if self._stopped:
            return "", True
        text = self._held + piece
        ends = [(start + len(s), start) for s in self._strings if (start := text.find(s)) >= 0]
        if ends:
            self._stopped = True
            self._held = ""
            _, start = min(ends)
            return text[:start], True
        certain = self._certain(text)
        self._held = text[certain:]
        return text[:certain], False

    def finish(self) -> str:
        """Return the text held back, when no more is coming."""
        held, self._held = self._held, ""
        return held

    def _certain(self, text: str) -> int:
        """Return the length of the part in which no stop string can start any more."""
        first = max(0, len(text) - self._longest + 1)
        for start in range(first, len(text)):
            if any(string.startswith(text[start:]) for string in self._strings):
                return start
        return len(text)
