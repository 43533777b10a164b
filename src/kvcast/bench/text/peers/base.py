"""What every contender is given, what it must be able to do, and the files that are made for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvcast.bench import contender
from kvcast.bench.contender import installed_versions, made_beside, made_path, needs_checkpoint
from kvcast.bench.text.huggingface import has_tokenizer, write_hugging_face
from kvcast.bench.text.names import is_common
from kvcast.bench.text.trials import Tokens
from kvcast.checkpoints.base import DecoderCheckpoint
from kvcast.checkpoints.source import fingerprint, open_checkpoint
from kvcast.errors import KvcastError

Tick = Callable[[], object]

# Goes up with what is written for others, so that nobody is fed an older file.
_FILES = 1


@dataclass(frozen=True, kw_only=True)
class Task:
    """The same for everybody.

    Attributes:
        model: as the user called it.
        folder: the folder or file where it lies.
        threads: to compute with.
        vocab_size: of the model.
        window: of the variant whose layers are rings.

    """

    model: str
    folder: str
    threads: int
    vocab_size: int
    window: int

    def checkpoint(self) -> DecoderCheckpoint:
        """Open the weights that everybody uses."""
        return decoder_checkpoint(Path(self.folder))

    def made(self, what: str, packages: tuple[str, ...] = ()) -> Path:
        """Return where a file or folder made of the checkpoint by these packages is kept."""
        versions = (installed_versions(packages) or {}).values()
        digest = fingerprint(Path(self.folder))[:24]
        return made_path("-".join((digest, str(_FILES), what, *versions)))

    def hugging_face(self) -> Path:
        """Return a Hugging Face folder with these weights, making it the first time."""
        folder = self.made("hf")
        if not folder.is_dir():
            with made_beside(folder) as beside:
                write_hugging_face(self.checkpoint(), beside)
        return folder

    def unlike_llama(self) -> str | None:
        """Say why no file for other programs can be made of the model, or None."""
        reason = needs_checkpoint(Path(self.folder))
        if reason is None and not is_common(self.checkpoint().dimensions):
            reason = "kvcast can write files for other programs of models like Llama only"
        return reason

    def unlike_hugging_face(self) -> str | None:
        """Say why no Hugging Face folder can be made of the model, or None."""
        reason = self.unlike_llama()
        if reason is None and not has_tokenizer(self.checkpoint()):
            reason = "needs a tokenizer.json, and the model has another tokenizer"
        return reason


def decoder_checkpoint(folder: Path) -> DecoderCheckpoint:
    """Open a checkpoint; raises KvcastError if it generates no text."""
    checkpoint = open_checkpoint(folder)
    if isinstance(checkpoint, DecoderCheckpoint):
        return checkpoint
    raise KvcastError(f"{folder} is no decoder-only model, so it cannot generate")


class Contender(contender.Contender, Protocol):
    """A contender that generates."""

    @property
    def precision(self) -> str:
        """FLOAT, INT8 or INT4, by its weights."""

    def generate(self, prompts: Sequence[Tokens], new: int, tick: Tick) -> list[Tokens]:
        """Continue prompts of equal length by `new` tokens each, the likeliest, all rows in step.

        End tokens end nothing. `tick` is called when every row has one token more.
        """
