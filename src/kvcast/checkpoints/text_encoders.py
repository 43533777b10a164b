"""Reads text encoders and cross-encoders in Hugging Face layout: BERT's kin and EmbeddingGemma.

A BERT without a masked-LM head, a Gemma 3 with attention in both directions, and any folder of
sentence-transformers is a text encoder; a classifier of sequences with one label a cross-encoder.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import Checkpoint, StoredTensor, read_file
from kvcast.checkpoints.decoder.gemma import GEMMA_TYPES
from kvcast.checkpoints.decoder.rotary import FULL, SLIDING, read_rotary
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_text import HuggingFaceFamily, tokenizer_settings
from kvcast.checkpoints.sentence_transformers import (
    SentenceModel,
    is_sentence_model,
    read_sentence_model,
)
from kvcast.checkpoints.tensor_names import (
    Entry,
    NameTable,
    apply_change,
    fill,
    of_modules,
    one_more,
)
from kvcast.checkpoints.text2text.t5gemma import layer_kinds, stack_of
from kvcast.checkpoints.text2text.word_pieces import token_ids
from kvcast.errors import InputMissingError
from kvcast.families.gemma_stack import GemmaStack
from kvcast.families.table import family_with
from kvcast.families.text_encoder import (
    BertStack,
    CrossEncoderDimensions,
    Projection,
    TextEncoderDimensions,
)
from kvcast.spec.sizes import MOST_LAYERS

_LAYER = re.compile(r"(?<=\blayers\.)\d+")
_THEIRS = "encoder.layer.{i}"
_BERT_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 30_522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
_BERT_MODULES: NameTable = {
    "embedding_norm": ("embeddings.LayerNorm",),
    "layers.{i}.attention.qkv": tuple(
        f"{_THEIRS}.attention.self.{part}" for part in ("query", "key", "value")
    ),
    "layers.{i}.attention.out": (f"{_THEIRS}.attention.output.dense",),
    "layers.{i}.attention_norm": (f"{_THEIRS}.attention.output.LayerNorm",),
    "layers.{i}.feed_forward.up": (f"{_THEIRS}.intermediate.dense",),
    "layers.{i}.feed_forward.down": (f"{_THEIRS}.output.dense",),
    "layers.{i}.feed_forward_norm": (f"{_THEIRS}.output.LayerNorm",),
}
_MPNET_MODULES: NameTable = {
    **_BERT_MODULES,
    "layers.{i}.attention.qkv": tuple(f"{_THEIRS}.attention.attn.{part}" for part in "qkv"),
    "layers.{i}.attention.out": (f"{_THEIRS}.attention.attn.o",),
    "layers.{i}.attention_norm": (f"{_THEIRS}.attention.LayerNorm",),
    "bias": ("encoder.relative_attention_bias",),
}
_TABLES: NameTable = {
    "embedding": ("embeddings.word_embeddings",),
    "positions": ("embeddings.position_embeddings",),
    "segments": ("embeddings.token_type_embeddings",),
}
_GEMMA_LAYER, _OURS = "layers.{i}", "encoder.layers.{i}"
_GEMMA_MODULES: NameTable = {
    "encoder.embedding": ("embed_tokens",),
    "encoder.norm": ("norm",),
    f"{_OURS}.self_attention_norm": (f"{_GEMMA_LAYER}.input_layernorm",),
    f"{_OURS}.self_attention_post_norm": (f"{_GEMMA_LAYER}.post_attention_layernorm",),
    f"{_OURS}.self_attention.qkv": tuple(f"{_GEMMA_LAYER}.self_attn.{x}_proj" for x in "qkv"),
    f"{_OURS}.self_attention.out": (f"{_GEMMA_LAYER}.self_attn.o_proj",),
    f"{_OURS}.self_attention.query_norm": (f"{_GEMMA_LAYER}.self_attn.q_norm",),
    f"{_OURS}.self_attention.key_norm": (f"{_GEMMA_LAYER}.self_attn.k_norm",),
    f"{_OURS}.feed_forward_norm": (f"{_GEMMA_LAYER}.pre_feedforward_layernorm",),
    f"{_OURS}.feed_forward_post_norm": (f"{_GEMMA_LAYER}.post_feedforward_layernorm",),
    f"{_OURS}.feed_forward.gate_up": tuple(f"{_GEMMA_LAYER}.mlp.{x}_proj" for x in ("gate", "up")),
    f"{_OURS}.feed_forward.down": (f"{_GEMMA_LAYER}.mlp.down_proj",),
}


def _bert_stack(fields: Fields, **particulars: Any) -> BertStack:
    fields.require({"position_embedding_type": "absolute", "is_decoder": False})
    first: int = particulars.get("first_position", 0)
    return fields.make(
        BertStack,
        width=fields.whole("hidden_size"),
        inner=fields.whole("intermediate_size"),
        heads=fields.whole("num_attention_heads"),
        layers=fields.whole("num_hidden_layers", most=MOST_LAYERS),
        positions=fields.whole("max_position_embeddings", least=first + 1) - first,
        activation=fields.activation("hidden_act"),
        norm_eps=fields.positive("layer_norm_eps"),
        **particulars,
    )


def _bert(fields: Fields) -> BertStack:
    return _bert_stack(fields, segments=fields.whole("type_vocab_size"))


def _roberta(fields: Fields) -> BertStack:
    first = fields.whole("pad_token_id", least=0) + 1
    segments = fields.whole("type_vocab_size")
    return _bert_stack(fields, segments=segments, first_position=first)


def _mpnet(fields: Fields) -> BertStack:
    # transformers' MPNet reads neither pad_token_id nor a largest distance.
    buckets = fields.whole("relative_attention_num_buckets")
    return _bert_stack(fields, first_position=2, buckets=buckets)


def _gemma3(fields: Fields) -> GemmaStack:
    every = fields.whole("sliding_window_pattern")
    kinds = layer_kinds(fields, lambda i: SLIDING if (i + 1) % every else FULL)
    # As transformers: in both directions, half of the window on each side.
    window = 2 * (fields.whole("sliding_window") // 2) + 1 if SLIDING in kinds else None
    return stack_of(
        fields,
        windows=tuple(window if kind == SLIDING else None for kind in kinds),
        window_rotary=read_rotary(fields, SLIDING, "rope_local_base_freq"),
        query_key_norm=True,
    )


@dataclass(frozen=True, kw_only=True)
class _Type:
    defaults: Mapping[str, Any]
    stack: Callable[[Fields], BertStack | GemmaStack]
    models: str  # begins the names of transformers' classes
    names: NameTable = field(default_factory=lambda: of_modules({**_BERT_MODULES, **_TABLES}))
    # modules of a classifier's head, from the first token's state on, with activations
    head: Sequence[tuple[str, str]] = ()


_ROBERTA_HEAD = (("classifier.dense", "tanh"), ("classifier.out_proj", "identity"))
_ROBERTA_DEFAULTS = {**_BERT_DEFAULTS, "pad_token_id": 1}
_TYPES: Mapping[str, _Type] = {
    "bert": _Type(
        defaults=_BERT_DEFAULTS,
        stack=_bert,
        models="Bert",
        head=(("pooler.dense", "tanh"), ("classifier", "identity")),
    ),
    "roberta": _Type(
        defaults={**_ROBERTA_DEFAULTS, "vocab_size": 50_265},
        stack=_roberta,
        models="Roberta",
        head=_ROBERTA_HEAD,
    ),
    "xlm-roberta": _Type(
        defaults=_ROBERTA_DEFAULTS, stack=_roberta, models="XLMRoberta", head=_ROBERTA_HEAD
    ),
    "mpnet": _Type(
        defaults={
            **_BERT_DEFAULTS,
            "vocab_size": 30_527,
            "relative_attention_num_buckets": 32,
        },
        stack=_mpnet,
        models="MPNet",
        names=of_modules({**_MPNET_MODULES, **_TABLES}),
    ),
    "gemma3_text": _Type(
        defaults=GEMMA_TYPES["gemma3_text"].defaults,
        stack=_gemma3,
        models="Gemma3Text",
        names=of_modules(_GEMMA_MODULES),
    ),
}
# What comes before names, by the class that saved a model.
_PREFIX = re.compile(r"^(bert|roberta|mpnet|model)\.")
# Names from before transformers existed.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def _classes(config: Mapping[str, Any]) -> list[str]:
    named = config.get("architectures")
    return [str(name) for name in named] if isinstance(named, list) else []


def _embeds(folder: Path, config: Mapping[str, Any]) -> bool:
    if (kind := _TYPES.get(str(config.get("model_type")))) is None:
        return False
    if config.get("model_type") == "gemma3_text":
        return config.get("use_bidirectional_attention") is True
    return is_sentence_model(folder) or f"{kind.models}Model" in _classes(config)


def _ranks(_: Path, config: Mapping[str, Any]) -> bool:
    kind = _TYPES.get(str(config.get("model_type")))
    return kind is not None and f"{kind.models}ForSequenceClassification" in _classes(config)


def encoder_dimensions(config: Mapping[str, Any], label: str) -> TextEncoderDimensions:
    """Read a configuration, which does not record how hidden states are pooled."""
    kind = _TYPES[config["model_type"]]
    fields = Fields(values=config, label=label).over(kind.defaults)
    stack = kind.stack(fields)
    return fields.make(
        TextEncoderDimensions,
        architecture=config["model_type"],
        vocab_size=fields.whole("vocab_size"),
        stack=stack,
        longest=stack.positions,
    )


def _read_encoder(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    sentences = read_sentence_model(folder)
    dimensions = encoder_dimensions(config, str(folder / "config.json"))
    dimensions = replace(
        dimensions,
        longest=_longest(folder, dimensions, sentences),
        pooling=sentences.pooling,
        head=tuple(sentences.head),
        normalized=sentences.normalized,
    )
    notices = [] if is_sentence_model(folder) else [_NO_MODULES]
    return Checkpoint(
        dimensions=dimensions,
        tensors=fill(
            _entries(dimensions, _head_names(dimensions)),
            {**_own_tensors(stored, dimensions), **sentences.tensors},
            str(folder),
            "a text encoder",
            lenient=True,
        ),
        text=_text(folder, sentences, notices),
        source=f"Hugging Face folder {folder}",
    )


_NO_MODULES = "no modules.json beside the weights: vectors are the mean of a text's hidden states"


def cross_encoder_dimensions(config: Mapping[str, Any], label: str) -> CrossEncoderDimensions:
    read, kind = encoder_dimensions(config, label), _TYPES[config["model_type"]]
    fields = Fields(values=config, label=label)
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, dict) else fields.whole("num_labels", 2)
    if count != 1:
        raise fields.error(
            f"a classifier of {count} labels: only a reranker, with one, is supported"
        )
    widths = (read.width, count)
    return fields.make(
        CrossEncoderDimensions,
        architecture=read.architecture,
        vocab_size=read.vocab_size,
        stack=read.stack,
        longest=read.longest,
        pooling="cls",
        head=tuple(
            Projection(outputs=outputs, bias=True, activation=activation)
            for outputs, (_, activation) in zip(widths, kind.head, strict=True)
        ),
    )


def _read_cross_encoder(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    sentences = read_sentence_model(folder)
    dimensions = cross_encoder_dimensions(config, str(folder / "config.json"))
    dimensions = replace(dimensions, longest=_longest(folder, dimensions, sentences))
    modules = [module for module, _ in _TYPES[dimensions.architecture].head]
    heads = of_modules({f"head.{i}": (module,) for i, module in enumerate(modules)})
    return Checkpoint(
        dimensions=dimensions,
        tensors=fill(
            _entries(dimensions, heads),
            _own_tensors(stored, dimensions),
            str(folder),
            "a cross-encoder",
            lenient=True,
        ),
        text=_text(folder, sentences, []),
        source=f"Hugging Face folder {folder}",
    )


def _longest(folder: Path, dimensions: TextEncoderDimensions, sentences: SentenceModel) -> int:
    """As sentence-transformers; the tokenizer's limit counts only where it says no other."""
    limit = tokenizer_settings(folder).get("model_max_length")
    if sentences.longest is None and type(limit) is int and limit > 0:
        return min(dimensions.longest, limit)
    return min(dimensions.longest, sentences.longest or dimensions.longest)


def _own_tensors(
    stored: Mapping[str, StoredTensor], dimensions: TextEncoderDimensions
) -> dict[str, StoredTensor]:
    own = {_plain(name): tensor for name, tensor in stored.items()}
    if isinstance(dimensions.stack, BertStack):
        return own
    return {
        name: apply_change(tensor, one_more) if name.endswith("norm.weight") else tensor
        for name, tensor in own.items()
    }


def _plain(name: str) -> str:
    name = _PREFIX.sub("", name)
    for old, new in _OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _head_names(dimensions: TextEncoderDimensions) -> NameTable:
    return of_modules({f"head.{i}": (f"head.{i}",) for i in range(len(dimensions.head))})


def _entries(dimensions: TextEncoderDimensions, heads: NameTable) -> Iterator[Entry]:
    names, stack = {**_TYPES[dimensions.architecture].names, **heads}, dimensions.stack
    for canonical, shape in family_with(dimensions).tensor_shapes(dimensions).items():
        layer = _LAYER.search(canonical)
        parts = [
            name.format(i=layer[0] if layer else 0) for name in names[_LAYER.sub("{i}", canonical)]
        ]
        rows, *rest = shape
        counts = [rows // len(parts)] * len(parts)
        if ".qkv." in canonical and isinstance(stack, GemmaStack):
            counts = [stack.mixed, stack.keys, stack.keys]
        yield canonical, shape, [(n, (c, *rest)) for n, c in zip(parts, counts, strict=True)]


def _text(folder: Path, sentences: SentenceModel, notices: Sequence[str]) -> dict[str, bytes]:
    about: dict[str, Any] = {
        "prompts": dict(sentences.prompts),
        "default_prompt": sentences.default_prompt,
        "lowercase": sentences.lowercase,
        "notices": list(notices),
    }
    whole, words = folder / "tokenizer.json", folder / "vocab.txt"
    if not whole.is_file() and words.is_file():
        token_ids(words)  # reports damage
        settings = Fields(values=tokenizer_settings(folder), label=str(folder))
        about["uncased"] = settings.flag("do_lower_case", True)
        return {words.name: read_file(words), "text.json": json.dumps(about).encode()}
    if not whole.is_file():
        raise InputMissingError(
            f"no tokenizer.json in {folder}: copy the base model's, or write it with transformers' "
            "AutoTokenizer and save_pretrained"
        )
    return {whole.name: read_file(whole), "text.json": json.dumps(about).encode()}


TEXT_ENCODER = HuggingFaceFamily(
    family=TextEncoderDimensions,
    model_types=tuple(_TYPES),
    dimensions=encoder_dimensions,
    read=_read_encoder,
    claims=_embeds,
    ignored="position_ids",
)
CROSS_ENCODER = HuggingFaceFamily(
    family=CrossEncoderDimensions,
    model_types=tuple(name for name, kind in _TYPES.items() if kind.head),
    dimensions=cross_encoder_dimensions,
    read=_read_cross_encoder,
    claims=_ranks,
    ignored="position_ids",
)
