"""Tiny random GGUF files, written by the gguf library as llama.cpp's conversion would."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvcast.checkpoints.source import locate
from kvcast.errors import InputMissingError

WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, EXPERTS = 32, 64, 4, 2, 16, 2, 3
WORDS = ["<unk>", "<s>", "</s>", "<|user|>", "<think>"]


def byte_level_alphabet() -> list[str]:
    """The characters by which GPT-2 represents bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + n) for n in range(len(others))]


def vocabulary(pre: str = "gpt-2", **more: Any) -> dict[str, Any]:
    """A byte-level tokenizer; `more` replaces values of `tokenizer.ggml`, None removes."""
    tokens = [*WORDS, *byte_level_alphabet(), "he", "ll", "hell", "hello", "Ġhello", "Ġw"]
    types = [2, 3, 3, 3, 4] + [1] * (len(tokens) - len(WORDS))
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": ["h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ w"],
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | more
    return {f"tokenizer.ggml.{name}": value for name, value in values.items() if value is not None}


VOCAB = len(vocabulary()["tokenizer.ggml.tokens"])


def sizes(architecture: str, **more: Any) -> dict[str, Any]:
    """The values of an architecture; `more` replaces them by name, `__` for a dot."""
    values = {
        "block_count": LAYERS,
        "context_length": 64,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10_000.0,
    } | {name.replace("__", "."): value for name, value in more.items()}
    return {f"{architecture}.{name}": v for name, v in values.items() if v is not None}


def tensors(
    *, bias: bool = False, head_norms: bool = False, post_norms: bool = False, experts: int = 0,
    tied: bool = True, seed: int = 0,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Random tensors by the file's names, queries and keys in halves as Hugging Face has them."""
    draw = np.random.default_rng(seed).standard_normal
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, WIDTH)}
    shapes["output_norm.weight"] = (WIDTH,)
    if not tied:
        shapes["output.weight"] = (VOCAB, WIDTH)
    for i in range(LAYERS):
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (WIDTH,),
            "attn_q.weight": (q, WIDTH),
            "attn_k.weight": (kv, WIDTH),
            "attn_v.weight": (kv, WIDTH),
            "attn_output.weight": (WIDTH, q),
            "ffn_norm.weight": (WIDTH,),
        }
        if bias:
            layer |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
        if head_norms:
            layer |= {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
        if post_norms:
            layer |= {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)}
        if experts:
            layer |= {
                "ffn_gate_inp.weight": (experts, WIDTH),
                "ffn_gate_exps.weight": (experts, INNER, WIDTH),
                "ffn_up_exps.weight": (experts, INNER, WIDTH),
                "ffn_down_exps.weight": (experts, WIDTH, INNER),
            }
        else:
            layer |= {
                "ffn_gate.weight": (INNER, WIDTH),
                "ffn_up.weight": (INNER, WIDTH),
                "ffn_down.weight": (WIDTH, INNER),
            }
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}


def permuted(name: str, array: np.ndarray) -> np.ndarray:
    """Reorder queries and keys like llama.cpp's conversion of the `llama` architecture."""
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return array
    rows = array.shape[0] // heads
    order = [
        head * rows + half * (rows // 2) + pair
        for head in range(heads)
        for pair in range(rows // 2)
        for half in range(2)
    ]
    return array[order]


def write(
    path: Path,
    architecture: str,
    values: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    kinds: Mapping[str, str] | None = None,
) -> Path:
    """Write a file; `kinds` maps suffixes of tensor names to types other than F32."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in values.items():
        add_value(writer, name, value)
    for name, array in arrays.items():
        kind = next((kind for end, kind in (kinds or {}).items() if name.endswith(end)), "F32")
        number = gguf.GGMLQuantizationType[kind]
        data = gguf.quants.quantize(array, number)
        writer.add_tensor(name, data, raw_dtype=number)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_value(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(name, value)
    elif isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    else:
        writer.add_string(name, value)


def tiny_llama(path: Path, **more: Any) -> Path:
    """A whole tiny Llama."""
    arrays = {name: permuted(name, array) for name, array in tensors().items()}
    return write(path, "llama", sizes("llama", **more) | vocabulary(), arrays)


def packaged() -> Path:
    """SmolLM2; its package is optional, since its dependencies would need compiling."""
    try:
        return locate("demo-chat")
    except InputMissingError as error:
        pytest.skip(str(error))
