"""Replaces what a model hears by what people write: names, terms, brands.

A rule is `heard => written`. It applies to whole words, in any case, with any space between them;
what is written stands as it is. Knows no files and no model.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from kvcast.errors import UsageError

if TYPE_CHECKING:
    from kvcast.speech.segments import Segment, Word

_ARROW = "=>"


@dataclass(frozen=True)
class Replacements:
    """Rules by which texts are changed, the longest first where several apply."""

    rules: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, given: str | Sequence[str]) -> "Replacements":
        """Read rules, one in each line; empty ones and those that begin with # are left out.

        Raises UsageError for a line that is no rule.
        """
        rules = []
        lines = given.splitlines() if isinstance(given, str) else given
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            heard, arrow, written = (part.strip() for part in line.partition(_ARROW))
            if not arrow or not heard.split():
                raise UsageError(
                    f"replacement {number} must be HEARD {_ARROW} WRITTEN, not {line!r}"
                )
            rules.append((" ".join(heard.split()), written))
        return cls(tuple(rules))

    def apply(self, segment: "Segment") -> "Segment":
        """Return a segment with its text and words changed; its tokens stay those of the model.

        Words that are replaced together become one, from the first one's start to the last one's
        end.
        """
        if not self.rules:
            return segment
        text = self._pattern.sub(self._written, segment.text)
        words = None if segment.words is None else tuple(self._replaced(segment.words))
        return replace(segment, text=text, words=words)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        heard = sorted((heard for heard, _ in self.rules), key=len, reverse=True)
        choices = "|".join(r"\s+".join(map(re.escape, words.split())) for words in heard)
        return re.compile(rf"(?<!\w)(?:{choices})(?!\w)", re.IGNORECASE)

    @cached_property
    def _by_heard(self) -> dict[str, str]:
        return {heard.casefold(): written for heard, written in reversed(self.rules)}

    def _written(self, match: re.Match[str]) -> str:
        return self._by_heard[" ".join(match[0].split()).casefold()]

    def _replaced(self, words: "Sequence[Word]") -> "list[Word]":
        """Return the words of a text in which matches of several words are one word each."""
        text = "".join(word.word for word in words)
        joined = {
            at
            for match in self._pattern.finditer(text)
            for at in range(match.start() + 1, match.end())
        }
        groups: list[list[Word]] = []
        at = 0
        for word in words:
            if groups and at in joined:
                groups[-1].append(word)
            else:
                groups.append([word])
            at += len(word.word)
        changed = map(self._changed, groups)
        return [word for word in changed if word.word.strip()]

    def _changed(self, group: "Sequence[Word]") -> "Word":
        return replace(
            group[0],
            end=group[-1].end,
            word=self._pattern.sub(self._written, "".join(word.word for word in group)),
            probability=sum(word.probability for word in group) / len(group),
        )
