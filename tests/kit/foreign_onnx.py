"""Folders in the layouts of optimum and onnxruntime-genai, with random weights, and checkpoints.

Graphs have the structure that those exporters write: past keys and values go in and come out by
`Concat`, a merged decoder has a branch for its first call, GroupQueryAttention shares one buffer.
Arithmetic is written out from transformers' models, independently of kvcast's programs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from kvcast.spec.relative import bucket_of
from kvcast_bench.writing.huggingface import write_folder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Tensors = dict[str, NDArray[np.float32]]
OPSET, IR = 18, 9
HIDDEN = -1e9


@dataclass(frozen=True)
class Llama:
    """Sizes of a decoder-only model with grouped key heads."""

    vocab: int = 48
    width: int = 16
    inner: int = 24
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    positions: int = 64
    eps: float = 1e-5

    def tensors(self, seed: int = 0) -> Tensors:
        """Random weights by transformers' names, [out, in]."""
        own, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.width),
            "model.norm.weight": (self.width,),
            "lm_head.weight": (self.vocab, self.width),
        }
        for i in range(self.layers):
            shapes |= {
                f"model.layers.{i}.{name}.weight": shape
                for name, shape in {
                    "input_layernorm": (self.width,),
                    "self_attn.q_proj": (own, self.width),
                    "self_attn.k_proj": (keys, self.width),
                    "self_attn.v_proj": (keys, self.width),
                    "self_attn.o_proj": (self.width, own),
                    "post_attention_layernorm": (self.width,),
                    "mlp.gate_proj": (self.inner, self.width),
                    "mlp.up_proj": (self.inner, self.width),
                    "mlp.down_proj": (self.width, self.inner),
                }.items()
            }
        return _random(shapes, seed)

    @property
    def config(self) -> dict[str, Any]:
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.positions,
            "rms_norm_eps": self.eps,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }

    def angles(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines [positions, head_dim / 2]."""
        rates = 10000.0 ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        angles = np.arange(self.positions)[:, None] * rates
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@dataclass(frozen=True)
class T5:
    """Sizes of an encoder-decoder."""

    vocab: int = 48
    width: int = 16
    inner: int = 24
    layers: int = 2
    heads: int = 4
    head_dim: int = 8
    buckets: int = 8
    distance: int = 12
    longest: int = 64

    def tensors(self, seed: int = 0) -> Tensors:
        """Random weights by transformers' names, [out, in]."""
        mixed = self.heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"shared.weight": (self.vocab, self.width)}
        for side in ("encoder", "decoder"):
            shapes[f"{side}.final_layer_norm.weight"] = (self.width,)
            bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            shapes[bias] = (self.buckets, self.heads)
            parts = ["SelfAttention", *(["EncDecAttention"] if side == "decoder" else [])]
            for i in range(self.layers):
                for n, part in enumerate(parts):
                    at = f"{side}.block.{i}.layer.{n}"
                    shapes[f"{at}.layer_norm.weight"] = (self.width,)
                    shapes |= {f"{at}.{part}.{m}.weight": (mixed, self.width) for m in "qkv"}
                    shapes[f"{at}.{part}.o.weight"] = (self.width, mixed)
                at = f"{side}.block.{i}.layer.{len(parts)}"
                shapes[f"{at}.layer_norm.weight"] = (self.width,)
                shapes[f"{at}.DenseReluDense.wi.weight"] = (self.inner, self.width)
                shapes[f"{at}.DenseReluDense.wo.weight"] = (self.width, self.inner)
        return _random(shapes, seed)

    @property
    def config(self) -> dict[str, Any]:
        return {
            "model_type": "t5",
            "architectures": ["T5ForConditionalGeneration"],
            "is_encoder_decoder": True,
            "vocab_size": self.vocab,
            "d_model": self.width,
            "d_kv": self.head_dim,
            "d_ff": self.inner,
            "num_layers": self.layers,
            "num_decoder_layers": self.layers,
            "num_heads": self.heads,
            "relative_attention_num_buckets": self.buckets,
            "relative_attention_max_distance": self.distance,
            "feed_forward_proj": "relu",
            "layer_norm_epsilon": 1e-6,
            "decoder_start_token_id": 0,
            "tie_word_embeddings": True,
        }


def _random(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Tensors:
    generator = np.random.default_rng(seed)
    return {
        name: generator.normal("norm" in name, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_checkpoint(folder: Path, model: Llama | T5, seed: int = 0) -> None:
    """Write a checkpoint in Hugging Face layout, with a tokenizer of bytes."""
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    write_folder(
        folder,
        model.tensors(seed).items(),
        config=model.config,
        tokenizer=json.loads(_tokenizer(model.vocab)),
        tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **special},
    )


def _tokenizer(vocab: int) -> str:
    pieces = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces[:vocab])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


class Graph:
    """Nodes of a graph, or of a branch, whose names begin with `prefix`."""

    def __init__(self, tensors: Tensors, prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self.tensors, self.prefix = tensors, prefix

    def op(self, kind: str, *inputs: str, outputs: int = 1, name: str = "", **about: Any) -> Any:
        """Add a node; return its output's name, or a list of several."""
        names = [name or f"{self.prefix}{kind}_{len(self.nodes)}"]
        names += [f"{names[0]}_{i}" for i in range(1, outputs)]
        self.nodes.append(
            helper.make_node(kind, list(inputs), names, name=f"n_{names[0]}", **about)
        )
        return names if outputs > 1 else names[0]

    def named(self, value: str, name: str) -> str:
        """Call a node's output by another name."""
        for node in self.nodes:
            node.output[:] = [name if output == value else output for output in node.output]
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c_{self.prefix}{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def weight(self, name: str) -> str:
        """Return a matrix [in, out], whose name all branches share."""
        self.constants[name] = self.tensors[name].T.copy()
        return name

    def linear(self, x: str, name: str) -> str:
        return self.op("MatMul", x, self.weight(f"{name}.weight"))

    def norm(self, x: str, name: str, eps: float) -> str:
        square = self.op("ReduceMean", self.op("Mul", x, x), self.ints(-1))
        root = self.op("Sqrt", self.op("Add", square, self.constant(eps)))
        return self.op("Mul", self.op("Div", x, root), self.weight(f"{name}.weight"))

    def size(self, x: str, axis: int) -> str:
        """Return one size, int64 [1]."""
        return self.op("Gather", self.op("Shape", x), self.ints(axis))

    def heads(self, x: str, heads: int, size: int) -> str:
        """[b, s, heads * size] -> [b, heads, s, size]."""
        split = self.op("Reshape", x, self.ints(0, 0, heads, size))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def attend(self, q: str, k: str, v: str, mask: str, scale: float, mixed: int) -> str:
        """Return [b, s, mixed]."""
        turned = self.op("Transpose", k, perm=[0, 1, 3, 2])
        scores = self.op("Mul", self.op("MatMul", q, turned), self.constant(scale))
        scores = self.op("Add", scores, mask) if mask else scores
        out = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        joined = self.op("Transpose", out, perm=[0, 2, 1, 3])
        return self.op("Reshape", joined, self.ints(0, 0, mixed))

    def initializers(self) -> list[onnx.TensorProto]:
        return [numpy_helper.from_array(array, name) for name, array in self.constants.items()]


def write_optimum_llama(folder: Path, model: Llama, seed: int = 0, fault: str = "") -> None:
    """Write `model.onnx` beside config.json.

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
    x = g.op("Gather", _embedding(g, "model.embed_tokens.weight"), "input_ids")
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

    `fault`: "stale": every position sees what lies in slot 40, whether it is written or not.
    """
    g = Graph(model.tensors(seed))
    cos, sin = (g.constant(table) for table in model.angles())
    counted = g.op("ReduceSum", "attention_mask", g.ints(1), keepdims=0)
    last = g.op("Cast", g.op("Sub", counted, g.constant(1, np.int64)), to=TensorProto.INT32)
    total = g.op("Gather", g.op("Shape", "attention_mask"), g.constant(1, np.int64))
    total = g.op("Cast", total, to=TensorProto.INT32)
    x = g.op("Gather", _embedding(g, "model.embed_tokens.weight"), "input_ids")
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
    step reads the row of position biases before its own.
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
                branch.nodes, name, [], [_value(output, shapes[output]) for output in outputs]
            )
            for name, branch in (("then", step), ("else", first))
        }
        g.nodes.append(
            helper.make_node("If", ["use_cache_branch"], outputs, name="chosen", **branches)
        )
        flag = {"use_cache_branch": [1]}
        _write(
            g,
            folder / "decoder_model_merged.onnx",
            {**states, **tokens, **own, **cross, **flag},
            shapes,
        )
        return
    _write(first, folder / "decoder_model.onnx", {**tokens, **states}, shapes)
    own_presents = {name: shape for name, shape in shapes.items() if ".encoder." not in name}
    given = {**tokens, **own, **cross, **(states if recomputes else {})}
    _write(step, folder / "decoder_with_past_model.onnx", given, own_presents)


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
    x = g.op("Gather", _embedding(g, "shared.weight"), "input_ids")
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
    x = g.op("Gather", _embedding(g, "shared.weight"), "input_ids")
    for i in range(model.layers):
        at = f"encoder.block.{i}.layer"
        h = g.norm(x, f"{at}.0.layer_norm", 1e-6)
        q, k, v = (g.heads(g.linear(h, f"{at}.0.SelfAttention.{m}"), heads, size) for m in "qkv")
        x = g.op("Add", x, g.linear(g.attend(q, k, v, bias, 1.0, mixed), f"{at}.0.SelfAttention.o"))
        x = _t5_feed_forward(g, x, f"{at}.1")
    g.named(g.norm(x, "encoder.final_layer_norm", 1e-6), "last_hidden_state")
    shapes = {"last_hidden_state": ["b", "t", model.width]}
    _write(g, path, {"input_ids": ["b", "t"], "attention_mask": ["b", "t"]}, shapes)


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


def _embedding(g: Graph, name: str) -> str:
    g.constants[f"{name}_table"] = g.tensors[name]
    return f"{name}_table"


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
    _write(g, path, {**inputs, **caches}, outputs, external=external)


def _write(
    g: Graph, path: Path, inputs: Mapping[str, Any], outputs: Mapping[str, Any], *,
    external: bool = False,
) -> None:  # fmt: skip
    graph = helper.make_graph(
        g.nodes,
        "main",
        [_value(name, shape) for name, shape in inputs.items()],
        [_value(name, shape) for name, shape in outputs.items()],
        g.initializers(),
    )
    domains = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=IR)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"save_as_external_data": True, "location": f"{path.name}.data", "size_threshold": 64}
    onnx.save(model, path, **(about if external else {}))


_INTEGERS = ("input_ids", "attention_mask", "position_ids", "encoder_attention_mask")


def _value(name: str, shape: list[Any]) -> onnx.ValueInfoProto:
    dtype = TensorProto.INT64 if name in _INTEGERS else TensorProto.FLOAT
    dtype = TensorProto.BOOL if name == "use_cache_branch" else dtype
    return helper.make_tensor_value_info(name, dtype, shape)
