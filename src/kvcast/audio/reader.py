"""The interface of decoding libraries: a file's samples, sections and tracks."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

if TYPE_CHECKING:  # extensions of recordings are listed without NumPy
    import numpy as np
    from numpy.typing import NDArray

BLOCK_VALUES = 2**15  # samples times channels that a reader yields at once; this bounds memory


class UnreadableError(Exception):
    """The reader's library does not know the format or refuses its header; the text says why."""


class NoAudioError(UnreadableError):
    """The format is readable but has no audio; the text follows the name."""


class NoTrackError(Exception):
    """There is no such audio track; the text follows the name."""


class DamagedError(Exception):
    """The stream ended early or is damaged; earlier samples are good. The text follows the name."""


class AudioReader(Protocol):
    rate: int  # samples per second and channel, as stored; not yet checked
    channels: int

    stores_floats: bool  # whether samples are stored as floats, which have no defined full scale
    stops_at_damage: bool  # whether audio may follow a damaged place
    notices: list[str]  # notices for the user after the last block; each follows the name

    def blocks(self) -> "Iterator[NDArray[np.float32]]":
        """Yield the samples, float32 [samples, channels], full scale 1.0.

        Raises DamagedError after the last good block, if the file promised more than it contains.
        """
        ...

    def close(self) -> None:
        """Free the decoder; the file under it stays open."""
        ...


class FileSection:
    """Bytes `start` to `stop` of a seekable file; nameless, so that readers go by the content."""

    size: int

    def __init__(
        self,
        file: "BinaryIO | FileSection",
        start: int = 0,
        stop: int | None = None,  # after the last byte
        *,
        patches: Mapping[int, bytes] | None = None,  # replacement bytes, by position in the section
    ) -> None:
        """Prepare; `file` stays open, and its position does not matter."""
        self._file = file
        self._start = start
        self.size = (file.seek(0, io.SEEK_END) if stop is None else stop) - start
        self._patches = dict(patches or {})
        self._position = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, count: int) -> bytes:
        """Return the next bytes; none at the end, and where the file cannot be read."""
        count = min(count, self.size - self._position)
        if count <= 0:
            return b""
        try:
            self._file.seek(self._start + self._position)
            data = self._file.read(count)
            while 0 < len(data) < count and (more := self._file.read(count - len(data))):
                data += more  # some files return less than requested
        except OSError:  # libraries in C cannot pass on exceptions; the missing length will show it
            return b""
        for at, patch in self._patches.items():
            data = _apply_patch(data, at - self._position, patch)
        self._position += len(data)
        return data

    def at(self, position: int, count: int) -> bytes:
        self.seek(position)
        return self.read(count)


def _apply_patch(data: bytes, at: int, patch: bytes) -> bytes:
    """Return data with `patch` at an index, as far as it overlaps."""
    first, last = max(at, 0), min(at + len(patch), len(data))
    return data if first >= last else data[:first] + patch[first - at : last - at] + data[last:]


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
"""ISO 639-1 codes by ISO 639-2 code, of which some languages have two."""

_UNKNOWN = frozenset({"", "und", "mis", "zxx", "mul"})


class Track(NamedTuple):
    """An audio track: its number, from 1 on, and the container's metadata."""

    number: int
    language: str = ""
    title: str = ""
    is_default: bool = False

    def __str__(self) -> str:
        shown = [self.language if self.language not in _UNKNOWN else "", self.title]
        inside = ", ".join(text for text in shown if text)
        return f"{self.number} ({inside})" if inside else str(self.number)


def choose_track(tracks: Sequence[Track], wanted: str | int | None) -> Track:
    """Return the track of this number or language, or the default one; NoTrackError for none."""
    if wanted is None:
        return next((track for track in tracks if track.is_default), tracks[0])
    text = str(wanted).strip()
    for track in tracks:
        if text == str(track.number) or (not text.isdigit() and _is_spoken(track, text)):
            return track
    listed = ", ".join(map(str, tracks))
    has = f"audio tracks {listed}" if len(tracks) > 1 else f"one audio track, {listed}"
    raise NoTrackError(f"has no audio track {text}: it has {has}")


def _is_spoken(track: Track, language: str) -> bool:
    return track.language not in _UNKNOWN and _code(track.language) == _code(language)


def _code(language: str) -> str:
    """Return ISO 639-1's code for a code with two letters or three, with a region or without."""
    base = language.lower().replace("_", "-").split("-")[0]
    return _CODES.get(base, base)
