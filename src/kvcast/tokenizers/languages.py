"""Languages that a model translates from and into: their codes, tokens and places.

Knows no model and no text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from kvcast.errors import UsageError

Place: TypeAlias = Literal["first", "last", "target"]
"""The place of a language's token.

"first" or "last": the source's language is the first or last token of the source, and the target's
is the first of the target. "target": the target's language precedes the source, and the source's is
not told.
"""

# en_XX (mBART), eng_Latn (NLLB), __en__ (M2M-100), >>fra<< (Marian).
_CODE = re.compile(r"([a-z]{2,3}_[A-Z][A-Za-z]{1,3})|__([a-z]{2,8})__|>>([^<>\s]+)<<")
_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Languages:
    """A model's languages.

    Attributes:
        tokens: by code.
        place: of a language's token.

    """

    tokens: Mapping[str, int]
    place: Place

    def before(
        self, source: Sequence[int], source_language: str | None, target_language: str | None
    ) -> list[int]:
        """Return the tokens of a source in these languages; None leaves what is there.

        Raises UsageError for unknown ones.
        """
        tokens = list(source)
        if self.place == "target":
            if source_language is not None:
                raise UsageError("this model knows its source's language: leave out that option")
            return tokens if target_language is None else [self.token(target_language), *tokens]
        if source_language is not None:
            tokens[0 if self.place == "first" else -1] = self.token(source_language)
        return tokens

    def forced(self, target_language: str | None) -> int | None:
        """Return the token that a target begins with; raises UsageError for an unknown language."""
        if target_language is None or self.place == "target":
            return None
        return self.token(target_language)

    def token(self, language: str) -> int:
        """Return a language's token, also by the beginning of one code alone.

        Raises UsageError with the nearest codes if there is none.
        """
        if language in self.tokens:
            return self.tokens[language]
        wanted = language.lower()
        begun = [code for code in self.tokens if code.lower().split("_")[0] == wanted]
        if len(begun) == 1:
            return self.tokens[begun[0]]
        near = begun or get_close_matches(language, self.tokens, _MOST_NAMED, 0.4)
        near = near or sorted(self.tokens)[:_MOST_NAMED]
        others = len(self.tokens) - len(near)
        beside = f" and {others} more" if others else ""
        raise UsageError(
            f"the model knows no language {language[:40]!r}: it has {', '.join(near)}{beside}"
        )


def codes(numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the tokens that stand for languages, by code."""
    matches = ((_CODE.fullmatch(text), number) for text, number in numbers.items())
    return {
        next(filter(None, match.groups())): number for match, number in matches if match is not None
    }


def languages_of(description: Mapping[str, Any]) -> Languages | None:
    """Return the languages of a tokenizer.json, whose template has the source's."""
    added = description.get("added_tokens") or []
    tokens = codes({token["content"]: token["id"] for token in added})
    template = (description.get("post_processor") or {}).get("single") or []
    names = [item.get("SpecialToken", {}).get("id", "") for item in template]
    places: tuple[tuple[Place, int], ...] = (("first", 0), ("last", -1))
    told = [place for place, at in places if names and _CODE.fullmatch(names[at])]
    return Languages(tokens=tokens, place=told[0]) if told else None
