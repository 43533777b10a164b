"""T5s of published sizes with random weights, as Hugging Face folders: figures without a hub.

What a token costs does not depend on what the weights are; the seed is fixed. Needs `safetensors`,
and not transformers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from kvcast.bench.hugging_face import write_folder
from kvcast.bench.models import made_once
from kvcast.checkpoints.t5_huggingface import NAMES, t5_dimensions
from kvcast.checkpoints.t5_names import tensor_shapes
from kvcast.checkpoints.tables import take_apart
from kvcast.errors import UsageError

_PREFIX = "random:"
# As a published config.json has them.
_PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "t5-small": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_heads": 8,
        "num_layers": 6,
        "num_decoder_layers": 6,
        "relative_attention_num_buckets": 32,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    },
}
RANDOM = tuple(_PREFIX + name for name in _PUBLISHED)
"""What such models are called."""

# Goes up when other files are written.
_FILES = 2
_SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def is_random(model: str) -> bool:
    """Tell whether a model's name asks for random weights."""
    return model.startswith(_PREFIX)


def random_folder(model: str) -> Path:
    """Return the folder of a model of RANDOM, made the first time; UsageError for any other."""
    if model not in RANDOM:
        raise UsageError(f"no sizes are known for {model}: random weights are {', '.join(RANDOM)}")
    name = model.removeprefix(_PREFIX)
    return made_once(f"random-{name}-{_FILES}", lambda folder: write_t5(_PUBLISHED[name], folder))


def write_t5(config: Mapping[str, Any], folder: Path, seed: int = 0) -> None:
    """Fill `folder` with a T5 1.0 (plain feed-forward, tied head) of words t3, t4 and on.

    Weights are drawn as T5's authors begin training (Mesh TensorFlow's initialisers, and
    transformers' `T5PreTrainedModel`), so that logits are of ordinary size.
    """
    dimensions = t5_dimensions(config, "config")
    rng, shapes = np.random.default_rng(seed), tensor_shapes(dimensions)
    empty = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}

    def drawn(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        # Queries' are small, for T5 does not scale its scores.
        scaled = shape[1] * (dimensions.head_dim if name.endswith(".q.weight") else 1)
        spread = 1.0 if name == "shared.weight" else scaled**-0.5
        if "relative_attention_bias" in name:
            spread = dimensions.width**-0.5
        return rng.standard_normal(shape, np.float32) * np.float32(spread)

    write_folder(
        folder,
        ((name, drawn(name, tensor.shape)) for name, tensor in take_apart(empty, NAMES)),
        config=config,
        tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **_SPECIAL},
        tokenizer=json.loads(_words(dimensions.vocab_size).to_str()),
    )


def _words(count: int) -> Tokenizer:
    special = list(_SPECIAL.values())
    words = [*special, *(f"▁t{token}" for token in range(len(special), count))]
    ids = {word: token for token, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=_SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    end = _SPECIAL["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, ids[end])]
    )
    tokenizer.add_special_tokens(special)
    return tokenizer
