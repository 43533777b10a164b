"""What every contender is given, what it must be able to do, and where its files are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvcast.bench import contender
from kvcast.bench.contender import installed_versions, made_path, needs_checkpoint
from kvcast.bench.sources.trials import Tokens
from kvcast.checkpoints.source import fingerprint

# Goes up with what is written for others, so that nobody is fed an older file.
_FILES = 1
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True, kw_only=True)
class Task:
    """The same for everybody.

    Attributes:
        folder: where the model lies.
        threads: to compute with.
        vocab_size: of the model.

    """

    folder: str
    threads: int
    vocab_size: int

    def made(self, what: str, packages: tuple[str, ...] = ()) -> Path:
        """Return where a folder made of the checkpoint by these packages is kept."""
        versions = (installed_versions(packages) or {}).values()
        digest = fingerprint(Path(self.folder))[:24]
        return made_path("-".join((digest, str(_FILES), what, *versions)))

    def unlike_hugging_face(self) -> str | None:
        """Say why other programs cannot read the folder, or None."""
        folder = Path(self.folder)
        reason = needs_checkpoint(folder)
        if reason is None and not any((folder / name).is_file() for name in _WEIGHTS):
            reason = "needs a Hugging Face folder with safetensors"
        return reason


class Contender(contender.Contender, Protocol):
    """A contender that writes targets."""

    @property
    def precision(self) -> str:
        """FLOAT, INT8 or INT4, by its weights."""

    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        """Write the best target of each source, of exactly so many tokens.

        Sources are of equal length. End tokens are held back; the token that a target begins
        with is not among those returned.
        """
