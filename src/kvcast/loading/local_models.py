"""The models on this machine: packaged ones, downloads, cached copies, folders that are named.

Only headers and configurations are read.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.gguf.reader import is_gguf
from kvcast.checkpoints.hub import download_size
from kvcast.checkpoints.hub_cache import cached_repositories, remove_repository
from kvcast.checkpoints.hub_names import DEFAULTS, hub_id_of
from kvcast.checkpoints.packaged import REQUIREMENTS, is_installed
from kvcast.checkpoints.source import PACKAGED, locate, open_checkpoint
from kvcast.errors import InputMissingError, KvcastError, UsageError
from kvcast.families.base import Task
from kvcast.machine.resources import available_bytes
from kvcast.spec.files import cache_dir, exports_dir
from kvcast.spec.runtimes import OnPhase, ignore_phase
from kvcast.spec.text_files import CHAT_TEMPLATES

__all__ = [
    "DEFAULTS",
    "LocalModel",
    "default_model",
    "describe",
    "local_models",
    "offered_download",
    "packaged",
    "pull",
    "removal",
]

_PREFERRED: Mapping[Task, Sequence[str]] = {
    "transcribe": ("demo-base", "demo"),  # several languages before English
    "generate": ("demo-chat",),
}
"""Packaged models that are a default, by task."""
_SHARE = 2
"""A default takes at most this part of the free memory for its files' weights."""


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """A model that `--model NAME` opens without a download."""

    name: str
    task: Task
    family: str  # its title; of a decoder-only model its architecture
    has_chat_template: bool
    precision: str  # of most of its stored weights; of a bundle with its runtime
    bytes: int  # of all its files
    place: str


def local_models(folders: Iterable[Path] = ()) -> Iterator[LocalModel]:
    """Yield the models, packaged ones first; what kvcast cannot run is left out.

    Of a folder that is no model itself, the folders and GGUF files directly in it are examined.
    """
    packaged = ((name, None) for name in PACKAGED if is_installed(name))
    hub = cached_repositories().items()
    copies = ((str(place), place) for place in _copies())
    named = ((str(place), place) for folder in folders for place in _places(folder))
    for name, place in chain(packaged, hub, copies, named):
        with suppress(KvcastError):
            yield describe(name, locate(name) if place is None else place)


def default_model(task: Task) -> str | None:
    """Return the name of the model that a command takes if none is named; None if none is here.

    Packaged models come first, then the newest download of this task that fits in memory.
    """
    if (name := next(filter(is_installed, _PREFERRED[task]), None)) is not None:
        return name
    most = available_bytes() // _SHARE
    for name, place in cached_repositories().items():
        with suppress(KvcastError):
            model = describe(name, place)
            if model.task == task and model.bytes <= most:
                return name
    return None


def packaged(task: Task) -> tuple[str, str]:
    """Return the packaged model of a task, and what `pip install` takes for it."""
    name = _PREFERRED[task][0]
    return name, REQUIREMENTS[name]


def pull(name: str, on_phase: OnPhase = ignore_phase) -> LocalModel:
    """Download a model by hub id or usual name; raises UsageError for what is no download."""
    if name in REQUIREMENTS:
        raise UsageError(f"{name} is a Python package: pip install {REQUIREMENTS[name]}")
    if Path(name).exists() or name in PACKAGED:
        raise UsageError(f"{name} is here already")
    return describe(name, locate(name, on_phase))


def removal(name: str) -> tuple[str, Callable[[], int]]:
    """Return the name of a download, or copy in the cache, and what removes it.

    That returns the bytes that are free again. Raises UsageError for a package, and
    InputMissingError for what is neither.
    """
    if name in PACKAGED:
        raise UsageError(f"{name} is a Python package: pip uninstall removes it")
    for copy in _copies():
        if copy.resolve() == Path(name).resolve():
            return str(copy), partial(_remove_copy, copy)
    repository = (hub_id_of(name) or name).partition("@")[0].partition(":")[0]
    if repository not in cached_repositories():
        raise InputMissingError(f"{repository} was not downloaded: kvcast list shows what was")
    return repository, partial(remove_repository, repository)


def offered_download(task: Task) -> tuple[str, int]:
    """Return the model to download where there is none, and its bytes; raises as `download`."""
    return DEFAULTS[task], download_size(DEFAULTS[task])


def _copies() -> list[Path]:
    """Return what the cache folder holds of models: exported bundles, packages that are gone."""
    bundles = (path for path in exports_dir().glob("*") if is_bundle(path))
    left = () if is_installed("demo-base") else cache_dir().glob("demo-base-*")
    return sorted([*bundles, *left])


def _remove_copy(place: Path) -> int:
    freed = _bytes_of(place)
    shutil.rmtree(place)
    return freed


def _places(folder: Path) -> list[Path]:
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    return [folder, *(path for path in inside if path.is_dir() or is_gguf(path))]


def describe(name: str, place: Path) -> LocalModel:
    """Read a model's metadata from its headers; raises KvcastError if kvcast cannot run it."""
    if is_bundle(place):
        manifest = read_bundle(place)
        family, dimensions = manifest.model()
        precision, files = f"{manifest.quantize}, {manifest.runtime}", [*manifest.files]
    else:
        checkpoint = open_checkpoint(place)
        dimensions = checkpoint.dimensions
        family, precision = checkpoint.family, _precision(checkpoint)
        files = [*checkpoint.text]
    return LocalModel(
        name=name,
        task=family.task,
        family=getattr(dimensions, "architecture", family.title),
        has_chat_template=CHAT_TEMPLATES[""] in files,
        precision=precision,
        bytes=_bytes_of(place),
        place=str(place),
    )


def _bytes_of(place: Path) -> int:
    files = [place] if place.is_file() else filter(Path.is_file, place.rglob("*"))
    return sum(path.stat().st_size for path in files)


def _precision(checkpoint: Checkpoint) -> str:
    stored = Counter[str]()
    for name in checkpoint.tensors:
        for part in checkpoint.tensors.parts_of(name):
            stored[" ".join(sorted(part.kinds))] += part.nbytes
    return stored.most_common(1)[0][0].lower()
