"""What differs between the types of decoders that hear, in Hugging Face layout. Knows no type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.families.sound_encoder import SoundEncoder


@dataclass(frozen=True, kw_only=True)
class AudioType:
    """Properties of a model type.

    Attributes:
        decoder: the usual model type of its `text_config`.
        text: values of fields that its `text_config` may leave out, over the decoder's own.
        encoder: reads the encoder's dimensions from the outer fields.
        check: raises KvcastError for a folder that declares other features.
        prefixes: how names of the encoder's tensors begin, without what the whole is called.
        names: names of the encoder's tensors in files, by canonical name.
        renamed: names in other files of the type, as regular expressions with replacements.
        prepare: changes the encoder's tensors as they are read; takes a name for messages.
        prepare_text: changes the decoder's, by the encoder's dimensions.
        fixed: values that fields of its `text_config` count as, whatever they are.
        adapted: whether a folder may have an adapter that is a part of the model.
        lenient: whether files have tensors of the encoder that are no part of the model.

    """

    decoder: str
    text: Mapping[str, Any]
    encoder: Callable[[Fields], SoundEncoder]
    check: Callable[[Path, Any], None]
    prefixes: tuple[str, ...]
    names: Mapping[str, Sequence[str]]
    prepare: Callable[[dict[str, StoredTensor], Any, str], dict[str, StoredTensor]]
    prepare_text: Callable[[dict[str, StoredTensor], Any, str], dict[str, StoredTensor]] = (
        lambda tensors, _, __: tensors
    )
    renamed: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    adapted: bool = False
    lenient: bool = False
