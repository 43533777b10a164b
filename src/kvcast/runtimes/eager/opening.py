"""Eager runtimes by how they are driven. Knows no family."""

from collections.abc import Mapping
from typing import Any

from kvcast.families.base import Interface
from kvcast.families.table import family_with
from kvcast.runtimes.eager.decoder import EagerDecoderOnly
from kvcast.runtimes.eager.prefix import EagerPrefix
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder, Model

_RUNTIMES: Mapping[Interface, Any] = {
    "decoder-only": EagerDecoderOnly,
    "encoder-decoder": EagerEncoderDecoder,
    "prefix": EagerPrefix,
}


def eager_runtime(model: Model) -> Any:
    """Return a runtime that runs a model's programs as they are."""
    return _RUNTIMES[family_with(model.dimensions).interface](model)
