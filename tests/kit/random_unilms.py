"""Random RoFormers and BERTs of transformers, as folders on disk."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import BertForMaskedLM, BertForPreTraining, RoFormerForMaskedLM

SIZES = {
    "vocab_size": 19,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "roformer": (RoFormerForMaskedLM, {}),
    "roformer, narrow embedding": (
        RoFormerForMaskedLM,
        {"embedding_size": 10, "hidden_act": "relu"},
    ),
    "bert": (BertForMaskedLM, {}),
    "bert, pooled": (BertForPreTraining, {}),
    "bert, three segments": (BertForMaskedLM, {"hidden_act": "gelu_new", "type_vocab_size": 3}),
}
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", "##a", "##b", "今", "天")


def random_unilm(name: str, seed: int = 0, **settings: Any) -> Any:
    """One of MODELS with every parameter random, norms and biases too."""
    torch.manual_seed(seed)
    kind, own = MODELS[name]
    config = kind.config_class(**SIZES | own | settings, attn_implementation="eager")
    model = kind(config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "embed_positions" not in path:
                parameter.normal_(float("LayerNorm.weight" in path), 0.3)
    return model


def save_unilm(model: Any, folder: Path, tokens: Any = TOKENS, **options: Any) -> Path:
    """Save a model beside its vocabulary, which is `tokens`."""
    model.save_pretrained(folder, **options)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


def tokenizer_json(tokens: Any = TOKENS, **fields: Any) -> bytes:
    """The parts of transformers' tokenizer.json that are read; `fields` replaces them."""
    content = {
        "added_tokens": [{"id": i, "content": token} for i, token in enumerate(tokens[:5])],
        "model": {"type": "WordPiece", "vocab": {token: i for i, token in enumerate(tokens)}},
    }
    return json.dumps({**content, **fields}).encode()
