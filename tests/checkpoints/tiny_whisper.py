"""Tiny Whisper checkpoints for tests: random weights in transformers' and CTranslate2's formats."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np

from kit.dimensions import SMALL
from kvcast.checkpoints.base import Checkpoint
from kvcast.families.whisper import WHISPER

KINDS = ("float32", "int8", "int16", "int32", "float16", "bfloat16")

SIZES = {
    "vocab_size": 13,
    "num_mel_bins": 5,
    "d_model": 8,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_source_positions": 6,
    "max_target_positions": 7,
}


def random_model(seed=0, **sizes):
    """WhisperForConditionalGeneration with every parameter random (norms and biases too)."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(seed)
    config = WhisperConfig(
        **{**SIZES, **sizes},
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        suppress_tokens=[4, 5],
        begin_suppress_tokens=[6],
    )
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def save(model, folder: Path, **options) -> Path:
    model.save_pretrained(folder, **options)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def random_checkpoint(languages=()) -> Checkpoint:
    """A Whisper whose tensors are random, but for the biases of keys, which are zero."""
    dimensions = replace(
        SMALL,
        vocab_size=51865 if languages else 99,
        d_model=8,
        encoder_layers=2,
        encoder_heads=2,
        decoder_layers=1,
        decoder_heads=2,
        source_positions=10,
        target_positions=6,
        alignment_heads=((0, 1),),
    )
    draw = np.random.default_rng(0).standard_normal
    tensors = {
        name: draw(shape, np.float32) for name, shape in WHISPER.tensor_shapes(dimensions).items()
    }
    for name, tensor in tensors.items():
        if name.endswith("attention.qkv.bias"):
            tensor[8:16] = 0
        if name.endswith("key_value.bias"):
            tensor[:8] = 0
    texts = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>"]
    tokenizer = {"added_tokens": [{"id": 3 + at, "content": text} for at, text in enumerate(texts)]}
    generation = {"suppress_tokens": [1, 2], "alignment_heads": [[0, 1]]}
    return Checkpoint(
        dimensions=dimensions,
        tensors=tensors,
        text={"tokenizer.json": json.dumps(tokenizer).encode()},
        generation=generation | ({"language_tokens": list(languages)} if languages else {}),
        source="a test",
    )


def edit_json(path: Path, **fields) -> None:
    """Change fields of a JSON object, empty where there is no file yet; None removes a field."""
    changed = {**json.loads(path.read_text() if path.exists() else "{}"), **fields}
    path.write_text(json.dumps({k: v for k, v in changed.items() if v is not None}))


def ct2_bytes(variables, aliases=(), version=6, specification="WhisperSpec", revision=3) -> bytes:
    """model.bin from name -> array, or -> (kind, array) for dtypes that NumPy lacks."""

    def string(text):
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    out = struct.pack("<I", version) + string(specification)
    out += struct.pack("<II", revision, len(variables))
    for name, value in variables.items():
        kind, array = value if isinstance(value, tuple) else (value.dtype.name, value)
        out += string(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        out += struct.pack("<BI", KINDS.index(kind), array.nbytes) + array.tobytes()
    out += struct.pack("<I", len(aliases))
    for alias, name in aliases:
        out += string(alias) + string(name)
    return out


def ct2_variables(d=4, mels=2, vocab=5, encoder=1, decoder=1, heads=2, source=3, target=3, seed=0):
    random = np.random.default_rng(seed)
    shapes = {
        "encoder/conv1/weight": (d, mels, 3),
        "encoder/conv1/bias": (d,),
        "encoder/conv2/weight": (d, d, 3),
        "encoder/conv2/bias": (d,),
        "encoder/position_encodings/encodings": (source, d),
        "decoder/position_encodings/encodings": (target, d),
        "decoder/embeddings/weight": (vocab, d),
    }

    def linear(name, rows, columns):
        shapes[f"{name}/weight"], shapes[f"{name}/bias"] = (rows, columns), (rows,)

    def norm(name):
        shapes[f"{name}/gamma"] = shapes[f"{name}/beta"] = (d,)

    for stack, count in (("encoder", encoder), ("decoder", decoder)):
        norm(f"{stack}/layer_norm")
        for i in range(count):
            layer = f"{stack}/layer_{i}"
            linear(f"{layer}/self_attention/linear_0", 3 * d, d)
            linear(f"{layer}/self_attention/linear_1", d, d)
            norm(f"{layer}/self_attention/layer_norm")
            linear(f"{layer}/ffn/linear_0", 4 * d, d)
            linear(f"{layer}/ffn/linear_1", d, 4 * d)
            norm(f"{layer}/ffn/layer_norm")
            if stack == "decoder":
                linear(f"{layer}/attention/linear_0", d, d)
                linear(f"{layer}/attention/linear_1", 2 * d, d)
                linear(f"{layer}/attention/linear_2", d, d)
                norm(f"{layer}/attention/layer_norm")
    variables = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    variables["encoder/num_heads"] = np.array(heads, np.int16)
    variables["decoder/num_heads"] = np.array(heads, np.int16)
    variables["decoder/scale_embeddings"] = np.array(0, np.int8)
    return variables


SCALE = "decoder/layer_0/ffn/linear_0/weight_scale"


def quantised_variables():
    """A Whisper with rows of int8 and scales, and so few numbers that most bytes are structure."""
    variables = ct2_variables(d=4, mels=1, vocab=2, source=1, target=1)
    variables[SCALE.removesuffix("_scale")] = np.arange(-32, 32, dtype=np.int8).reshape(16, 4)
    variables[SCALE] = np.arange(1, 17, dtype=np.float32)
    return variables


TIED = (("decoder/projection/weight", "decoder/embeddings/weight"),)


def ct2_folder(folder: Path, model_bin: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.bin").write_bytes(model_bin)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "config.json").write_text(
        json.dumps({"suppress_ids": [1, 2], "lang_ids": [3], "alignment_heads": [[0, 1]]})
    )
    return folder
