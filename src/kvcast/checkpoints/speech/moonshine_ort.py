"""Reads Moonshines as moonshine-voice packages them: two graphs of ONNX Runtime and a vocabulary.

encoder_model.ort and decoder_model_merged.ort were exported from transformers: nodes have the
names of modules, and small parameters have their own. Matrices have a name of the exporter's and
are [inputs, outputs]; a quantized one is three constants, NAME_quantized, NAME_scale and
NAME_zero_point. A head that is the embedding is there once more, transposed.

tokenizer.bin lists tokens in the order of their ids: the length in a byte, or above 127 in two, low
seven bits first; then UTF-8. Tokens 3 to 258 are the bytes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.checkpoints.base import (
    Checkpoint,
    CheckpointReader,
    StoredTensor,
    read_file,
    require_file,
    tensor_from_bytes,
)
from kvcast.checkpoints.ort_format import Constant, OrtModel, OrtNode, read_ort
from kvcast.checkpoints.prequantized.integer_codes import IntegerCodes
from kvcast.checkpoints.speech.moonshine import LONGEST, assemble
from kvcast.checkpoints.tensor_names import join_flat, transpose
from kvcast.errors import InputOutputError, KvcastError
from kvcast.families.moonshine import MoonshineDimensions, positions_over_samples
from kvcast.spec.position_encodings import Rotary

_ENCODER, _DECODER, _TOKENS = "encoder_model.ort", "decoder_model_merged.ort", "tokenizer.bin"
_ADVICE = "copy the package's folder again"
_CACHE = "past_key_values.0.decoder.key"
_START, _END = 1, 2
_TARGET_POSITIONS = 194  # of every published Moonshine over samples; the graphs do not say
_ROTARY_BASE = 10_000.0

# A parameter's name, and what merging and optimizing graphs append to it.
_PARAMETER = re.compile(r"(?P<name>.+\.(?:weight|bias))(?:_merged_\d+|_add_tensor)*")
_GROUP_NORM = {"groupnorm/Mul": "groupnorm.weight", "groupnorm/Add": "groupnorm.bias"}
_CODES = "_quantized"
_RANGES = {"uint8": (0, 255), "int8": (-128, 127)}

_BYTES = range(3, 259)
_RESERVED = re.compile(r"<<ST_\d+>>|<empty_\d+>")


def _read(folder: Path) -> Checkpoint:
    encoder, decoder = (_Graph(folder / name) for name in (_ENCODER, _DECODER))
    own = {f"encoder.{name}": tensor for name, tensor in encoder.tensors.items()}
    own |= {name.removeprefix("model."): tensor for name, tensor in decoder.tensors.items()}
    dimensions, tensors = assemble(_dimensions(own, encoder, decoder), own, str(folder))
    return Checkpoint(
        dimensions=dimensions,
        tensors=tensors,
        text=_text(folder / _TOKENS, dimensions.vocab_size),
        source=f"moonshine-voice folder {folder}",
    )


class _Graph:
    """A graph's parameters by their names in transformers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model: OrtModel = read_ort(path)
        self.tensors = dict(self._parameters())

    def _parameters(self) -> Iterator[tuple[str, StoredTensor]]:
        for name, constant in self.model.constants.items():
            if match := _PARAMETER.fullmatch(name):
                yield match["name"], self._floats(constant)
        for node in self.model.nodes:
            path, _, op = node.name.removeprefix("/").rpartition("/")
            if parameter := _GROUP_NORM.get(f"{path}/{op}"):
                yield parameter, join_flat([self._floats(self._constant(node))])
            elif op.startswith(("MatMul", "Gather")) and (matrix := _matrix(node)) is not None:
                name = path.replace("/", ".")
                yield f"{name}.weight", self._weight(matrix, is_table=op.startswith("Gather"))

    def frequencies(self) -> np.ndarray[Any, Any]:
        """Return the angles, in radians per position, by which rotary pairs turn."""
        for node in self.model.nodes:
            if node.name.endswith("rotary_emb/Expand"):
                return self._floats(self._constant(node)).read().ravel()
        raise self.error("it has no rotary frequencies")

    def _constant(self, node: OrtNode) -> Constant:
        constants = [constant for constant in node.constants if constant is not None]
        if not constants:
            raise self.error(f"node {node.name} has no constant")
        return constants[0]

    def _floats(self, constant: Constant) -> StoredTensor:
        values = constant.values
        if values is None or values.dtype.name not in ("float32", "float16"):
            raise self.error(f"{constant.name} is no tensor of floating-point numbers")
        raw, label = values.reshape(-1).view(np.uint8), f"{self.path}: {constant.name}"
        return tensor_from_bytes(raw, values.dtype.name, values.shape, label)

    def _weight(self, matrix: Constant, *, is_table: bool) -> StoredTensor:
        """Return a matrix as [outputs, inputs]; `is_table`: as an embedding is in the file."""
        if not matrix.name.endswith(_CODES):
            return self._floats(matrix) if is_table else transpose(self._floats(matrix))
        assert matrix.values is not None
        codes = matrix.values if is_table else matrix.values.T
        base, (outputs, inputs) = matrix.name.removesuffix(_CODES), codes.shape
        if codes.dtype.name not in _RANGES:
            raise self.error(f"{matrix.name} is {codes.dtype.name}, neither uint8 nor int8")
        return IntegerCodes(
            label=f"{self.path}: {base}",
            shape=(outputs, inputs),
            codes=lambda: codes,
            range=_RANGES[codes.dtype.name],
            scales=self._of_outputs(f"{base}_scale", outputs, "float32"),
            zeros=self._of_outputs(f"{base}_zero_point", outputs, codes.dtype.name),
            group=inputs,
            packed=StoredTensor(shape=codes.shape, read=lambda: codes, nbytes=codes.nbytes),
        ).stored()

    def _of_outputs(self, name: str, outputs: int, dtype: str) -> np.ndarray[Any, Any]:
        """Return a constant for all outputs, or one for each, as [outputs, 1]."""
        constant = self.model.constants.get(name)
        if constant is None or constant.values is None or constant.values.dtype.name != dtype:
            raise self.error(f"it has no {name} of type {dtype}")
        if constant.values.size not in (1, outputs):
            raise self.error(f"{name} has {constant.values.size} numbers for {outputs} outputs")
        return np.broadcast_to(constant.values.reshape(-1, 1), (outputs, 1))

    def error(self, what: str) -> KvcastError:
        return KvcastError(f"{self.path}: {what}: {_ADVICE}")


def _matrix(node: OrtNode) -> Constant | None:
    """Return the first constant with two axes, if any: scales and zero points have fewer."""
    for constant in node.constants:
        if constant is not None and constant.values is not None and constant.values.ndim == 2:
            return constant
    return None


def _dimensions(
    own: Mapping[str, StoredTensor], encoder: _Graph, decoder: _Graph
) -> MoonshineDimensions:
    def sizes(graph: _Graph, name: str) -> tuple[int, ...]:
        if name not in own or len(own[name].shape) != 2:
            raise graph.error(f"it has no matrix {name}")
        return own[name].shape

    def layers(stack: str) -> int:
        count = 0
        while f"{stack}.layers.{count}.self_attn.q_proj.weight" in own:
            count += 1
        return count

    vocab_size, width = sizes(decoder, "decoder.embed_tokens.weight")
    cache = decoder.model.shapes.get(_CACHE, ())
    if len(cache) != 4 or min(cache[1], cache[3]) < 1:
        raise decoder.error(f"it has no {_CACHE} with heads of a known size")
    _, heads, _, head_dim = cache
    alike: dict[str, Any] = {"width": width, "heads": heads, "head_dim": head_dim}
    return MoonshineDimensions(
        vocab_size=vocab_size,
        **alike,
        **{f"encoder_{name}": size for name, size in alike.items()},
        inner=sizes(decoder, "decoder.layers.0.mlp.fc2.weight")[1],
        encoder_inner=sizes(encoder, "encoder.layers.0.mlp.fc2.weight")[1],
        decoder_layers=layers("decoder"),
        encoder_layers=layers("encoder"),
        rotary=_rotary(decoder, head_dim),
        start_token=_START,
        source_positions=positions_over_samples(LONGEST),
        target_positions=_TARGET_POSITIONS,
    )


def _rotary(decoder: _Graph, head_dim: int) -> Rotary:
    frequencies = decoder.frequencies()
    pairs = len(frequencies)
    usual = _ROTARY_BASE ** -(np.arange(pairs) / pairs)
    if not 0 < 2 * pairs <= head_dim or not np.allclose(frequencies, usual, rtol=1e-4):
        raise decoder.error("its rotary frequencies are not those of base 10000")
    return Rotary(base=_ROTARY_BASE, partial=2 * pairs / head_dim)


def _text(path: Path, vocab_size: int) -> dict[str, bytes]:
    spelled = _spellings(path)
    if not _BYTES.stop <= len(spelled) <= vocab_size or len({*spelled}) < len(spelled):
        raise InputOutputError(
            f"{path} is damaged: {len(spelled)} tokens, some perhaps alike, for {vocab_size} "
            f"embeddings; {_ADVICE}"
        )
    special = [i for i, text in enumerate(spelled) if i < _BYTES.start or _RESERVED.fullmatch(text)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    spaces = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token, "content": spelled[token], **flags, "special": True} for token in special
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                spaces,
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": {text: token for token, text in enumerate(spelled)},
            "merges": [],
            "unk_token": spelled[0],
            "byte_fallback": True,
        },
    }
    about: dict[str, Any] = {"end_tokens": [_END], "bos_token": None, "eos_token": spelled[_END]}
    about |= {"generation": {}, "translates": False}
    return {
        "tokenizer.json": json.dumps(description).encode(),
        "text.json": json.dumps(about).encode(),
    }


def _spellings(path: Path) -> list[str]:
    """Return tokens as tokenizer.json spells them."""
    content, at, spelled = read_file(path), 0, list[str]()
    while at < len(content):
        length, at = content[at], at + 1
        if length > 127:
            length, at = length - 128 + 128 * int.from_bytes(content[at : at + 1]), at + 1
        text, at, token = content[at : at + length], at + length, len(spelled)
        if at > len(content) or (token in _BYTES and text != bytes([token - _BYTES.start])):
            raise InputOutputError(f"{path} is damaged at token {token}: {_ADVICE}")
        if token in _BYTES:
            spelled.append(f"<0x{text[0]:02X}>")
        else:
            spelled.append(text.decode(errors="replace") or f"<empty_{token}>")
    return spelled


def _files(folder: Path) -> list[Path]:
    names = (_ENCODER, _DECODER, _TOKENS)
    return [require_file(folder / name, _ADVICE) for name in names]


READER = CheckpointReader(
    name="moonshine-voice (encoder_model.ort, decoder_model_merged.ort, tokenizer.bin)",
    detect=lambda folder: (folder / _DECODER).is_file(),
    files=_files,
    read=_read,
    types={MoonshineDimensions: ("moonshine",)},
)
