"""The model that is measured, one class for each kind of workload, and files made of it once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from kvcast.bundle.manifest import is_bundle
from kvcast.bundle.writing import stage
from kvcast.checkpoints.source import fingerprint, open_checkpoint
from kvcast.spec.files import cache_dir
from kvcast_bench.writing.huggingface import TOKENIZER, is_like_llama, write_huggingface

# Raised when files for other programs are written differently, so that none reads an older one.
_FILES = 4
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True, kw_only=True)
class BenchModel:
    folder: str  # its folder or file
    threads: int  # to compute with

    # of kvcast, which are imported before such a model can be loaded
    modules: ClassVar[Sequence[str]] = ()

    def checkpoint(self) -> Any:
        return open_checkpoint(Path(self.folder))

    def made(self, kind: str, make: Callable[[Path], object], packages: Sequence[str] = ()) -> Path:
        """Return a folder that `make` fills by means of these packages, the first time."""
        versions = (installed_versions(packages) or {}).values()
        digest = fingerprint(Path(self.folder))[:24]
        return made_once("-".join((digest, str(_FILES), kind, *versions)), make)

    def needs_checkpoint(self) -> str | None:
        """Refuse a bundle, whose weights are ready for kvcast alone."""
        if is_bundle(Path(self.folder)):
            return "needs the checkpoint, and the model is a kvcast bundle"
        return None

    def hugging_face(self) -> Path:
        """Return a folder that Hugging Face's libraries read, writing it the first time."""
        return self.made("hf", lambda folder: write_huggingface(self.checkpoint(), folder))

    def unfit(self) -> str | None:
        """Return the reason why other programs cannot read the model, or None."""
        return self.needs_checkpoint()


class SpeechModel(BenchModel):
    modules = ("kvcast.audio.features",)


class Seq2seqModel(BenchModel):
    """A T5, whose folder other programs read directly."""

    modules = ("kvcast.text.text2text",)

    @override
    def hugging_face(self) -> Path:
        return Path(self.folder)

    @override
    def unfit(self) -> str | None:
        has_weights = any((Path(self.folder) / name).is_file() for name in _WEIGHTS)
        reason = None if has_weights else "needs a Hugging Face folder with safetensors"
        return self.needs_checkpoint() or reason


class CausalModel(BenchModel):
    modules = ("kvcast.text.model",)

    @override
    def unfit(self) -> str | None:
        reason = self.unlike_llama()
        if reason is None and TOKENIZER not in self.checkpoint().text:
            reason = "needs a tokenizer.json, and the model has another tokenizer"
        return reason

    def unlike_llama(self) -> str | None:
        """Return the reason why no file for other programs can be made of the model, or None."""
        reason = self.needs_checkpoint()
        if reason is None and not is_like_llama(self.checkpoint().dimensions):
            reason = "kvcast can write files for other programs only for models like Llama"
        return reason


def installed_versions(packages: Sequence[str]) -> dict[str, str] | None:
    """Return the versions of distributions, or None if one is not installed."""
    try:
        return {name: metadata.version(name) for name in packages}
    except metadata.PackageNotFoundError:
        return None


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of that name in the cache folder, which `make` fills the first time."""
    folder = cache_dir() / "bench" / name
    if not folder.is_dir():
        with stage(folder, overwrite=False) as new:
            make(new)
    return folder
