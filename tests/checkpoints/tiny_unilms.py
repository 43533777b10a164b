"""Tiny random RoFormers and BERTs of transformers, and their tensors by canonical names."""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

SIZES = {
    "vocab_size": 19,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
MODELS = {
    "roformer": transformers.RoFormerForMaskedLM,
    "roformer, narrow embedding": transformers.RoFormerForMaskedLM,
    "bert": transformers.BertForMaskedLM,
    "bert, pooled": transformers.BertForPreTraining,
}
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", "##a", "##b", "今", "天")


def random_unilm(name, seed=0, **settings):
    """One of MODELS with every parameter random, norms and biases too."""
    torch.manual_seed(seed)
    narrow = {"embedding_size": 10, "hidden_act": "relu"} if "narrow" in name else {}
    kind = MODELS[name]
    model = kind(kind.config_class(**{**SIZES, **narrow, **settings})).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "embed_positions" not in path:
                parameter.normal_()
    return model


def save_unilm(model, folder: Path, tokens=TOKENS, **options) -> Path:
    """Save a model beside its vocabulary, which is `tokens`."""
    model.save_pretrained(folder, **options)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


def tokenizer_json(tokens=TOKENS, **fields) -> bytes:
    """The parts of transformers' tokenizer.json that are read; `fields` replaces them."""
    content = {
        "added_tokens": [{"id": i, "content": token} for i, token in enumerate(tokens[:5])],
        "model": {"type": "WordPiece", "vocab": {token: i for i, token in enumerate(tokens)}},
    }
    return json.dumps({**content, **fields}).encode()


def tensors_by_our_names(model):
    """Rearrange the module's tensors; rows of rotated projections are moved one by one."""
    base, head = model.base_model, model.cls.predictions
    embeddings = base.embeddings
    modules = {
        "embedding_norm": embeddings.LayerNorm,
        "head.transform": head.transform.dense,
        "head.norm": head.transform.LayerNorm,
    }
    if hasattr(base, "embeddings_project"):
        modules["projection"] = base.embeddings_project
    if getattr(base, "pooler", None) is not None:
        modules["pooler"] = base.pooler.dense
    ours = {
        "embedding.weight": embeddings.word_embeddings.weight,
        "segments.weight": embeddings.token_type_embeddings.weight,
        "head.bias": head.bias,
    }
    rotated = hasattr(base.encoder, "embed_positions")
    if not rotated:
        ours["positions.weight"] = embeddings.position_embeddings.weight
    for i, layer in enumerate(base.encoder.layer):
        attention = layer.attention.self
        modules |= {
            f"layers.{i}.attention.out": layer.attention.output.dense,
            f"layers.{i}.attention_norm": layer.attention.output.LayerNorm,
            f"layers.{i}.feed_forward.up": layer.intermediate.dense,
            f"layers.{i}.feed_forward.down": layer.output.dense,
            f"layers.{i}.feed_forward_norm": layer.output.LayerNorm,
        }
        order = _halves(model.config) if rotated else slice(None)
        for leaf in ("weight", "bias"):
            ours[f"layers.{i}.attention.qkv.{leaf}"] = torch.cat(
                [
                    getattr(attention.query, leaf)[order],
                    getattr(attention.key, leaf)[order],
                    getattr(attention.value, leaf),
                ]
            )
    for name, module in modules.items():
        ours |= {f"{name}.weight": module.weight, f"{name}.bias": module.bias}
    return {name: tensor.detach().float().numpy() for name, tensor in ours.items()}


def _halves(config):
    """The file's row for each canonical row: first the even ones of a head, then the odd ones."""
    size = config.hidden_size // config.num_attention_heads
    rows = np.arange(config.hidden_size).reshape(-1, size)
    return [row for head in rows for row in [*head[::2], *head[1::2]]]
