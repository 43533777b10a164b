"""T5s of published sizes with random weights, as Hugging Face folders: figures without a hub.

What a token costs does not depend on what the weights are. They are drawn as T5's authors begin
training (Mesh TensorFlow's initialisers, and transformers' `T5PreTrainedModel`), so that logits
are of ordinary size; the seed is fixed. Needs `safetensors`, and not transformers.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from kvcast.bench.command import require
from kvcast.bench.contender import made_beside, made_path
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
_FILES = 1
_SPECIAL = ("<pad>", "</s>", "<unk>")
_END = 1
_SELF, _CROSS, _FEED_FORWARD = "SelfAttention", "EncDecAttention", "DenseReluDense"


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
        require(("safetensors",))
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


def _tensors(dimensions: T5Dimensions, seed: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield every tensor under Hugging Face's name."""
    rng = np.random.default_rng(seed)

    def normal(weight: _Weight) -> NDArray[np.float32]:
        return rng.standard_normal(weight.shape, np.float32) * np.float32(weight.spread)

    width, modules = dimensions.width, _modules(dimensions)
    yield "shared.weight", normal(_Weight((dimensions.vocab_size, width), 1.0))
    for stack, layers, parts in (
        ("encoder", dimensions.encoder_layers, (_SELF, _FEED_FORWARD)),
        ("decoder", dimensions.decoder_layers, (_SELF, _CROSS, _FEED_FORWARD)),
    ):
        for i in range(layers):
            for at, part in enumerate(parts):
                place = f"{stack}.block.{i}.layer.{at}"
                yield f"{place}.layer_norm.weight", np.ones(width, np.float32)
                for name, weight in modules[part].items():
                    yield f"{place}.{part}.{name}.weight", normal(weight)
        bias = _Weight((dimensions.buckets, dimensions.heads), width**-0.5)
        name = f"{stack}.block.0.layer.0.{_SELF}.relative_attention_bias.weight"
        yield name, normal(bias)
        yield f"{stack}.final_layer_norm.weight", np.ones(width, np.float32)


@dataclass(frozen=True)
class _Weight:
    shape: tuple[int, int]
    spread: float


def _modules(dimensions: T5Dimensions) -> Mapping[str, Mapping[str, _Weight]]:
    """Return the matrices of each part of a layer, [out, in], and their standard deviations."""
    width, inner = dimensions.width, dimensions.inner
    mixed = dimensions.heads * dimensions.head_dim
    attention = {
        # Small, for T5 does not scale its scores.
        "q": _Weight((mixed, width), (width * dimensions.head_dim) ** -0.5),
        "k": _Weight((mixed, width), width**-0.5),
        "v": _Weight((mixed, width), width**-0.5),
        "o": _Weight((width, mixed), mixed**-0.5),
    }
    feed_forward = {
        "wi": _Weight((inner, width), width**-0.5),
        "wo": _Weight((width, inner), inner**-0.5),
    }
    return {_SELF: attention, _CROSS: attention, _FEED_FORWARD: feed_forward}
