"""Features of each speech model type: languages, hints, word times, live audio.

Decides which options a model accepts, and fills the tables in the docs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from kvcast.errors import KvcastError
from kvcast.speech.languages import LANGUAGES


class LanguageSource(StrEnum):
    DETECTED = "detected"  # the model reports the language, unless it is given
    UNREPORTED = "heard"  # the model transcribes any of its languages, and does not report which
    ASSUMED = "assumed"  # the model needs the language; English by default
    REQUIRED = "told"  # users must pass the language


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """Features of a model type."""

    languages: Mapping[str, str]
    language: LanguageSource
    hints: bool = False  # its prompt can hold names and terms to expect
    translates: bool = False  # to English
    words: bool = False
    live: bool = False

    @property
    def follows_languages(self) -> bool:
        multilingual = (LanguageSource.DETECTED, LanguageSource.UNREPORTED)
        return self.language in multilingual and len(self.languages) > 1

    @property
    def options(self) -> frozenset[str]:
        """Names of the options of `TranscribeParams` that have an effect on the model."""
        given = (
            (("hotwords", "initial_prompt"), self.hints),
            (("task",), self.translates),
            (("channels", "word_timestamps"), self.words),
            (("multilingual",), self.follows_languages),
        )
        return frozenset(name for names, can in given if can for name in names)

    def among(self, codes: Iterable[str]) -> "Abilities":
        """Return the abilities with `languages` limited to these."""
        among = frozenset(codes)
        known = {code: name for code, name in self.languages.items() if code in among}
        return replace(self, languages=known)


def _named(*codes: str) -> Mapping[str, str]:
    return {code: LANGUAGES[code] for code in codes}


_QWEN = {
    code: "Filipino" if code == "tl" else LANGUAGES[code].title()
    for code in (
        *("ar", "yue", "zh", "cs", "da", "nl", "en", "tl", "fi", "fr", "de", "el", "hi", "hu"),
        *("id", "it", "ja", "ko", "mk", "ms", "fa", "pl", "pt", "ro", "ru", "es", "sv", "th"),
        *("tr", "vi"),
    )
}  # as the model's prompts spell them

_EUROPEAN = _named(
    *("en", "bg", "hr", "cs", "da", "nl", "et", "fi", "fr", "de", "el", "hu", "it", "lv", "lt"),
    *("mt", "pl", "pt", "ro", "sk", "sl", "es", "sv", "ru", "uk"),
)
_PARAKEET = Abilities(languages=_EUROPEAN, language=LanguageSource.UNREPORTED, words=True)
_MOONSHINE = _named("en", "ar", "es", "ja", "ko", "uk", "vi", "zh")

ABILITIES: Mapping[str, Abilities] = {
    "whisper": Abilities(
        languages=LANGUAGES,
        language=LanguageSource.DETECTED,
        hints=True,
        translates=True,
        words=True,
        live=True,
    ),
    "qwen3_asr": Abilities(languages=_QWEN, language=LanguageSource.DETECTED, hints=True),
    "voxtral": Abilities(
        languages=_named("en", "es", "fr", "pt", "hi", "de", "nl", "it"),
        language=LanguageSource.UNREPORTED,
    ),
    "voxtral_realtime": Abilities(
        languages=_named(
            *("ar", "de", "en", "es", "fr", "hi", "it", "nl", "pt", "zh", "ja", "ko", "ru")
        ),
        language=LanguageSource.UNREPORTED,
        live=True,
    ),
    "granite_speech": Abilities(
        languages=_named("en", "fr", "de", "es", "pt", "ja"),
        language=LanguageSource.UNREPORTED,
        hints=True,
        translates=True,
    ),
    "moonshine": Abilities(languages=_MOONSHINE, language=LanguageSource.ASSUMED),
    "moonshine_streaming": Abilities(
        languages=_MOONSHINE, language=LanguageSource.ASSUMED, live=True
    ),
    "canary": Abilities(languages=_EUROPEAN, language=LanguageSource.ASSUMED, translates=True),
    "cohere_asr": Abilities(
        languages=_named(
            *("ar", "de", "el", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "vi", "zh")
        ),
        language=LanguageSource.REQUIRED,
    ),
    "parakeet_ctc": _PARAKEET,
    "parakeet_rnnt": _PARAKEET,
    "parakeet_tdt": _PARAKEET,
}  # by type of the checkpoint; for a type with several models, the most capable one's


def abilities_of(architecture: str) -> Abilities:
    """Return the abilities of a type of models; raises KvcastError for an unknown one."""
    if architecture not in ABILITIES:
        raise KvcastError(f"this kvcast does not support {architecture} models: update it")
    return ABILITIES[architecture]
