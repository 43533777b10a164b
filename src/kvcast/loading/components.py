"""Builds the parts of a model that its family's record names, and finds a model's dimensions.

torch, and everything that needs it, is imported inside functions: only exporting and the eager
runtime use it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import MANIFEST, Manifest, is_bundle
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.source import read_dimensions
from kvcast.errors import InputOutputError, KvcastError, UsageError
from kvcast.families.base import Family
from kvcast.families.table import family_with
from kvcast.spec.runtimes import imported


def programs_of(checkpoint: Checkpoint) -> Any:
    from kvcast.models.executor import TorchModel

    return TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)


def quantize_eager(programs: Any, quantize: str) -> None:
    from kvcast.runtimes.eager.quantize import quantize_matrices

    for program in programs.programs.values():
        for name in quantize_matrices(program, quantize):
            programs.weights.pop(name, None)  # or it would stay in memory


def special_tokens(checkpoint: Checkpoint) -> Mapping[str, Sequence[int]]:
    tokens: Mapping[str, Sequence[int]] = _tokenizer(
        checkpoint.dimensions, checkpoint.text
    ).special_tokens()
    return tokens


def model_of(runtime: Any, dimensions: Any, text: Mapping[str, bytes]) -> Any:
    model_class = imported(family_with(dimensions).model_class)
    return model_class(runtime, _tokenizer(dimensions, text), dimensions)


def _tokenizer(dimensions: Any, text: Mapping[str, bytes]) -> Any:
    return imported(family_with(dimensions).tokenizer)(text, dimensions)


def require_cache(name: str | Path, family: Family) -> None:
    """Raise UsageError for a model without a KV cache."""
    if family.interface == "encoder":
        raise UsageError(
            f"{name} is a {family.title.lower()}, which has no KV cache: kvcast {family.task}, "
            "kvcast serve and kvcast.load open it directly, with --runtime native or eager"
        )


def dimensions_of(path: Path) -> Any:
    """Read dimensions, without weights, of a model with a cache; KvcastError with one line."""
    if not is_bundle(path):
        dimensions = read_dimensions(path)
        require_cache(path, family_with(dimensions))
        return dimensions
    # Not `read_bundle`, which would read all weights for their checksums.
    try:
        manifest = Manifest.from_json((path / MANIFEST).read_text(encoding="utf-8"))
        _, dimensions = manifest.model()
    except (OSError, UnicodeDecodeError):
        raise InputOutputError(f"{path / MANIFEST} cannot be read: export it again") from None
    except KvcastError as error:
        raise type(error)(f"{path}: {error}") from None
    return dimensions
