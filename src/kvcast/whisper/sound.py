"""What the tasks need of a recording, whoever opens it.

Says nothing of files: see `kvcast.audio.features.MelWindows`.
"""

from typing import TYPE_CHECKING, Protocol

from kvcast.runtimes.base import Float32

if TYPE_CHECKING:
    from kvcast.audio.timeline import Part, Timeline


class Sound(Protocol):
    """The sound of a recording, or a part of it."""

    def window(self, seek: int, end: int | None = None) -> Float32:
        """Return the encoder's input [n_mels, 3000] from frame `seek`, zeros from `end` on."""


class Windows(Sound, Protocol):
    """A recording that was opened."""

    @property
    def content_frames(self) -> int:
        """Frames of sound."""

    @property
    def duration(self) -> float:
        """Seconds of sound."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know."""

    @property
    def timeline(self) -> "Timeline":
        """What seconds of the sound are in the recording."""

    @property
    def skipped(self) -> "tuple[Part, ...] | None":
        """What was left out because it is no speech; None if nobody looked for that."""

    def first_window(self) -> Float32:
        """Return what the language is detected from, [n_mels, 3000]."""

    def close(self) -> None:
        """Release the recording."""
