"""Models of transformers, random or with the packaged weights, and their canonical tensors.

Dimensions and tensors are taken from the modules themselves, independently of any reader.
"""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import tokenizers
from kit.dimensions import ROFORMER
from kvcast.checkpoints.base import Checkpoint
from kvcast.families.t5 import T5Dimensions
from kvcast.families.unilm import UnilmDimensions
from kvcast.spec.position_encodings import Rotary
from kvcast_bench.writing.huggingface import transformers_tensors
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors


def demo_in_transformers(checkpoint: Checkpoint) -> WhisperForConditionalGeneration:
    """Return the packaged model as transformers' module, in fp16 as stored."""
    config = WhisperConfig(
        vocab_size=51864,
        num_mel_bins=80,
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        pad_token_id=50256,
        bos_token_id=50256,
        eos_token_id=50256,
    )
    model = WhisperForConditionalGeneration(config).half()
    state = {
        f"model.{name}": torch.from_numpy(np.array(tensor))
        for name, tensor in transformers_tensors(checkpoint.tensors)
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["proj_out.weight"]
    assert unexpected == []
    model.tie_weights()
    return model


_SIZES = {
    "vocab_size": 160,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_heads": 4,
    "num_layers": 2,
    "decoder_start_token_id": 0,
}
_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
# ByT5's tokens are bytes and special ones; in the last case, heads * d_kv is not d_model.
SETTINGS: dict[str, dict[str, Any]] = {
    "T5_10": {},
    "T5_11": _GATED,
    "MT5": _GATED | {"num_decoder_layers": 3},
    "BYT5": _GATED | {"vocab_size": 384, "num_layers": 3, "num_decoder_layers": 1},
    "UMT5": {"feed_forward_proj": "gated-gelu", "num_decoder_layers": 3},
    "NARROW": {
        "num_heads": 3,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 16,
        "feed_forward_proj": "gated-silu",
        "layer_norm_epsilon": 1e-5,
        "decoder_start_token_id": 3,
    },
}
_CLASSES = {
    "MT5": (MT5Config, MT5ForConditionalGeneration),
    "UMT5": (UMT5Config, UMT5ForConditionalGeneration),
}
_ACTIVATIONS = {"relu": "relu", "gelu_new": "gelu_tanh", "gelu": "gelu", "silu": "silu"}
_PIECES = ("▁the", "▁a", "▁and", "▁of", "ing", "er", "the", "an", "in", "on", "▁to", "▁is")


def random_t5(name: str, seed: int = 0, **settings: Any) -> PreTrainedModel:
    """One of SETTINGS, every weight random and large enough to move the logits."""
    config_of, model_of = _CLASSES.get(name, (T5Config, T5ForConditionalGeneration))
    wanted = _SIZES | SETTINGS[name] | settings
    torch.manual_seed(seed)
    model = model_of(config_of(**wanted)).eval()
    if wanted.get("tie_word_embeddings") is False:
        # transformers 5 ties whatever the configuration says, unless a checkpoint has both.
        model.lm_head.weight = torch.nn.Parameter(model.shared.weight.detach().clone())
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "layer_norm" in path:
                parameter.normal_(1, 0.2)
            elif "shared" in path or "relative_attention_bias" in path:
                parameter.normal_()
            else:
                parameter.normal_(0, 0.2)
    return model


def t5_tensors(model: PreTrainedModel) -> tuple[T5Dimensions, dict[str, NDArray[np.float32]]]:
    """Dimensions and canonical tensors of a T5, by hand."""
    config = model.config
    tied = model.lm_head.weight is model.shared.weight
    layered = config.model_type == "umt5"
    scaled = getattr(config, "scale_decoder_outputs", layered)
    dimensions = T5Dimensions(
        architecture=config.model_type,
        vocab_size=config.vocab_size,
        width=config.d_model,
        inner=config.d_ff,
        heads=config.num_heads,
        head_dim=config.d_kv,
        encoder_layers=config.num_layers,
        decoder_layers=config.num_decoder_layers,
        buckets=config.relative_attention_num_buckets,
        max_distance=config.relative_attention_max_distance,
        activation=_ACTIVATIONS[config.dense_act_fn],
        gated=config.is_gated_act,
        layer_bias=layered,
        tied=tied,
        logit_scale=config.d_model**-0.5 if scaled else 1.0,
        norm_eps=config.layer_norm_epsilon,
        start_token=config.decoder_start_token_id,
    )
    ours = {"embedding.weight": model.shared.weight}
    if not tied:
        ours["head.weight"] = model.lm_head.weight
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i, block in enumerate(stack.block if layered else stack.block[:1]):
            table = f"{side}.layers.{i}" if layered else side
            bias = block.layer[0].SelfAttention.relative_attention_bias
            ours[f"{table}.bias.weight"] = bias.weight
        ours[f"{side}.norm.weight"] = stack.final_layer_norm.weight
        for i, block in enumerate(stack.block):
            layer = _layer_tensors(block)
            ours |= {f"{side}.layers.{i}.{name}": tensor for name, tensor in layer.items()}
    return dimensions, {name: tensor.detach().float().numpy() for name, tensor in ours.items()}


def _layer_tensors(block: torch.nn.Module) -> dict[str, torch.Tensor]:
    own, feed = block.layer[0], block.layer[-1]
    attention, dense = own.SelfAttention, feed.DenseReluDense
    weights = {
        "self_attention_norm": own.layer_norm.weight,
        "self_attention.qkv": torch.cat(
            [attention.q.weight, attention.k.weight, attention.v.weight]
        ),
        "self_attention.out": attention.o.weight,
        "feed_forward_norm": feed.layer_norm.weight,
        "feed_forward.down": dense.wo.weight,
    }
    if hasattr(dense, "wi"):
        weights["feed_forward.up"] = dense.wi.weight
    else:
        weights["feed_forward.gate_up"] = torch.cat([dense.wi_0.weight, dense.wi_1.weight])
    if len(block.layer) == 3:
        cross = block.layer[1].EncDecAttention
        weights |= {
            "cross_attention_norm": block.layer[1].layer_norm.weight,
            "cross_attention.query": cross.q.weight,
            "cross_attention.key_value": torch.cat([cross.k.weight, cross.v.weight]),
            "cross_attention.out": cross.o.weight,
        }
    return {f"{name}.weight": tensor for name, tensor in weights.items()}


def tiny_unigram() -> tokenizers.Tokenizer:
    """Letters, digits, marks and a few longer pieces, as a T5's tokenizer.json has them."""
    single = ["▁", *string.ascii_letters, *string.digits, *".,:;-'!?/"]
    scores = [(piece, -4.0) for piece in _PIECES] + [(piece, -8.0) for piece in single]
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    tokenizer = tokenizers.Tokenizer(models.Unigram([*special, *scores], unk_id=2))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_id_1>", "<extra_id_0>"])
    return tokenizer


def save_t5(model: PreTrainedModel, folder: Path, byt5: bool = False, **options: Any) -> Path:
    """Save a whole Hugging Face folder: configuration, safetensors, and the tokenizer's files."""
    model.save_pretrained(folder, **options)
    settings = {
        "tokenizer_class": "ByT5Tokenizer" if byt5 else "T5TokenizerFast",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "extra_ids": 125 if byt5 else 2,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if not byt5:
        tiny_unigram().save(str(folder / "tokenizer.json"))
    return folder


VOCAB = ROFORMER.vocab_size

_PARTS = {
    "roformer": {
        "embeddings.word_embeddings.weight": "embedding.weight",
        "embeddings.token_type_embeddings.weight": "segments.weight",
        "embeddings.position_embeddings.weight": "positions.weight",
        "embeddings.LayerNorm": "embedding_norm",
        "embeddings_project": "projection",
    },
    "layer": {
        "attention.output.dense": "attention.out",
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "feed_forward.up",
        "output.dense": "feed_forward.down",
        "output.LayerNorm": "feed_forward_norm",
    },
    "cls.predictions": {
        "bias": "head.bias",
        "transform.dense": "head.transform",
        "transform.LayerNorm": "head.norm",
    },
}


def transformers_model(kind: str, **settings: Any) -> Any:
    """A masked-LM model of transformers, "roformer" or "bert", with random weights."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 80,
        "max_position_embeddings": 96,
    }
    config = transformers.AutoConfig.for_model(
        kind, **{**sizes, **settings}, attn_implementation="eager"
    )
    model = transformers.AutoModelForMaskedLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(float("LayerNorm.weight" in name), 0.15)
    return model


def dimensions_of(model: Any) -> UnilmDimensions:
    """The dimensions of a model of transformers, with a pooler."""
    config = model.config
    is_rotary = config.model_type == "roformer"
    return UnilmDimensions(
        architecture=config.model_type,
        vocab_size=config.vocab_size,
        segments=config.type_vocab_size,
        width=config.hidden_size,
        embedding_width=config.embedding_size if is_rotary else config.hidden_size,
        inner=config.intermediate_size,
        heads=config.num_attention_heads,
        layers=config.num_hidden_layers,
        max_positions=config.max_position_embeddings,
        rotary=Rotary(base=10000.0) if is_rotary else None,
        activation={"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}[config.hidden_act],
        norm_eps=config.layer_norm_eps,
        pooled=True,
    )


def tensors_of(model: Any) -> dict[str, np.ndarray]:
    """The canonical tensors of a model of transformers, and a random pooler."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    kind, config = model.config.model_type, model.config
    tables = {kind: _PARTS["roformer"], "cls.predictions": _PARTS["cls.predictions"]}
    tensors = {}
    for i in range(config.num_hidden_layers):
        tables[f"{kind}.encoder.layer.{i}"] = {
            theirs: f"layers.{i}.{ours}" for theirs, ours in _PARTS["layer"].items()
        }
        for part in ("weight", "bias"):
            prefix = f"{kind}.encoder.layer.{i}.attention.self"
            rows = [state[f"{prefix}.{name}.{part}"] for name in ("query", "key", "value")]
            if kind == "roformer":
                rows[:2] = (halves(matrix, config.num_attention_heads) for matrix in rows[:2])
            tensors[f"layers.{i}.attention.qkv.{part}"] = np.concatenate(rows)
    for prefix, table in tables.items():
        for theirs, ours in table.items():
            for part in ("", ".weight", ".bias"):
                if f"{prefix}.{theirs}{part}" in state:
                    tensors[ours + part] = state[f"{prefix}.{theirs}{part}"]
    generator = np.random.default_rng(0)
    width = config.hidden_size
    pooler = {"pooler.weight": (width, width), "pooler.bias": (width,)}
    return tensors | {name: generator.normal(0, 0.2, shape) for name, shape in pooler.items()}


def halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows of queries or keys from rotary pairs of neighbours to pairs in halves."""
    per_head = rows.reshape(heads, -1, *rows.shape[1:])
    return np.concatenate([per_head[:, 0::2], per_head[:, 1::2]], axis=1).reshape(rows.shape)


@torch.no_grad()
def oracle_run(model: Any, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits [s + t, vocab] and hidden states [s + t, width] in transformers, all at once."""
    tokens = torch.from_numpy(np.concatenate([source, target]))[None]
    count = tokens.shape[1]
    mask = torch.full((1, 1, count, count), torch.finfo(torch.float32).min)
    for query in range(count):
        mask[..., query, : max(query + 1, len(source))] = 0
    segments = (torch.arange(count) >= len(source)).long()[None]
    result = model(tokens, attention_mask=mask, token_type_ids=segments, output_hidden_states=True)
    return result.logits[0].numpy(), result.hidden_states[-1][0].numpy()
