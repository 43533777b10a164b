"""Languages that a model translates from and into: their codes, tokens and places."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from kvcast.errors import KvcastError, UsageError

Place: TypeAlias = Literal["first", "last", "target"]
"""The place of a language's token.

"first" or "last": the source's language is the first or last token of the source, and the target's
is the first of the target. "target": the target's language precedes the source, and the source's is
not given.
"""

# en_XX (mBART), eng_Latn (NLLB), __en__ (M2M-100), >>fra<< (Marian).
_CODE = re.compile(r"([a-z]{2,3}_[A-Z][A-Za-z]{1,3})|__([a-z]{2,8})__|>>([^<>\s]+)<<")
_MOST_NAMED = 5
_ENGLISH = ("en_XX", "eng_Latn", "en")
MBART = (
    *("ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN"),
    *("it_IT", "ja_XX", "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO"),
    *("ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN"),
)
"""An mBART's languages, in the order of their tokens."""

MBART_50 = (
    *MBART,
    *("af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID", "ka_GE", "km_KH", "mk_MK"),
    *("ml_IN", "mn_MN", "mr_IN", "pl_PL", "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN", "te_IN"),
    *("th_TH", "tl_XX", "uk_UA", "ur_PK", "xh_ZA", "gl_ES", "sl_SI"),
)
"""The languages of an mBART-50."""

M2M_100 = (
    *("af", "am", "ar", "ast", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "ceb", "cs", "cy"),
    *("da", "de", "el", "en", "es", "et", "fa", "ff", "fi", "fr", "fy", "ga", "gd", "gl", "gu"),
    *("ha", "he", "hi", "hr", "ht", "hu", "hy", "id", "ig", "ilo", "is", "it", "ja", "jv", "ka"),
    *("kk", "km", "kn", "ko", "lb", "lg", "ln", "lo", "lt", "lv", "mg", "mk", "ml", "mn", "mr"),
    *("ms", "my", "ne", "nl", "no", "ns", "oc", "or", "pa", "pl", "ps", "pt", "ro", "ru", "sd"),
    *("si", "sk", "sl", "so", "sq", "sr", "ss", "su", "sv", "sw", "ta", "th", "tl", "tn", "tr"),
    *("uk", "ur", "uz", "vi", "wo", "xh", "yi", "yo", "zh", "zu"),
)
"""The languages of an M2M-100; of the models of WMT 21 these alone, in this order."""

WMT_21 = ("en", "ha", "is", "ja", "cs", "ru", "zh", "de")


@dataclass(frozen=True, kw_only=True)
class Languages:
    tokens: Mapping[str, int]
    place: Place

    def before(
        self, source: Sequence[int], source_language: str | None, target_language: str | None
    ) -> list[int]:
        """Add languages' tokens to a source; None: the default; UsageError for unknown ones."""
        tokens = list(source)
        if self.place == "target":
            if source_language is not None:
                raise UsageError("this model knows its source's language: leave out that option")
            return tokens if target_language is None else [self.token(target_language), *tokens]
        if source_language is not None:
            tokens[0 if self.place == "first" else -1] = self.token(source_language)
        return tokens

    def forced(self, target_language: str | None) -> int | None:
        """Return the token that a target begins with; UsageError for an unknown language."""
        if target_language is None or self.place == "target":
            return None
        return self.token(target_language)

    def code(self, token: int) -> str | None:
        return next((code for code, number in self.tokens.items() if number == token), None)

    def token(self, language: str) -> int:
        """Return a language's token, also by a unique prefix; UsageError with the nearest codes."""
        if language in self.tokens:
            return self.tokens[language]
        wanted = language.lower()
        begun = [code for code in self.tokens if code.lower().split("_")[0] == wanted]
        if len(begun) == 1:
            return self.tokens[begun[0]]
        near = begun or get_close_matches(language, self.tokens, _MOST_NAMED, 0.4)
        if not begun:
            near += [code for code in sorted(self.tokens) if code not in near]
            near = near[:_MOST_NAMED]
        others = len(self.tokens) - len(near)
        beside = f" and {others} more" if others else ""
        raise UsageError(
            f"the model does not support language {language[:40]!r}: "
            f"it has {', '.join(near)}{beside}"
        )


def codes(ids: Mapping[str, int]) -> dict[str, int]:
    matches = ((_CODE.fullmatch(text), number) for text, number in ids.items())
    return {
        next(filter(None, match.groups())): number for match, number in matches if match is not None
    }


def languages_of(description: Mapping[str, Any]) -> Languages | None:
    """Return the languages of a tokenizer.json, whose template has the source's."""
    tokens = codes(_added(description))
    slots = [place for place, _ in _language_slots(description)]
    return Languages(tokens=tokens, place=slots[0]) if slots else None


def source_of(description: Mapping[str, Any]) -> str | None:
    for _, token in _language_slots(description):
        return next(iter(codes({token: 0})))
    return None


def with_source(
    description: Mapping[str, Any], place: Place, language: str | None, end: str
) -> dict[str, Any]:
    """Return a tokenizer.json whose template has a source's language in this place.

    `language`: a code, or the template's, or else English; without any of them nothing is
    changed. `end`: the token that ends a source. KvcastError for an unknown code.
    """
    ids = _added(description)
    texts = {number: text for text, number in ids.items()}
    known = codes(ids)
    if language is not None and language not in known:
        raise KvcastError(f"tokenizer_config.json: no token is of src_lang {language[:40]!r}")
    usual = [language, source_of(description), *_ENGLISH]
    number = next((known[code] for code in usual if code in known), None)
    if number is None or end not in ids:
        return {**description}
    around = [_special(texts[number]), _special(end)]
    text: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    single = [around[0], *text, around[1]] if place == "first" else [*text, *reversed(around)]
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            name: {"id": name, "ids": [ids[name]], "tokens": [name]}
            for name in (texts[number], end)
        },
    }
    return {**description, "post_processor": template}


def _special(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def _added(description: Mapping[str, Any]) -> dict[str, int]:
    added = description.get("added_tokens") or []
    return {token["content"]: token["id"] for token in added}


def _language_slots(description: Mapping[str, Any]) -> list[tuple[Place, str]]:
    template = (description.get("post_processor") or {}).get("single") or []
    names = [item.get("SpecialToken", {}).get("id", "") for item in template]
    places: tuple[tuple[Place, int], ...] = (("first", 0), ("last", -1))
    return [(place, names[at]) for place, at in places if names and _CODE.fullmatch(names[at])]
