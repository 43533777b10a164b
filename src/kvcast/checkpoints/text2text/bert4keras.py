"""Reads bert4keras's releases: a TensorFlow checkpoint, its configuration and vocab.txt.

RoFormer-Sim and SimBERT use the tensor names of Google's BERT, and T5-PEGASUS those of Google's
mT5. Defaults are those of bert4keras 0.10 (models.py, layers.py and backend.py), with which these
models were trained.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from kvcast.checkpoints.base import (
    Checkpoint,
    CheckpointReader,
    LazyTensors,
    StoredTensor,
    read_json_object,
    require_file,
)
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.tensor_names import (
    NameTable,
    apply_change,
    fill_evenly,
    halves_from_pairs,
    transpose,
)
from kvcast.checkpoints.text2text.tensorflow import TensorflowTensor, read_checkpoint, shard_files
from kvcast.checkpoints.text2text.word_pieces import BEGIN, END, token_ids
from kvcast.errors import KvcastError
from kvcast.families.t5 import T5Dimensions
from kvcast.families.unilm import UnilmDimensions
from kvcast.spec.position_encodings import Rotary
from kvcast.spec.sizes import MOST_LAYERS

_INDEX = "*.ckpt*.index"
_CONFIGS = ("bert_config.json", "t5_config.json", "config.json")
# Default number of positions: build_transformer_model's max_position.
_POSITIONS = 512
_ACTIVATIONS = {
    # backend.py: "gelu" is exact unless a program calls set_gelu, which the releases' do not.
    **{"gelu": "gelu", "gelu_erf": "gelu", "gelu_tanh": "gelu_tanh"},
    **{"relu": "relu", "swish": "silu"},
}
# Fields that change the model in ways that are not supported.
_OTHERS = (
    *("residual_attention_scores", "hierarchical_position", "shared_segment_embeddings"),
    "use_relative_position",
)

_BERT = "bert/encoder/layer_{i}"
_BERT_MODULES = {
    "projection": ("bert/encoder/embedding_hidden_mapping_in",),
    "pooler": ("bert/pooler/dense",),
    "head.transform": ("cls/predictions/transform/dense",),
    "layers.{i}.attention.qkv": tuple(
        f"{_BERT}/attention/self/{name}" for name in ("query", "key", "value")
    ),
    "layers.{i}.attention.out": (f"{_BERT}/attention/output/dense",),
    "layers.{i}.feed_forward.up": (f"{_BERT}/intermediate/dense",),
    "layers.{i}.feed_forward.down": (f"{_BERT}/output/dense",),
}
_BERT_NORMS = {
    "embedding_norm": "bert/embeddings/LayerNorm",
    "head.norm": "cls/predictions/transform/LayerNorm",
    "layers.{i}.attention_norm": f"{_BERT}/attention/output/LayerNorm",
    "layers.{i}.feed_forward_norm": f"{_BERT}/output/LayerNorm",
}
_WORDS = "bert/embeddings/word_embeddings"
_POSITION_EMBEDDINGS = "bert/embeddings/position_embeddings"
_POOLER = "bert/pooler/dense/kernel"
_BERT_NAMES: NameTable = {
    "embedding.weight": (_WORDS,),
    "segments.weight": ("bert/embeddings/token_type_embeddings",),
    "positions.weight": (_POSITION_EMBEDDINGS,),
    "head.bias": ("cls/predictions/output_bias",),
    **{
        f"{ours}.{leaf}": tuple(f"{module}/{theirs}" for module in modules)
        for ours, modules in _BERT_MODULES.items()
        for leaf, theirs in (("weight", "kernel"), ("bias", "bias"))
    },
    **{
        f"{ours}.{leaf}": (f"{module}/{theirs}",)
        for ours, module in _BERT_NORMS.items()
        for leaf, theirs in (("weight", "gamma"), ("bias", "beta"))
    },
}
_ROTATED = re.compile(r"/attention/self/(query|key)/(kernel|bias)$")


def _t5_layer(stack: str, feed_forward: int) -> dict[str, Sequence[str]]:
    ours, theirs = f"{stack}.layers.{{i}}", f"{stack}/block_{{i:03}}"
    dense = f"{theirs}/layer_{feed_forward:03}/DenseReluDense"
    return {
        f"{ours}.self_attention_norm.weight": (f"{theirs}/layer_000/rms_norm/scale",),
        f"{ours}.self_attention.qkv.weight": tuple(
            f"{theirs}/layer_000/SelfAttention/{name}" for name in "qkv"
        ),
        f"{ours}.self_attention.out.weight": (f"{theirs}/layer_000/SelfAttention/o",),
        f"{ours}.feed_forward_norm.weight": (f"{theirs}/layer_{feed_forward:03}/rms_norm/scale",),
        f"{ours}.feed_forward.gate_up.weight": (f"{dense}/wi_0/kernel", f"{dense}/wi_1/kernel"),
        f"{ours}.feed_forward.down.weight": (f"{dense}/wo/kernel",),
        f"{stack}.bias.weight": (
            f"{stack}/block_000/layer_000/SelfAttention/relative_attention_bias",
        ),
        f"{stack}.norm.weight": (f"{stack}/rms_norm/scale",),
    }


_SHARED = "shared/embedding"
_CROSS, _CROSS_LAYER = "decoder.layers.{i}.cross_attention", "decoder/block_{i:03}/layer_001"
_T5_NAMES: NameTable = {
    "embedding.weight": (_SHARED,),
    "head.weight": ("decoder/logits/kernel",),
    **_t5_layer("encoder", 1),
    **_t5_layer("decoder", 2),
    f"{_CROSS}_norm.weight": (f"{_CROSS_LAYER}/rms_norm/scale",),
    f"{_CROSS}.query.weight": (f"{_CROSS_LAYER}/EncDecAttention/q",),
    f"{_CROSS}.key_value.weight": tuple(f"{_CROSS_LAYER}/EncDecAttention/{x}" for x in "kv"),
    f"{_CROSS}.out.weight": (f"{_CROSS_LAYER}/EncDecAttention/o",),
}

# Tensors stored as [in, out] (tables of relative positions as [heads, buckets]).
_TRANSPOSED = ("/kernel", "/q", "/k", "/v", "/o", "/relative_attention_bias")
# Training state beside the weights (Adam's and Adafactor's moments), and BERT's other head.
_TRAINING = re.compile(r"(/adam_[mv]|_slot_[a-z]+)$|^cls/seq_relationship/")


def _unilm_dimensions(config: Fields, tensors: Mapping[str, TensorflowTensor]) -> UnilmDimensions:
    width = config.whole("hidden_size")
    return config.make(
        UnilmDimensions,
        architecture="bert" if _POSITION_EMBEDDINGS in tensors else "roformer",
        vocab_size=config.whole("vocab_size"),
        segments=config.whole("segment_vocab_size", config.whole("type_vocab_size", 2)),
        width=width,
        embedding_width=config.whole("embedding_size", width),
        inner=config.whole("intermediate_size"),
        heads=config.whole("num_attention_heads"),
        layers=config.whole("num_hidden_layers", most=MOST_LAYERS),
        max_positions=config.whole(
            "max_position", config.whole("max_position_embeddings", _POSITIONS)
        ),
        rotary=None if _POSITION_EMBEDDINGS in tensors else Rotary(base=10_000.0),
        activation=_activation(config, config.values.get("hidden_act")),
        # LayerNormalization's; bert4keras 0.11 gives a RoFormer Keras's 1e-7 instead.
        norm_eps=1e-12,
        pooled=_POOLER in tensors,
    )


def _t5_dimensions(config: Fields, start_token: int) -> T5Dimensions:
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    layers = config.whole("num_hidden_layers", most=MOST_LAYERS)
    match config.values.get("hidden_act"):
        case [gate, "linear"]:
            activation = _activation(config, gate)
        case _:
            raise config.error(
                'hidden_act must be ["gelu", "linear"] or the like: only gated T5 is supported'
            )
    return config.make(
        T5Dimensions,
        architecture="t5-pegasus",
        vocab_size=config.whole("vocab_size"),
        width=width,
        inner=config.whole("intermediate_size"),
        heads=heads,
        head_dim=config.whole("attention_head_size", max(width // heads, 1)),
        encoder_layers=layers,
        decoder_layers=layers,
        activation=activation,
        gated=True,
        tied=False,
        # T5_Decoder.apply_final_layers scales whether or not the head is tied.
        logit_scale=width**-0.5,
        norm_eps=1e-6,
        # T5_Decoder.compute_position_bias also adds one to cross-attention; later versions have a
        # switch for it.
        cross_bias=config.flag("cross_position_bias", True),
        start_token=start_token,
    )


def _activation(config: Fields, value: object) -> str:
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise config.error(f"hidden_act must be one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[value]


def _stored_tensors(
    tensors: Mapping[str, TensorflowTensor], prefixes: tuple[str, ...]
) -> dict[str, StoredTensor]:
    return {
        name: transpose(tensor.stored()) if name.endswith(_TRANSPOSED) else tensor.stored()
        for name, tensor in tensors.items()
        if name.startswith(prefixes) and not _TRAINING.search(name)
    }


def _unilm_tensors(
    dimensions: UnilmDimensions, tensors: Mapping[str, TensorflowTensor], label: str
) -> LazyTensors:
    stored = _stored_tensors(tensors, ("bert/", "cls/"))
    if dimensions.rotary is not None:
        halves = partial(halves_from_pairs, head_dim=dimensions.head_dim)
        stored |= {
            name: apply_change(tensor, halves)
            for name, tensor in stored.items()
            if _ROTATED.search(name)
        }
    return fill_evenly(dimensions, _BERT_NAMES, stored, label, _model(dimensions.layers))


def _t5_tensors(
    dimensions: T5Dimensions, tensors: Mapping[str, TensorflowTensor], label: str
) -> LazyTensors:
    stored = _stored_tensors(tensors, (_SHARED, "encoder/", "decoder/"))
    return fill_evenly(dimensions, _T5_NAMES, stored, label, _model(dimensions.encoder_layers))


def _model(layers: int) -> str:
    return f"a model of {layers} layers"


def _index(folder: Path) -> Path:
    indices = sorted(folder.glob(_INDEX))
    if len(indices) > 1:
        raise KvcastError(
            f"{folder} holds several checkpoints ({indices[0].name}, {indices[1].name}): keep one"
        )
    return indices[0]


def _config(folder: Path) -> Path:
    for name in _CONFIGS:
        if (folder / name).is_file():
            return folder / name
    return require_file(folder / _CONFIGS[0], "it gives the model's sizes: fetch it too")


def _vocabulary(folder: Path) -> Path:
    return require_file(folder / "vocab.txt", "it is the model's tokenizer: fetch it too")


def _token_ids(vocabulary: Path, vocab_size: int) -> Mapping[str, int]:
    ids = token_ids(vocabulary)
    if len(ids) > vocab_size:
        raise KvcastError(
            f"{vocabulary} has {len(ids)} tokens, but the configuration {vocab_size}: "
            "fetch both from the same model"
        )
    return ids


def _text(vocabulary: Path, end_token: int, words: bool) -> dict[str, bytes]:
    about = {"end_tokens": [end_token], "tokenizer": "bert", "lowercase": True, "words": words}
    return {"vocab.txt": vocabulary.read_bytes(), "text.json": json.dumps(about).encode()}


def _read(folder: Path) -> Checkpoint:
    path, index, vocabulary = _config(folder), _index(folder), _vocabulary(folder)
    config = Fields(values=read_json_object(path), label=str(path))
    for name in _OTHERS:
        if config.values.get(name):
            raise config.error(f"{name} is not supported")
    tensors = read_checkpoint(index)
    ids = _token_ids(vocabulary, config.whole("vocab_size"))
    source = f"bert4keras folder {folder}"
    if _SHARED in tensors:
        t5 = _t5_dimensions(config, ids[BEGIN])
        return Checkpoint(
            dimensions=t5,
            tensors=_t5_tensors(t5, tensors, str(index)),
            # Its tokenizer looks words of jieba's up first (the release's finetune.py).
            text=_text(vocabulary, ids[END], words=True),
            source=source,
        )
    if _WORDS not in tensors:
        raise KvcastError(f"{index} has neither {_WORDS} nor {_SHARED}: it is not a BERT or a T5")
    unilm = _unilm_dimensions(config, tensors)
    return Checkpoint(
        dimensions=unilm,
        tensors=_unilm_tensors(unilm, tensors, str(index)),
        text=_text(vocabulary, ids[END], words=False),
        source=source,
    )


def _detect(folder: Path) -> bool:
    if not any(folder.glob(_INDEX)):
        return False
    path = folder / _CONFIGS[-1]
    return not path.is_file() or "model_type" not in read_json_object(path)


READER = CheckpointReader(
    name="bert4keras (*.ckpt.index and its shards, bert_config.json or config.json, vocab.txt)",
    detect=_detect,
    files=lambda folder: [
        _config(folder),
        _vocabulary(folder),
        _index(folder),
        *shard_files(_index(folder)),
    ],
    read=_read,
    types={UnilmDimensions: ("bert", "roformer"), T5Dimensions: ("t5-pegasus",)},
)
