"""A Whisper's tensors under the names of other programs: transformers' and openai-whisper's.

whisper.cpp shares the latter. Knows nothing of what becomes of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from kvcast.checkpoints.huggingface import NAMES
from kvcast.checkpoints.tables import take_apart
from kvcast.errors import KvcastError

Tensors = Iterator[tuple[str, NDArray[Any]]]

# From transformers' names to openai-whisper's; the first that fits comes first.
_OPENAI = (
    ("encoder.embed_positions.weight", "encoder.positional_embedding"),
    ("decoder.embed_positions.weight", "decoder.positional_embedding"),
    ("embed_tokens", "token_embedding"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("layers.", "blocks."),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("encoder_attn.", "cross_attn."),
    ("self_attn_layer_norm", "attn_ln"),
    ("self_attn.", "attn."),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("final_layer_norm", "mlp_ln"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
)


def transformers_tensors(tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    """Yield every tensor under the name in transformers' WhisperModel, but keys' biases of zero.

    Raises KvcastError if one is not.
    """
    for name, tensor in take_apart(tensors, NAMES):
        if not name.endswith("k_proj.bias"):
            yield name, tensor
        elif tensor.any():
            raise KvcastError(f"{name}: a bias of keys, which no other Whisper knows")


def openai_tensors(tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    """Yield every tensor under openai-whisper's name, as `transformers_tensors` does."""
    for name, tensor in transformers_tensors(tensors):
        theirs = name
        for part, other in _OPENAI:
            theirs = theirs.replace(part, other)
        yield theirs, tensor
