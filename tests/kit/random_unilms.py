"""transformers' models as UniLM generators: random ones, their tensors, and what they give."""

from typing import Any

import numpy as np
import torch
import transformers

from kit.dimensions import ROFORMER
from kvcast.families.unilm import UnilmDimensions
from kvcast.spec.rotary import Rotary

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
