"""Folders in the layouts of optimum and onnxruntime-genai, with random weights.

Graphs have the structure of these exporters: past keys and values go in and come out by `Concat`, a
merged decoder has a branch for its first call, GroupQueryAttention shares one buffer. Arithmetic
follows transformers' models, independently of kvcast's programs.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from kit.foreign_graphs import Graph, embedding, value_info, write_graph
from kit.foreign_models import LLAMA, SEQ2SEQ, T5, Llama, Tensors
from kvcast.spec.position_encodings import bucket_of

HIDDEN = -1e9


def write_optimum_llama(folder: Path, model: Llama, seed: int = 0, fault: str = "") -> None:
    """Write `model.onnx` next to config.json.

    `fault`: "position": a step rotates as if nothing came before it.
    """
    g = Graph(model.tensors(seed))
    cos, sin = (g.constant(table) for table in model.angles())
    zero, one = g.ints(0), g.ints(1)
    new, total = g.size("input_ids", 1), g.size("attention_mask", 1)
    places = "position_ids"
    if fault == "position":
        first = g.op(
            "Range", g.constant(0, np.int64), g.op("Squeeze", new, zero), g.constant(1, np.int64)
        )
        places = g.op("Unsqueeze", first, zero)
    c, s = (g.op("Unsqueeze", g.op("Gather", table, places), one) for table in (cos, sin))
    keys = g.op(
        "Range", g.constant(0, np.int64), g.op("Squeeze", total, zero), g.constant(1, np.int64)
    )
    seen = g.op("LessOrEqual", keys, g.op("Unsqueeze", "position_ids", g.ints(2)))
    mask = g.op("Where", seen, g.constant(0), g.constant(HIDDEN))
    mask = g.op("Unsqueeze", mask, one)
    x = g.op("Gather", embedding(g, "model.embed_tokens.weight"), "input_ids")
    kv, groups, size = model.kv_heads, model.heads // model.kv_heads, model.head_dim
    for i in range(model.layers):
        at = f"model.layers.{i}"
        h = g.norm(x, f"{at}.input_layernorm", model.eps)
        q = _rotated(g, g.heads(g.linear(h, f"{at}.self_attn.q_proj"), model.heads, size), c, s)
        k = _rotated(g, g.heads(g.linear(h, f"{at}.self_attn.k_proj"), kv, size), c, s)
        v = g.heads(g.linear(h, f"{at}.self_attn.v_proj"), kv, size)
        past, present = f"past_key_values.{i}", f"present.{i}"
        k = g.op("Concat", f"{past}.key", k, axis=2, name=f"{present}.key")
        v = g.op("Concat", f"{past}.value", v, axis=2, name=f"{present}.value")
        k, v = (
            g.op(
                "Reshape",
                g.op("Expand", g.op("Unsqueeze", part, g.ints(2)), g.ints(1, 1, groups, 1, 1)),
                g.ints(0, model.heads, -1, size),
            )
            for part in (k, v)
        )
        mixed = g.attend(q, k, v, mask, size**-0.5, model.heads * size)
        x = _fed_forward(
            g, g.op("Add", x, g.linear(mixed, f"{at}.self_attn.o_proj")), at, model.eps
        )
    _head(g, x, model.eps)
    inputs = {"input_ids": ["b", "s"], "attention_mask": ["b", "t"], "position_ids": ["b", "s"]}
    _save(g, folder / "model.onnx", inputs, _decoder_caches(model))
    (folder / "config.json").write_text(json.dumps(model.config), encoding="utf-8")


def write_genai_llama(
    folder: Path, model: Llama, seed: int = 0, *, shared: bool = True, fault: str = ""
) -> None:
    """Write a graph with external data and genai_config.json.

    `fault`: "stale": every position sees slot 40, whether it is valid or not.
    """
    g = Graph(model.tensors(seed))
    cos, sin = (g.constant(table) for table in model.angles())
    counted = g.op("ReduceSum", "attention_mask", g.ints(1), keepdims=0)
    last = g.op("Cast", g.op("Sub", counted, g.constant(1, np.int64)), to=TensorProto.INT32)
    total = g.op("Gather", g.op("Shape", "attention_mask"), g.constant(1, np.int64))
    total = g.op("Cast", total, to=TensorProto.INT32)
    x = g.op("Gather", embedding(g, "model.embed_tokens.weight"), "input_ids")
    if fault == "stale":
        slot = g.op("Gather", "past_key_values.0.key", g.constant(40, np.int64), axis=2)
        x = g.op("Add", x, g.op("ReduceSum", slot, g.ints(1, 2)))
    for i in range(model.layers):
        at = f"model.layers.{i}"
        h = g.norm(x, f"{at}.input_layernorm", model.eps)
        qkv = [g.linear(h, f"{at}.self_attn.{part}_proj") for part in "qkv"]
        past, present = f"past_key_values.{i}", f"present.{i}"
        mixed, k, v = g.op(
            "GroupQueryAttention",
            *(*qkv, f"{past}.key", f"{past}.value", last, total, cos, sin),
            outputs=3,
            domain="com.microsoft",
            num_heads=model.heads,
            kv_num_heads=model.kv_heads,
            do_rotary=1,
        )
        g.named(k, f"{present}.key")
        g.named(v, f"{present}.value")
        x = _fed_forward(
            g, g.op("Add", x, g.linear(mixed, f"{at}.self_attn.o_proj")), at, model.eps
        )
    _head(g, x, model.eps)
    inputs = {"input_ids": ["b", "s"], "attention_mask": ["b", "t"]}
    _save(g, folder / "model.onnx", inputs, _decoder_caches(model), external=True)
    config = {
        "model": {
            "type": "llama",
            "context_length": model.positions,
            "vocab_size": model.vocab,
            "decoder": {
                "filename": "model.onnx",
                "head_size": model.head_dim,
                "num_key_value_heads": model.kv_heads,
                "num_hidden_layers": model.layers,
            },
        },
        "search": {"past_present_share_buffer": shared},
    }
    (folder / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")


def write_optimum_t5(
    folder: Path, model: T5, seed: int = 0, *, merged: bool = True, recomputes: bool = False,
    fault: str = "",
) -> None:  # fmt: skip
    """Write an encoder and a decoder: one graph with a branch, or two graphs.

    `recomputes`: a step computes cross keys and values as the first call does. `fault`: "bias": a
    step reads the previous row of position biases.
    """
    tensors = model.tensors(seed)
    _write_encoder(folder / "encoder_model.onnx", model, tensors)
    own, cross = _t5_caches(model)
    presents = {
        name.replace("past_key_values", "present"): shape for name, shape in (own | cross).items()
    }
    states = {
        "encoder_attention_mask": ["b", "t"],
        "encoder_hidden_states": ["b", "t", model.width],
    }
    tokens = {"input_ids": ["b", "s"]}
    first = _t5_decoder(Graph(tensors, "f_"), model, presents, past=False)
    step = _t5_decoder(
        Graph(tensors, "s_"), model, presents, past=True, recomputes=recomputes, fault=fault
    )
    outputs = ["logits", *presents]
    shapes = {"logits": ["b", "s", model.vocab], **presents}
    (folder / "config.json").write_text(json.dumps(model.config), encoding="utf-8")
    if merged:
        g = Graph(tensors)
        g.constants = {**first.constants, **step.constants}
        branches = {
            f"{name}_branch": helper.make_graph(
                branch.nodes, name, [], [value_info(output, shapes[output]) for output in outputs]
            )
            for name, branch in (("then", step), ("else", first))
        }
        g.nodes.append(
            helper.make_node("If", ["use_cache_branch"], outputs, name="chosen", **branches)
        )
        flag = {"use_cache_branch": [1]}
        write_graph(
            g,
            folder / "decoder_model_merged.onnx",
            {**states, **tokens, **own, **cross, **flag},
            shapes,
        )
        return
    write_graph(first, folder / "decoder_model.onnx", {**tokens, **states}, shapes)
    own_presents = {name: shape for name, shape in shapes.items() if ".encoder." not in name}
    given = {**tokens, **own, **cross, **(states if recomputes else {})}
    write_graph(step, folder / "decoder_with_past_model.onnx", given, own_presents)


def _t5_decoder(
    g: Graph, model: T5, presents: Mapping[str, Any], *, past: bool, recomputes: bool = False,
    fault: str = "",
) -> Graph:  # fmt: skip
    size, heads, mixed = model.head_dim, model.heads, model.heads * model.head_dim
    table = _biases(model, g.tensors, "decoder")
    hidden = np.triu(np.full((model.longest, model.longest), HIDDEN, np.float32), 1)
    bias = g.constant(table + hidden)
    new = g.size("input_ids", 1)
    begin = g.size("past_key_values.0.decoder.key", 2) if past else g.ints(0)
    end = g.op("Add", begin, new)
    if fault == "bias" and past:
        before = g.op("Sub", begin, g.ints(1))
        row = g.op("Slice", bias, before, g.op("Sub", end, g.ints(1)), g.ints(2))
        row = g.op("Max", row, g.constant(-50.0))
    else:
        row = g.op("Slice", bias, begin, end, g.ints(2))
    mask = g.op("Slice", row, g.ints(0), end, g.ints(3))
    x = g.op("Gather", embedding(g, "shared.weight"), "input_ids")
    for i in range(model.layers):
        at, names = f"decoder.block.{i}.layer", (f"past_key_values.{i}", f"present.{i}")
        h = g.norm(x, f"{at}.0.layer_norm", 1e-6)
        q, k, v = (g.heads(g.linear(h, f"{at}.0.SelfAttention.{m}"), heads, size) for m in "qkv")
        for part, value in (("key", k), ("value", v)):
            name = f"{names[1]}.decoder.{part}"
            if past:
                g.op("Concat", f"{names[0]}.decoder.{part}", value, axis=2, name=name)
            else:
                g.named(value, name)
        k, v = (f"{names[1]}.decoder.{part}" for part in ("key", "value"))
        x = g.op("Add", x, g.linear(g.attend(q, k, v, mask, 1.0, mixed), f"{at}.0.SelfAttention.o"))
        h = g.norm(x, f"{at}.1.layer_norm", 1e-6)
        q = g.heads(g.linear(h, f"{at}.1.EncDecAttention.q"), heads, size)
        k, v = (f"{names[0]}.encoder.{part}" for part in ("key", "value"))
        if not past or recomputes:
            k, v = (
                g.heads(
                    g.linear("encoder_hidden_states", f"{at}.1.EncDecAttention.{m}"), heads, size
                )
                for m in "kv"
            )
        for part, value in (("key", k), ("value", v)):
            name = f"{names[1]}.encoder.{part}"
            if past:
                empty = numpy_helper.from_array(np.zeros((0, heads, 1, size), np.float32))
                g.op("Constant", name=name, value=empty)
            else:
                g.named(value, name)
        if not past:
            k, v = (f"{names[1]}.encoder.{part}" for part in ("key", "value"))
        x = g.op("Add", x, g.linear(g.attend(q, k, v, "", 1.0, mixed), f"{at}.1.EncDecAttention.o"))
        x = _t5_feed_forward(g, x, f"{at}.2")
    x = g.op("Mul", g.norm(x, "decoder.final_layer_norm", 1e-6), g.constant(model.width**-0.5))
    g.named(g.op("MatMul", x, g.weight("shared.weight")), "logits")
    return g


def _write_encoder(path: Path, model: T5, tensors: Tensors) -> None:
    g = Graph(tensors)
    size, heads, mixed = model.head_dim, model.heads, model.heads * model.head_dim
    count, axes = g.size("input_ids", 1), (g.ints(2), g.ints(3))
    bias = g.constant(_biases(model, tensors, "encoder"))
    for axis in axes:
        bias = g.op("Slice", bias, g.ints(0), count, axis)
    x = g.op("Gather", embedding(g, "shared.weight"), "input_ids")
    for i in range(model.layers):
        at = f"encoder.block.{i}.layer"
        h = g.norm(x, f"{at}.0.layer_norm", 1e-6)
        q, k, v = (g.heads(g.linear(h, f"{at}.0.SelfAttention.{m}"), heads, size) for m in "qkv")
        x = g.op("Add", x, g.linear(g.attend(q, k, v, bias, 1.0, mixed), f"{at}.0.SelfAttention.o"))
        x = _t5_feed_forward(g, x, f"{at}.1")
    g.named(g.norm(x, "encoder.final_layer_norm", 1e-6), "last_hidden_state")
    shapes = {"last_hidden_state": ["b", "t", model.width]}
    write_graph(g, path, {"input_ids": ["b", "t"], "attention_mask": ["b", "t"]}, shapes)


def _biases(model: T5, tensors: Tensors, side: str) -> NDArray[np.float32]:
    """Return the bias of each query and key, [1, heads, longest, longest]."""
    places = np.arange(model.longest)
    numbers = bucket_of(
        places[None] - places[:, None],
        model.buckets,
        model.distance,
        bidirectional=side == "encoder",
    )
    table = tensors[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    return table[numbers].transpose(2, 0, 1)[None].astype(np.float32)


def _t5_feed_forward(g: Graph, x: str, at: str) -> str:
    h = g.norm(x, f"{at}.layer_norm", 1e-6)
    inner = g.op("Relu", g.linear(h, f"{at}.DenseReluDense.wi"))
    return g.op("Add", x, g.linear(inner, f"{at}.DenseReluDense.wo"))


def _rotated(g: Graph, x: str, cos: str, sin: str) -> str:
    a, b = g.op("Split", x, outputs=2, axis=-1, num_outputs=2)
    left = g.op("Sub", g.op("Mul", a, cos), g.op("Mul", b, sin))
    right = g.op("Add", g.op("Mul", b, cos), g.op("Mul", a, sin))
    return g.op("Concat", left, right, axis=-1)


def _fed_forward(g: Graph, x: str, at: str, eps: float) -> str:
    h = g.norm(x, f"{at}.post_attention_layernorm", eps)
    gate = g.linear(h, f"{at}.mlp.gate_proj")
    gate = g.op("Mul", gate, g.op("Sigmoid", gate))
    inner = g.op("Mul", gate, g.linear(h, f"{at}.mlp.up_proj"))
    return g.op("Add", x, g.linear(inner, f"{at}.mlp.down_proj"))


def _head(g: Graph, x: str, eps: float) -> None:
    g.named(g.linear(g.norm(x, "model.norm", eps), "lm_head"), "logits")


def _decoder_caches(model: Llama) -> dict[str, list[Any]]:
    shape = ["b", model.kv_heads, "p", model.head_dim]
    return {
        f"past_key_values.{i}.{part}": shape
        for i in range(model.layers)
        for part in ("key", "value")
    }


def _t5_caches(model: T5) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    own, cross = (
        {
            f"past_key_values.{i}.{side}.{part}": ["b", model.heads, size, model.head_dim]
            for i in range(model.layers)
            for part in ("key", "value")
        }
        for side, size in (("decoder", "p"), ("encoder", "t"))
    )
    return own, cross


def _save(
    g: Graph, path: Path, inputs: Mapping[str, Any], caches: Mapping[str, Any], *,
    external: bool = False,
) -> None:  # fmt: skip
    outputs = {"logits": ["b", "s", None]}
    outputs |= {
        name.replace("past_key_values", "present"): [*shape[:2], "t", shape[3]]
        for name, shape in caches.items()
    }
    write_graph(g, path, {**inputs, **caches}, outputs, external=external)


EXPORTS: Mapping[str, tuple[Any, Callable[..., None]]] = {
    "optimum": (LLAMA, write_optimum_llama),
    "optimum merged": (SEQ2SEQ, write_optimum_t5),
    "optimum split": (SEQ2SEQ, partial(write_optimum_t5, merged=False)),
    "genai": (LLAMA, write_genai_llama),
    "genai unshared": (LLAMA, partial(write_genai_llama, shared=False)),
}
