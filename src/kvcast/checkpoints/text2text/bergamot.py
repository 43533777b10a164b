"""Reads the translation models of Firefox and Bergamot: Marian's binary file and its vocabulary.

They are Marian's transformers whose decoders have SSRUs, and one embedding for source, target and
logits. A target begins with an embedding of zeros; it may not contain the unknown token. Shortlists
(lex.*.bin), which limit the vocabulary for a source to gain speed, are not used.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import Checkpoint, CheckpointReader, StoredTensor, read_file
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.tensor_names import fill_evenly
from kvcast.checkpoints.text2text.bart import tensor2tensor_waves
from kvcast.checkpoints.text2text.marian_binary import read_marian
from kvcast.errors import InputMissingError, KvcastError
from kvcast.families.bart import BartDimensions
from kvcast.spec.sizes import MOST_LAYERS
from kvcast.spec.text_files import UNIGRAM_PIECES

_MODEL, _VOCABULARY = "model.*.bin", "*.spm"
_COMPRESSED = (".gz", ".zst")
# Ids in every vocabulary of Marian's: src/data/types.h.
_END, _UNKNOWN = 0, 1
# Waves have no end. Models are trained with sentences, which are shorter.
_POSITIONS = 512
_NORM_EPS = 1e-6  # src/layers/generic.h
# Languages in a file's name, such as model.enpt.intgemm.alphas.bin.
_PAIR = re.compile(r"\.([a-z]{2})[a-z]{2}\.")
_REQUIRED: Mapping[str, Any] = {
    "type": "transformer",
    "transformer-decoder-autoreg": "rnn",
    "dec-cell": "ssru",
    "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 2,
    "transformer-no-projection": False,
    "transformer-pool": False,
    "transformer-tied-layers": [],
    "transformer-train-position-embeddings": False,
    "layer-normalization": False,
    "tied-embeddings-all": True,
    "lemma-dim-emb": 0,
    "right-left": False,
    "ulr": False,
}
# What is done before and after a layer's parts: a residual is added (a), then normed (n). Dropout
# (d) is of training.
_PROCESSES = {
    "transformer-preprocess": "",
    "transformer-postprocess": "an",
    "transformer-postprocess-emb": "",
    "transformer-postprocess-top": "",
}
_EMBEDDING, _HEAD_BIAS = "Wemb", "decoder_ff_logit_out_b"


def _attention(ours: str, theirs: str) -> dict[str, Sequence[str]]:
    parts = {"qkv": "qkv", "query": "q", "key_value": "kv", "out": "o"}
    names: dict[str, Sequence[str]] = {
        f"{ours}_norm.weight": [f"{theirs}_Wo_ln_scale"],
        f"{ours}_norm.bias": [f"{theirs}_Wo_ln_bias"],
    }
    for part, letters in parts.items():
        names[f"{ours}.{part}.weight"] = [f"{theirs}_W{letter}" for letter in letters]
        names[f"{ours}.{part}.bias"] = [f"{theirs}_b{letter}" for letter in letters]
    return names


def _feed_forward(stack: str) -> dict[str, Sequence[str]]:
    ours, theirs = f"{stack}.layers.{{i}}.feed_forward", f"{stack}_l{{n}}_ffn"
    return {
        f"{ours}.up.weight": [f"{theirs}_W1"],
        f"{ours}.up.bias": [f"{theirs}_b1"],
        f"{ours}.down.weight": [f"{theirs}_W2"],
        f"{ours}.down.bias": [f"{theirs}_b2"],
        f"{ours}_norm.weight": [f"{theirs}_ffn_ln_scale"],
        f"{ours}_norm.bias": [f"{theirs}_ffn_ln_bias"],
    }


_RECURRENCE = "decoder.layers.{i}.recurrence"
_NAMES: Mapping[str, Sequence[str]] = {
    "embedding.weight": [_EMBEDDING],
    "embedding.bias": [_HEAD_BIAS],
    "encoder.positions": ["encoder.positions"],
    "decoder.positions": ["decoder.positions"],
    f"{_RECURRENCE}.candidate.weight": ["decoder_l{n}_rnn_W"],
    f"{_RECURRENCE}.gate.weight": ["decoder_l{n}_rnn_Wf"],
    f"{_RECURRENCE}.gate.bias": ["decoder_l{n}_rnn_bf"],
    f"{_RECURRENCE}_norm.weight": ["decoder_l{n}_rnn_ffn_ln_scale"],
    f"{_RECURRENCE}_norm.bias": ["decoder_l{n}_rnn_ffn_ln_bias"],
    **_attention("encoder.layers.{i}.self_attention", "encoder_l{n}_self"),
    **_attention("decoder.layers.{i}.cross_attention", "decoder_l{n}_context"),
    **_feed_forward("encoder"),
    **_feed_forward("decoder"),
}


def _only(folder: Path, pattern: str, advice: str) -> Path:
    paths = sorted(folder.glob(pattern))
    if len(paths) > 1:
        raise KvcastError(f"{folder} holds {paths[0].name} and {paths[1].name}: {advice}")
    if paths:
        return paths[0]
    for suffix in _COMPRESSED:
        for path in folder.glob(f"{pattern}{suffix}"):
            raise InputMissingError(f"{path} is compressed: decompress it first")
    raise InputMissingError(f"no {pattern} in {folder}: fetch it too")


def _model(folder: Path) -> Path:
    return _only(folder, _MODEL, "keep one model in a folder")


def _vocabulary(folder: Path) -> Path:
    problem = "a source and a target of different vocabularies are not supported"
    return _only(folder, _VOCABULARY, problem)


def _dimensions(fields: Fields, tensors: Mapping[str, StoredTensor]) -> BartDimensions:
    fields.require(_REQUIRED)
    for name, steps in _PROCESSES.items():
        given = str(fields.values.get(name, steps))
        if given.replace("d", "") != steps:
            raise fields.error(f"{name} {given!r} is not supported: it must be {steps!r}")
    if _EMBEDDING not in tensors:
        raise fields.error(f"there is no tensor {_EMBEDDING}: it is not a whole model")
    width, inner = fields.whole("dim-emb"), fields.whole("transformer-dim-ffn")
    heads = fields.whole("transformer-heads")
    return fields.make(
        BartDimensions,
        architecture="bergamot",
        vocab_size=tensors[_EMBEDDING].shape[0],
        width=width,
        encoder_inner=inner,
        decoder_inner=fields.whole("transformer-decoder-dim-ffn", 0, least=0) or inner,
        encoder_heads=heads,
        decoder_heads=heads,
        encoder_layers=fields.whole("enc-depth", most=MOST_LAYERS),
        decoder_layers=fields.whole("dec-depth", most=MOST_LAYERS),
        source_positions=_POSITIONS,
        target_positions=_POSITIONS,
        start_token=_END,  # any would do
        activation=fields.activation("transformer-ffn-activation", "swish"),
        embedding_scale=width**0.5,
        head_bias=not fields.flag("output-omit-bias", False),
        zero_start=True,
        recurrent=True,
        norm_eps=_NORM_EPS,
    )


def _text(model: Path, pieces: bytes) -> dict[str, bytes]:
    languages = _PAIR.search(model.name)
    about = {
        "end_tokens": [_END],
        "bos_token": None,
        "eos_token": "</s>",
        "extra_ids": 0,
        "translates": True,
        "source_language": None if languages is None else languages[1],
        "generation": {"suppress_tokens": [_UNKNOWN]},
    }
    return {UNIGRAM_PIECES: pieces, "text.json": json.dumps(about).encode()}


def _read(folder: Path) -> Checkpoint:
    path = _model(folder)
    file = read_marian(path)
    dimensions = _dimensions(Fields(values=file.settings, label=str(path)), file.tensors)
    shape = dimensions.source_positions, dimensions.width
    waves = StoredTensor(shape=shape, read=lambda: tensor2tensor_waves(*shape))
    tables = {f"{stack}.positions": waves for stack in ("encoder", "decoder")}
    layers = f"{dimensions.encoder_layers} and {dimensions.decoder_layers} layers"
    return Checkpoint(
        dimensions=dimensions,
        tensors=fill_evenly(
            dimensions, _NAMES, {**file.tensors, **tables}, str(path), f"a model of {layers}"
        ),
        text=_text(path, read_file(_vocabulary(folder))),
        source=f"Bergamot folder {folder}",
    )


READER = CheckpointReader(
    name="Bergamot (model.*.bin and vocab.*.spm, of Firefox's translations)",
    detect=lambda folder: any(folder.glob(f"{_MODEL}*")),
    files=lambda folder: [_model(folder), _vocabulary(folder)],
    read=_read,
    types={BartDimensions: ("bergamot",)},
)
