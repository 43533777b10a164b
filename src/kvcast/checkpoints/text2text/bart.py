"""Interprets BART and its relatives in Hugging Face layout: config.json, tensor names.

Defaults are transformers'. Its model types differ in the place of norms and in position embeddings:
each is a row of a table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import Checkpoint, StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_text import START, HuggingFaceFamily, with_start_token
from kvcast.checkpoints.source_text import read_text
from kvcast.checkpoints.tensor_names import drop_tied, fill_evenly, of_modules, same
from kvcast.errors import KvcastError
from kvcast.families.bart import BartDimensions
from kvcast.spec.sizes import MOST_LAYERS

# Few enough for a table that is computed.
_MOST_WAVES = 1 << 16
_MOST_TOKENS = 1 << 24
_COMMON: Mapping[str, Any] = {
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "d_model": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
}


def _marian_waves(
    positions: int,
    width: int,
    padding: int,  # noqa: ARG001
) -> NDArray[np.float32]:
    """Sines and then cosines [positions, width], as in the Transformer's paper."""
    frequencies = 10000.0 ** (-2 * np.arange((width + 1) // 2) / width)
    angles = np.arange(positions)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], 1)[:, :width].astype(np.float32)


def _fairseq_waves(positions: int, width: int, padding: int) -> NDArray[np.float32]:
    """Return `tensor2tensor_waves` of positions that begin after the padding token's id."""
    return tensor2tensor_waves(positions, width, padding + 1)


def tensor2tensor_waves(positions: int, width: int, first: int = 0) -> NDArray[np.float32]:
    """Sines and then cosines [positions, width], as in tensor2tensor and Marian, in fp32."""
    half = width // 2
    step = np.float32(np.log(10000.0) / max(1, half - 1))
    frequencies = np.exp(np.arange(half, dtype=np.float32) * -step)
    angles = np.arange(first, first + positions, dtype=np.float32)[:, None] * frequencies
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return np.pad(waves, ((0, 0), (0, width % 2)))


@dataclass(frozen=True, kw_only=True)
class _Kind:
    defaults: Mapping[str, Any]
    tokenizer: str  # its kind in text.json, where there is no tokenizer.json
    norms: Sequence[str] = ()
    # computes a table [positions, width], given the token that pads; None where it is learned
    waves: Callable[[int, int, int], NDArray[np.float32]] | None = None
    skipped: int = 0  # rows at the beginning of a learned table that no position has


_KINDS: Mapping[str, _Kind] = {
    "bart": _Kind(
        tokenizer="byte-level",
        defaults={
            "vocab_size": 50265,
            "decoder_start_token_id": 2,
            "eos_token_id": 2,
            "forced_eos_token_id": 2,
        },
        norms=("embedding_norm",),
        skipped=2,
    ),
    "marian": _Kind(
        tokenizer="marian",
        defaults={
            "vocab_size": 58101,
            "decoder_start_token_id": 58100,
            "eos_token_id": 0,
            "forced_eos_token_id": 0,
        },
        waves=_marian_waves,
    ),
    "mbart": _Kind(
        tokenizer="mbart",
        defaults={
            "vocab_size": 50265,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "forced_eos_token_id": 2,
        },
        norms=("norm_first", "embedding_norm", "final_norm"),
        skipped=2,
    ),
    "pegasus": _Kind(
        tokenizer="pegasus",
        defaults={
            "vocab_size": 50265,
            "decoder_start_token_id": 0,
            "eos_token_id": 1,
            "forced_eos_token_id": 1,
        },
        norms=("norm_first", "final_norm"),
        waves=_marian_waves,
    ),
    "m2m_100": _Kind(
        tokenizer="m2m100",
        defaults={
            "vocab_size": 128112,
            "pad_token_id": 1,
            "decoder_start_token_id": 2,
            "eos_token_id": 2,
            "activation_function": "relu",
            "scale_embedding": True,
        },
        norms=("norm_first", "final_norm"),
        waves=_fairseq_waves,
    ),
    "blenderbot": _Kind(
        tokenizer="blenderbot",
        defaults={
            "vocab_size": 8008,
            "max_position_embeddings": 128,
            "encoder_layers": 2,
            "encoder_ffn_dim": 10240,
            "encoder_attention_heads": 32,
            "decoder_layers": 24,
            "decoder_ffn_dim": 10240,
            "decoder_attention_heads": 32,
            "d_model": 2560,
            "decoder_start_token_id": 1,
            "eos_token_id": 2,
            "forced_eos_token_id": 2,
            "encoder_no_repeat_ngram_size": 3,
        },
        norms=("norm_first", "final_norm"),
    ),
    "blenderbot-small": _Kind(
        tokenizer="blenderbot-small",
        defaults={
            "vocab_size": 50265,
            "max_position_embeddings": 512,
            "encoder_layers": 8,
            "encoder_ffn_dim": 2048,
            "decoder_layers": 8,
            "decoder_ffn_dim": 2048,
            "d_model": 512,
            "decoder_start_token_id": 1,
            "eos_token_id": 2,
            "forced_eos_token_id": 2,
        },
        norms=("embedding_norm", "late_positions"),
    ),
}

_SHARED, _HEAD = "shared.weight", "lm_head.weight"
_OWN = {stack: f"{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")}
_POSITIONS = {stack: f"{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}
_BIAS = "final_logits_bias"


def _layer_names(stack: str, attentions: Mapping[str, str]) -> dict[str, Sequence[str]]:
    layer = f"{stack}.layers.{{i}}"
    modules: dict[str, Sequence[str]] = {
        f"{layer}.feed_forward_norm": [f"{layer}.final_layer_norm"],
        f"{layer}.feed_forward.up": [f"{layer}.fc1"],
        f"{layer}.feed_forward.down": [f"{layer}.fc2"],
        f"{stack}.embedding_norm": [f"{stack}.layernorm_embedding"],
        f"{stack}.norm": [f"{stack}.layer_norm"],
    }
    for theirs, ours in attentions.items():
        module, name = f"{layer}.{theirs}", f"{layer}.{ours}"
        modules |= {
            f"{name}_norm": [f"{module}_layer_norm"],
            f"{name}.qkv": [f"{module}.{x}_proj" for x in "qkv"],
            f"{name}.query": [f"{module}.q_proj"],
            f"{name}.key_value": [f"{module}.{x}_proj" for x in "kv"],
            f"{name}.out": [f"{module}.out_proj"],
        }
    return modules


NAMES: Mapping[str, Sequence[str]] = {
    "embedding.weight": [_SHARED],
    "source_embedding.weight": [_OWN["encoder"]],
    "head.weight": [_HEAD],
    "embedding.bias": [_BIAS],
    "head.bias": [_BIAS],
    **{f"{stack}.positions": [name] for stack, name in _POSITIONS.items()},
    **of_modules(_layer_names("encoder", {"self_attn": "self_attention"})),
    **of_modules(
        _layer_names("decoder", {"self_attn": "self_attention", "encoder_attn": "cross_attention"})
    ),
}


def read_bart(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    kind = _KINDS[config["model_type"]]
    config = with_start_token(folder, config)
    dimensions = bart_dimensions(config, str(folder / "config.json"))
    tensors = _own_tensors(stored, dimensions, str(folder))
    tensors |= _tables(tensors, dimensions, kind, _padding(folder, config))
    # Configurations are often wrong about the head, so the weights decide.
    dimensions = replace(dimensions, tied=_HEAD not in tensors, head_bias=_BIAS in tensors)
    layers = f"{dimensions.encoder_layers} and {dimensions.decoder_layers} layers"
    return Checkpoint(
        dimensions=dimensions,
        tensors=fill_evenly(
            dimensions,
            NAMES,
            tensors,
            str(folder),
            f"a {dimensions.architecture} model of {layers}",
            lenient=True,
        ),
        text=read_text(folder, {**kind.defaults, **config}, kind.tokenizer),
        source=f"Hugging Face folder {folder}",
    )


def bart_dimensions(config: Mapping[str, Any], label: str) -> BartDimensions:
    """Read a configuration, which does not describe the head's bias."""
    model_type = config["model_type"]
    kind = _KINDS[model_type]
    fields = Fields(values=config, label=label).over({**_COMMON, **kind.defaults})
    width, vocab = fields.whole("d_model"), fields.whole("vocab_size")
    shares = fields.flag("share_encoder_decoder_embeddings")
    most = {} if kind.waves is None else {"most": _MOST_WAVES}
    positions = fields.whole("max_position_embeddings", **most)
    return fields.make(
        BartDimensions,
        architecture=model_type,
        vocab_size=vocab if shares else fields.whole("decoder_vocab_size", vocab),
        source_vocab_size=None if shares else vocab,
        width=width,
        encoder_inner=fields.whole("encoder_ffn_dim"),
        decoder_inner=fields.whole("decoder_ffn_dim"),
        encoder_heads=fields.whole("encoder_attention_heads"),
        decoder_heads=fields.whole("decoder_attention_heads"),
        encoder_layers=fields.whole("encoder_layers", most=MOST_LAYERS),
        decoder_layers=fields.whole("decoder_layers", most=MOST_LAYERS),
        source_positions=positions,
        target_positions=positions,
        # As in transformers, whose mBARTs name none.
        start_token=fields.whole(START, fields.values.get("bos_token_id"), 0),
        activation=fields.activation("activation_function"),
        embedding_scale=width**0.5 if fields.flag("scale_embedding") else 1.0,
        **dict.fromkeys(kind.norms, True),
    )


def _padding(folder: Path, config: Mapping[str, Any]) -> int:
    defaults = {"pad_token_id": 0, **_KINDS[config["model_type"]].defaults}
    fields = Fields(values=config, label=str(folder / "config.json"))
    return fields.whole("pad_token_id", defaults["pad_token_id"], least=0, most=_MOST_TOKENS)


def _own_tensors(
    stored: Mapping[str, StoredTensor], dimensions: BartDimensions, label: str
) -> dict[str, StoredTensor]:
    """By the names in `NAMES`, without copies of the embedding."""
    own = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    copied = [_OWN["decoder"]]
    if dimensions.source_vocab_size is None:
        copied.append(_OWN["encoder"])
    else:
        own.pop(_SHARED, None)
    for name in copied:
        copy = own.pop(name, None)
        if copy is not None and not same(copy, own.setdefault(_SHARED, copy)):
            raise KvcastError(f"{label}: tensor {name} differs from {_SHARED}, which it should be")
    drop_tied(own, _HEAD, _SHARED)
    if _BIAS in own:
        bias = own.pop(_BIAS)
        if bias.shape == (1, dimensions.vocab_size) and bias.read().any():
            own[_BIAS] = _reshape(bias, bias.shape[1:], lambda whole: whole[0])
        elif bias.shape != (1, dimensions.vocab_size):
            raise KvcastError(
                f"{label}: tensor {_BIAS} has shape {list(bias.shape)}, but the configuration asks "
                f"for {[1, dimensions.vocab_size]}"
            )
    return own


def _tables(
    stored: Mapping[str, StoredTensor], dimensions: BartDimensions, kind: _Kind, padding: int
) -> dict[str, StoredTensor]:
    """Position tables: learned without unused rows, or sinusoidal, stored or computed."""
    shape = (dimensions.source_positions, dimensions.width)
    tables = {}
    for name in _POSITIONS.values():
        if name in stored:
            table = stored[name]
            rest = (max(0, table.shape[0] - kind.skipped), *table.shape[1:])
            tables[name] = _reshape(table, rest, lambda whole: whole[kind.skipped :])
        elif (waves := kind.waves) is not None:
            read = partial(waves, *shape, padding)
            tables[name] = StoredTensor(shape=shape, read=read)
    return tables


def _reshape(
    tensor: StoredTensor, shape: tuple[int, ...], change: Callable[[NDArray[Any]], NDArray[Any]]
) -> StoredTensor:
    return replace(tensor, shape=shape, read=lambda: change(tensor.read()), blocks=None, rows=None)


BART = HuggingFaceFamily(
    family=BartDimensions,
    model_types=tuple(_KINDS),
    dimensions=bart_dimensions,
    read=read_bart,
    heads={_HEAD: (f"model.{_SHARED}", _SHARED, f"model.{_OWN['decoder']}", _OWN["decoder"])},
)
