"""Sound tracks of a film: which one is meant.

Knows no library: a reader lists the tracks.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kvcast.audio.reader import NoTrackError

_PAIRS = """
afr:af amh:am ara:ar asm:as aze:az bak:ba bel:be bul:bg ben:bn tib:bo bod:bo bre:br bos:bs cat:ca
cze:cs ces:cs wel:cy cym:cy dan:da ger:de deu:de gre:el ell:el eng:en spa:es est:et baq:eu eus:eu
per:fa fas:fa fin:fi fao:fo fre:fr fra:fr glg:gl guj:gu hau:ha haw:haw heb:he hin:hi hrv:hr hat:ht
hun:hu arm:hy hye:hy ind:id ice:is isl:is ita:it jpn:ja jav:jv geo:ka kat:ka kaz:kk khm:km kan:kn
kor:ko lat:la ltz:lb lin:ln lao:lo lit:lt lav:lv mlg:mg mao:mi mri:mi mac:mk mkd:mk mal:ml mon:mn
mar:mr may:ms msa:ms mlt:mt bur:my mya:my nep:ne dut:nl nld:nl nno:nn nob:no nor:no oci:oc pan:pa
pol:pl pus:ps por:pt rum:ro ron:ro rus:ru san:sa snd:sd sin:si slo:sk slk:sk slv:sl sna:sn som:so
alb:sq sqi:sq srp:sr sun:su swe:sv swa:sw tam:ta tel:te tgk:tg tha:th tuk:tk tgl:tl fil:tl tur:tr
tat:tt ukr:uk urd:ur uzb:uz vie:vi yid:yi yor:yo chi:zh zho:zh cmn:zh yue:yue
"""
_CODES = dict(pair.split(":") for pair in _PAIRS.split())
"""Codes of ISO 639-1 by those of ISO 639-2, of which some languages have two."""

_UNKNOWN = frozenset({"", "und", "mis", "zxx", "mul"})


class Track(NamedTuple):
    """A sound track: its number, from 1 on, and what the container tells of it."""

    number: int
    language: str = ""
    title: str = ""
    is_default: bool = False

    def __str__(self) -> str:
        told = [self.language if self.language not in _UNKNOWN else "", self.title]
        inside = ", ".join(text for text in told if text)
        return f"{self.number} ({inside})" if inside else str(self.number)


def chosen(tracks: Sequence[Track], wanted: str | int | None) -> Track:
    """Return the track of this number or language; by default the container's default.

    Raises NoTrackError if there is none.
    """
    if wanted is None:
        return next((track for track in tracks if track.is_default), tracks[0])
    text = str(wanted).strip()
    for track in tracks:
        if text == str(track.number) or (not text.isdigit() and _is_spoken(track, text)):
            return track
    listed = ", ".join(map(str, tracks))
    has = f"sound tracks {listed}" if len(tracks) > 1 else f"one sound track, {listed}"
    raise NoTrackError(f"has no sound track {text}: it has {has}")


def _is_spoken(track: Track, language: str) -> bool:
    return track.language not in _UNKNOWN and _code(track.language) == _code(language)


def _code(language: str) -> str:
    """Return ISO 639-1's code for a code with two letters or three, with a region or without."""
    base = language.lower().replace("_", "-").split("-")[0]
    return _CODES.get(base, base)
