"""The record of a model family in Hugging Face layout.

Knows no family and no file format.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import Checkpoint, StoredTensor


@dataclass(frozen=True, kw_only=True)
class HuggingFaceFamily:
    """A family's interpretation of config.json, tensor names and text files.

    Attributes:
        family: its class of dimensions.
        model_types: values of config.json's `model_type`.
        dimensions: reads a configuration alone; takes it and a name for it in messages.
        read: takes the folder, its configuration and its tensors by name.
        required: names of further files, each with advice for a folder without it.
        codes: the quant_method of model types whose weights may be in codes.
        renamed: gives the names that transformers' modules and adapters have for tensors, for those
            of files, where they differ.
        ignored: last part of the names of tensors that hold no weights.
        heads: names of heads that files leave out where an embedding is used for it, each with the
            names that the embedding may have; without what depends on the class that saved a model.
        adapted: model types that are whole only with the adapter in their folder, if there is one.

    """

    family: type[Any]
    model_types: Sequence[str]
    dimensions: Callable[[Mapping[str, Any], str], Any]
    read: Callable[[Path, Mapping[str, Any], Mapping[str, StoredTensor]], Checkpoint]
    required: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, str] = field(default_factory=dict)
    renamed: Callable[[str], str] = str
    ignored: str | None = None
    heads: Mapping[str, Sequence[str]] = field(default_factory=dict)
    adapted: frozenset[str] = frozenset()
