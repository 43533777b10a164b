"""Finds the dimensions of a model by its name, to count its work.

They come from a bundle's manifest or a checkpoint's configuration, so the weights may be missing.
Knows no format.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import MANIFEST, Manifest, is_bundle
from kvcast.checkpoints.base import Dimensions
from kvcast.checkpoints.source import locate, read_dimensions
from kvcast.errors import InputOutputError, KvcastError, UsageError
from kvcast.spec.decoder import DecoderDimensions
from kvcast.spec.t5 import T5Dimensions
from kvcast.spec.unilm import UnilmDimensions
from kvcast.spec.whisper import WhisperDimensions
from kvcast.work import work_of
from kvcast.work.base import Counted
from kvcast.work.seq2seq import T5Work

__all__ = ["Counted", "counted"]

_FROM_JSON: Mapping[str, Callable[[dict[str, Any]], Dimensions]] = {
    "whisper": WhisperDimensions.from_json,
    "decoder": DecoderDimensions.from_json,
    "t5": T5Dimensions.from_json,
    "unilm": UnilmDimensions.from_json,
}


def counted(model: str, source: int | None = None) -> Counted:
    """Return a model to count: a bundle, a checkpoint, a folder with a configuration, a hub id.

    `source` is the length of a T5's source; None: the default. Raises KvcastError with one line;
    InputMissingError if nothing has that name.
    """
    located = locate(model)
    dimensions = _of_bundle(located) if is_bundle(located) else read_dimensions(located)
    if source is None:
        return work_of(dimensions)
    if isinstance(dimensions, T5Dimensions):
        return T5Work(dimensions=dimensions, source=source)
    raise UsageError(f"{model} is not a T5, which --source is for: drop it")


def _of_bundle(folder: Path) -> Dimensions:
    # Not `read_bundle`, which would read all weights for their checksums.
    try:
        manifest = Manifest.from_json((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise InputOutputError(f"{folder / MANIFEST} cannot be read: export it again") from None
    if manifest.family not in _FROM_JSON:
        raise KvcastError(f"{folder} holds a {manifest.family} model, whose cost cannot be counted")
    return _FROM_JSON[manifest.family](manifest.dimensions)
