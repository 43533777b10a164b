"""T5s of published sizes with random weights, as Hugging Face folders: no hub is needed.

A token's cost does not depend on the weights' values; the seed is fixed. Needs `safetensors`
but not transformers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.tensor_names import take_apart
from kvcast.checkpoints.text2text.t5 import NAMES, t5_dimensions
from kvcast.errors import UsageError
from kvcast.families.t5 import T5
from kvcast_bench.models import made_once
from kvcast_bench.writing.huggingface import write_folder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

PREFIX = "random:"
# Fields of a published config.json that differ from transformers' defaults, T5-small's sizes.
_PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    f"{PREFIX}t5-small": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "decoder_start_token_id": 0,
    },
}
RANDOM = tuple(_PUBLISHED)
"""The beginning of such models' names."""

# Raised when the files are written differently.
_FILES = 3
_SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def random_folder(model: str) -> Path:
    """Return the folder of a model of RANDOM, made the first time; UsageError for any other."""
    if model not in RANDOM:
        raise UsageError(f"no sizes are known for {model}: random weights are {', '.join(RANDOM)}")
    name = f"{model.replace(':', '-')}-{_FILES}"
    return made_once(name, lambda folder: write_t5(_PUBLISHED[model], folder))


def write_t5(config: Mapping[str, Any], folder: Path, seed: int = 0) -> None:
    """Fill `folder` with a T5 1.0 (plain feed-forward, tied head) of words t3, t4 and on.

    Weights are drawn as T5's authors begin training (Mesh TensorFlow's initialisers, and
    transformers' `T5PreTrainedModel`), so that logits are of ordinary size.
    """
    dimensions, rng = t5_dimensions(config, "config"), np.random.default_rng(seed)
    shapes = T5.tensor_shapes(dimensions)
    empty = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}

    def drawn(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        spread = float(shape[1]) ** -0.5
        if name == "shared.weight":
            spread = 1.0
        elif "relative_attention_bias" in name:
            spread = dimensions.width**-0.5
        elif name.endswith(".q.weight"):  # small, for T5 does not scale its scores
            spread *= dimensions.head_dim**-0.5
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
