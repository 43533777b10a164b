"""Interfaces of an opened recording, as tasks need it.

Knows no files: see `kvcast.audio.features.MelWindows` and `kvcast.audio.samples.SampledSound`.
"""

from typing import TYPE_CHECKING, Protocol

from kvcast.runtimes.base import Float32

if TYPE_CHECKING:
    from kvcast.audio.timeline import Part, Timeline


class Recording(Protocol):
    """A recording that was opened."""

    @property
    def content_frames(self) -> int:
        """Frames of sound."""

    @property
    def duration(self) -> float:
        """Seconds of sound."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user."""

    @property
    def unheard(self) -> tuple[str, ...]:
        """Notices for the user if no speech is recognised."""

    @property
    def timeline(self) -> "Timeline":
        """Maps seconds of the sound to seconds of the recording."""

    @property
    def skipped(self) -> "tuple[Part, ...] | None":
        """Parts that were left out because they are no speech; None without `vad`."""

    def is_silent(self, seek: int, end: int) -> bool:
        """Tell whether frames `seek` to `end` hold no sound at all."""

    def close(self) -> None:
        """Release the recording."""


class Sound(Protocol):
    """The sound of a recording, or a part of it."""

    def window(self, seek: int, end: int | None = None) -> Float32:
        """Return the encoder's input [n_mels, 3000] from frame `seek`, zeros from `end` on."""

    def is_silent(self, seek: int, end: int) -> bool:
        """Tell whether frames `seek` to `end` hold no sound at all."""


class Windows(Sound, Recording, Protocol):
    """A recording in windows of 30 seconds, as Whisper's encoder takes them."""

    def first_window(self) -> Float32:
        """Return the window that the language is detected from, [n_mels, 3000]."""


class Samples(Recording, Protocol):
    """A recording in samples, for models that make features of an excerpt themselves."""

    def samples(self, first: int, end: int) -> Float32:
        """Return the mono samples at 16 kHz of frames `first` to `end`, [n]."""
