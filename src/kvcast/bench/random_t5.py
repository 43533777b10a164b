"""T5s of published sizes with random weights, as Hugging Face folders: figures without a hub.

What a token costs does not depend on what the weights are. They are drawn as T5's authors begin
training (Mesh TensorFlow's initialisers, and transformers' `T5PreTrainedModel`), so that logits
are of ordinary size; the seed is fixed. Needs `safetensors`, and not transformers.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from kvcast.bench.models import made_beside, made_path
from kvcast.checkpoints.t5_huggingface import NAMES
from kvcast.checkpoints.t5_names import tensor_shapes
from kvcast.checkpoints.tables import take_apart
from kvcast.errors import UsageError
from kvcast.spec.t5 import T5Dimensions

_PREFIX = "random:"
_PUBLISHED = {
    "t5-small": T5Dimensions(
        architecture="t5",
        vocab_size=32128,
        width=512,
        inner=2048,
        heads=8,
        head_dim=64,
        encoder_layers=6,
        decoder_layers=6,
        logit_scale=512**-0.5,
    ),
}
RANDOM = tuple(_PREFIX + name for name in _PUBLISHED)
"""What such models are called."""

# Goes up when other files are written.
_FILES = 2
_SPECIAL = ("<pad>", "</s>", "<unk>")
_END = 1


def is_random(model: str) -> bool:
    """Tell whether a model's name asks for random weights."""
    return model.startswith(_PREFIX)


def random_folder(model: str) -> Path:
    """Return the folder of a model of RANDOM, made the first time; UsageError for any other."""
    if model not in RANDOM:
        raise UsageError(f"no sizes are known for {model}: random weights are {', '.join(RANDOM)}")
    name = model.removeprefix(_PREFIX)
    folder = made_path(f"random-{name}-{_FILES}")
    if not folder.is_dir():
        with made_beside(folder) as beside:
            write_t5(_PUBLISHED[name], beside)
    return folder


def write_t5(dimensions: T5Dimensions, folder: Path, seed: int = 0) -> None:
    """Make `folder`: a T5 1.0 (plain feed-forward, tied head) in fp32, of words t3, t4 and on."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **dict(zip(("pad_token", "eos_token", "unk_token"), _SPECIAL, strict=True)),
    }
    for name, fields in (("config", _config(dimensions)), ("tokenizer_config", settings)):
        (folder / f"{name}.json").write_text(json.dumps(fields), encoding="utf-8")
    _words(dimensions.vocab_size).save(str(folder / "tokenizer.json"))
    save_file(
        dict(_tensors(dimensions, seed)), folder / "model.safetensors", metadata={"format": "pt"}
    )


def _tensors(dimensions: T5Dimensions, seed: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield every tensor under Hugging Face's name."""
    rng = np.random.default_rng(seed)
    empty = {name: np.empty(s, np.float32) for name, s in tensor_shapes(dimensions).items()}
    for name, tensor in take_apart(empty, NAMES):
        if tensor.ndim == 1:
            yield name, np.ones(tensor.shape, np.float32)
            continue
        spread = np.float32(_spread(name, tensor.shape[1], dimensions))
        yield name, rng.standard_normal(tensor.shape, np.float32) * spread


def _spread(name: str, inputs: int, dimensions: T5Dimensions) -> float:
    """Return the standard deviation of a matrix [outputs, inputs], or of a table."""
    if name == "shared.weight":
        return 1.0
    if "relative_attention_bias" in name:
        return float(dimensions.width**-0.5)
    # Queries' are small, for T5 does not scale its scores.
    scaled = inputs * dimensions.head_dim if name.endswith(".q.weight") else inputs
    return float(scaled**-0.5)


def _config(dimensions: T5Dimensions) -> dict[str, Any]:
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "dtype": "float32",
        "vocab_size": dimensions.vocab_size,
        "d_model": dimensions.width,
        "d_kv": dimensions.head_dim,
        "d_ff": dimensions.inner,
        "num_heads": dimensions.heads,
        "num_layers": dimensions.encoder_layers,
        "num_decoder_layers": dimensions.decoder_layers,
        "relative_attention_num_buckets": dimensions.buckets,
        "relative_attention_max_distance": dimensions.max_distance,
        "layer_norm_epsilon": dimensions.norm_eps,
        "feed_forward_proj": "relu",
        "dropout_rate": 0.0,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": _END,
        "decoder_start_token_id": dimensions.start_token,
    }


def _words(count: int) -> Tokenizer:
    words = [*_SPECIAL, *(f"▁t{token}" for token in range(len(_SPECIAL), count))]
    ids = {word: token for token, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=_SPECIAL[2]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {_SPECIAL[_END]}", special_tokens=[(_SPECIAL[_END], _END)]
    )
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer
