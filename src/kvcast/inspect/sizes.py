"""From what a user calls a model to the count of its work.

A bundle says its dimensions in its manifest, a checkpoint's folder in its configuration: where one
of them serves, weights need not be there. Knows no format.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import MANIFEST, Manifest, is_bundle
from kvcast.checkpoints.source import locate, read_dimensions
from kvcast.errors import InputOutputError, KvcastError
from kvcast.inspect.work import Counted, DecoderWork, WhisperWork
from kvcast.spec.decoder import DecoderDimensions
from kvcast.spec.whisper import WhisperDimensions

_COUNTED: Mapping[type, Callable[..., Counted]] = {
    WhisperDimensions: WhisperWork,
    DecoderDimensions: DecoderWork,
}
_FROM_JSON: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "whisper": WhisperDimensions.from_json,
    "decoder": DecoderDimensions.from_json,
}


def counted(model: str) -> Counted:
    """Return the count of a bundle, a checkpoint, a folder with just its configuration, a hub id.

    Raises KvcastError with one line; InputMissingError where nothing has that name.
    """
    located = locate(model)
    if is_bundle(located):
        return _of_bundle(located)
    dimensions = read_dimensions(located)
    return _COUNTED[type(dimensions)](dimensions=dimensions)


def _of_bundle(folder: Path) -> Counted:
    # Not `read_bundle`, which would read all weights for their checksums.
    try:
        manifest = Manifest.from_json((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise InputOutputError(f"{folder / MANIFEST} cannot be read: export it again") from None
    if manifest.family not in _FROM_JSON:
        raise KvcastError(f"{folder} holds a {manifest.family} model, whose cost is not counted")
    dimensions = _FROM_JSON[manifest.family](manifest.dimensions)
    return _COUNTED[type(dimensions)](dimensions=dimensions)
