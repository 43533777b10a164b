"""Folders as moonshine-voice packages them, of random Moonshines, written by ONNX and ONNX Runtime.

The graphs have the exporter's names and all parameters, but compute nothing that makes sense.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

Array = NDArray[Any]
CACHE = "past_key_values.0.decoder.key"
KINDS: Mapping[str, Mapping[str, Any] | None] = {
    "float": None,
    "uint8": {"weight_type": QuantType.QUInt8},
    "int8, a scale for each output": {"weight_type": QuantType.QInt8, "per_channel": True},
}


@dataclass
class _Graph:
    """A graph being written; `names`: of parameters in transformers, by their constants'."""

    model: Any
    prefix: str
    nodes: list[Any]
    constants: dict[str, Array]
    names: dict[str, str]

    @classmethod
    def of(cls, model: Any, prefix: str) -> "_Graph":
        graph = cls(model, prefix, [], {}, {})
        for name, parameter in graph._parameters():
            graph._add(name, parameter.detach().numpy())
        rotary = model.model.decoder.rotary_emb.inv_freq.numpy()[None, :, None]
        module = f"{prefix}/rotary_emb".replace(".", "/")
        graph._node("Expand", module, ["onnx::Expand_0", "shape"], {"onnx::Expand_0": rotary})
        return graph

    def _parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self.prefix:
            yield from self.model.model.decoder.named_parameters(prefix=self.prefix[1:])
            yield "proj_out.weight", self.model.proj_out.weight
        else:
            yield from self.model.model.encoder.named_parameters()

    def _add(self, name: str, values: Array) -> None:
        module, _, leaf = name.rpartition(".")
        path, count = f"/{module.replace('.', '/')}", len(self.nodes)
        if "embed_tokens" in name:
            self.names[name] = name
            self._node("Gather", path, [name, "tokens"], {name: values})
        elif values.ndim == 2:
            constant = f"onnx::MatMul_{count}"
            self.names[constant] = name
            self._node("MatMul", path, [f"x{values.shape[1]}", constant], {constant: values.T})
        elif module == "groupnorm":
            op = {"weight": "Mul", "bias": "Add"}[leaf]
            constant = f"onnx::{op}_{count}"
            self._node(op, path, ["one", constant], {constant: values[:, None]})
        else:
            self._node("Identity", f"{path}/{leaf}", [name], {name: values})

    def _node(
        self, op: str, module: str, inputs: Sequence[str], constants: Mapping[str, Array]
    ) -> None:
        self.constants |= constants
        name = f"{module}/{op}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out{len(self.nodes)}"], name=name))

    def whole(self) -> Any:
        widths = {name for node in self.nodes for name in node.input if name[:1] == "x"}
        config = self.model.config
        heads = config.decoder_num_attention_heads
        cache = ["batch", heads, "past", config.hidden_size // heads]
        given = {name: (TensorProto.FLOAT, ["batch", int(name[1:])]) for name in sorted(widths)}
        given |= {"shape": (TensorProto.INT64, [3]), "one": (TensorProto.FLOAT, [1])}
        given |= {"tokens": (TensorProto.INT64, ["batch"]), CACHE: (TensorProto.FLOAT, cache)}
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info(name, *kind) for name, kind in given.items()],
            [helper.make_empty_tensor_value_info(node.output[0]) for node in self.nodes],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        opset = helper.make_opsetid("", 18)
        return helper.make_model(graph, opset_imports=[opset], ir_version=10)


def _merged(whole: Any) -> Any:
    """Return a graph with two alike branches, whose constants are outside."""
    graph = whole.graph
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    branches = {
        f"{name}_branch": helper.make_graph(graph.node, name, [], graph.output)
        for name in ("else", "then")
    }
    outputs = [f"{output.name}_merged" for output in graph.output]
    node = helper.make_node("If", [flag.name], outputs, name="optimum::if", **branches)
    merged = helper.make_graph(
        [node],
        "merged",
        [*graph.input, flag],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        graph.initializer,
    )
    return helper.make_model(merged, opset_imports=whole.opset_import, ir_version=10)


def _save(whole: Any, path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(whole.SerializeToString(), options)


def write_moonshine_graphs(model: Any, folder: Path, kind: str) -> None:
    """Write graphs of one of KINDS, and give `model` the weights that were kept, dequantized."""
    folder.mkdir(exist_ok=True)
    state = dict(model.state_dict())
    for prefix, file in (("", "encoder_model"), ("/model.decoder", "decoder_model_merged")):
        graph, scratch = _Graph.of(model, prefix), folder / "graph.onnx"
        whole, quantized = graph.whole(), KINDS[kind]
        if quantized is not None:
            quantize_dynamic(whole, scratch, op_types_to_quantize=["MatMul", "Gather"], **quantized)
            whole = onnx.load(scratch)
            scratch.unlink()
            stack = "" if prefix else "model.encoder."
            for name, values in _dequantized(whole, graph.names):
                state[f"{stack}{name}"] = torch.from_numpy(values)
        _save(_merged(whole) if prefix else whole, folder / f"{file}.ort")
    model.load_state_dict(state)
    write_tokens(folder / "tokenizer.bin", model.config.vocab_size)


def _dequantized(whole: Any, names: Mapping[str, str]) -> Iterator[tuple[str, Array]]:
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in whole.graph.initializer}
    for constant, name in names.items():
        codes, zero = (
            found[f"{constant}_{x}"].astype(np.int32) for x in ("quantized", "zero_point")
        )
        values = ((codes - zero) * found[f"{constant}_scale"]).astype(np.float32)
        yield name, values if "embed_tokens" in name else np.ascontiguousarray(values.T)


def write_tokens(path: Path, count: int, further: Sequence[str] = ()) -> None:
    """Write `count` tokens at most: special ones, bytes, then `further`."""
    tokens = [b"<unk>", b"<s>", b"</s>", *(bytes([byte]) for byte in range(256))]
    tokens += [text.encode() for text in further]
    path.write_bytes(b"".join(_length(len(token)) + token for token in tokens[:count]))


def _length(length: int) -> bytes:
    return bytes([length] if length < 128 else [length % 128 + 128, length // 128])
