"""Random text encoders and cross-encoders of transformers, as folders on disk."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ("<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(56)))
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
_GEMMA = {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "max_position_embeddings": 200,
    "use_bidirectional_attention": True,
}
_AFTER_PADDING = {"max_position_embeddings": 202, "pad_token_id": 1}
ENCODERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (BertModel, BertConfig, {"max_position_embeddings": 200}),
    "roberta": (RobertaModel, RobertaConfig, {**_AFTER_PADDING, "type_vocab_size": 1}),
    "xlm-roberta": (XLMRobertaModel, XLMRobertaConfig, {**_AFTER_PADDING, "type_vocab_size": 1}),
    "mpnet": (MPNetModel, MPNetConfig, {"max_position_embeddings": 202}),
    "gemma3_text": (Gemma3TextModel, Gemma3TextConfig, _GEMMA),
}
CROSS_ENCODERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (BertForSequenceClassification, BertConfig, {"max_position_embeddings": 200}),
    "xlm-roberta": (
        XLMRobertaForSequenceClassification,
        XLMRobertaConfig,
        {**_AFTER_PADDING, "type_vocab_size": 1},
    ),
}


def random_encoder(kind: tuple[Any, Any, dict[str, Any]], seed: int = 0, **settings: Any) -> Any:
    """Make a model whose parameters are all random, norms and biases too."""
    torch.manual_seed(seed)
    build, configure, own = kind
    model = build(configure(**SIZES | own | settings, attn_implementation="eager")).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            one = "norm.weight" in path.lower() and "gemma" not in type(model).__name__.lower()
            parameter.normal_(float(one), 0.2)
    return model


def tokenizer(*, segments: bool = True) -> Tokenizer:
    """One word is one token; a pair's second text has segment 1 where there are segments."""
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(list(WORDS[:4]))
    second = int(segments)
    made.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair=f"<s> $A </s> $B:{second} </s>:{second}",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return made


def save_encoder(
    model: Any,
    folder: Path,
    *,
    pooling: str | None = "mean_tokens",
    dense: tuple[tuple[int, str], ...] = (),
    normalize: bool = False,
    texts: dict[str, Any] | None = None,
    prompts: dict[str, Any] | None = None,
) -> Path:
    """Save a model as sentence-transformers does; without `pooling` as transformers alone."""
    model.save_pretrained(folder)
    tokenizer(segments=getattr(model.config, "type_vocab_size", 1) > 1).save(
        str(folder / "tokenizer.json")
    )
    if pooling is None:
        return folder
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalize]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"st.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    width = model.config.hidden_size
    parts: dict[str, Any] = {
        "modules.json": modules,
        "1_Pooling/config.json": {"pooling_mode_cls_token": False, f"pooling_mode_{pooling}": True},
        "sentence_bert_config.json": texts or {},
        "config_sentence_transformers.json": prompts or {},
    }
    torch.manual_seed(7)
    for i, (outputs, activation) in enumerate(dense, start=2):
        place = folder / f"{i}_Dense"
        place.mkdir()
        linear = torch.nn.Linear(width, outputs)
        save_file(
            {f"linear.{name}": part.detach() for name, part in linear.named_parameters()},
            place / "model.safetensors",
        )
        parts[f"{i}_Dense/config.json"] = {
            "in_features": width,
            "out_features": outputs,
            "bias": True,
            "activation_function": f"torch.nn.modules.activation.{activation}",
        }
        width = outputs
    for name, content in parts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder
