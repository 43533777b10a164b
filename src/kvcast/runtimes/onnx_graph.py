"""A graph of a bundle on ONNX Runtime, whose every failure is a line that names its file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from kvcast.bundle.manifest import CacheLayers, Manifest
from kvcast.errors import KvcastError
from kvcast.runtimes.opening import (
    Argument,
    check_arguments,
    check_past,
    each_layer,
    failed,
    naming,
    sizes_of,
)

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


class OnnxGraph:
    """What kvcast uses of `onnxruntime.InferenceSession`."""

    def __init__(self, path: Path, options: Any) -> None:
        self.path = path
        with naming(path):
            self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def io_binding(self) -> Any:
        """Return an empty binding."""
        return self._session.io_binding()

    def run(self, outputs: list[str], feed: Mapping[str, Any]) -> list[Any]:
        """Run over arrays."""
        try:
            results: list[Any] = self._session.run(outputs, feed)
        except Exception as error:
            raise failed(self.path, error) from error
        return results

    def run_with_ort_values(self, outputs: list[str], feed: Mapping[str, Any]) -> list[Any]:
        """Run over ONNX Runtime's own values."""
        try:
            results: list[Any] = self._session.run_with_ort_values(outputs, feed)
        except Exception as error:
            raise failed(self.path, error) from error
        return results

    def run_with_iobinding(self, binding: Any) -> None:
        """Run over what was bound."""
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise failed(self.path, error) from error

    def inputs(self) -> dict[str, Argument]:
        """Return what the graph says that it takes."""
        return dict(map(_argument, self._session.get_inputs()))

    def outputs(self) -> dict[str, Argument]:
        """Return what the graph says that it gives."""
        return dict(map(_argument, self._session.get_outputs()))


def check_graphs(manifest: Manifest, graphs: Mapping[str, OnnxGraph]) -> None:
    """Raise KvcastError unless graphs, by their names in the manifest, are what that says."""
    layers = each_layer(manifest.cache)
    known = _known(manifest, layers)
    encoded: dict[str, Argument] = {}
    for name in sorted(graphs, reverse=True):  # encode before decode, which takes what it gives
        graph, promised = graphs[name], manifest.graph(name)
        takes, gives = graph.inputs(), graph.outputs()
        if name == "encode":
            encoded = {n: given for n, given in gives.items() if n.startswith("cross_")}
        fitting = known | encoded | {"hidden": _hidden(manifest, name)}
        fitting |= {n: takes[b] for n, b in promised.aliases.items() if b in encoded and b in takes}
        check_arguments(graph.path, promised.inputs, takes, fitting)
        check_arguments(graph.path, promised.outputs, gives, fitting)
        if name == "decode":
            check_past(graph.path, promised.inputs, layers)
        for output, buffer in promised.aliases.items():
            if gives[output].dtype != takes[buffer].dtype:
                raise KvcastError(
                    f"{graph.path} does not fit bundle.json: {output} cannot be written to "
                    f"{buffer}; export again"
                )


def _known(manifest: Manifest, layers: list[CacheLayers]) -> dict[str, Argument]:
    vocab, width, mels, frames = sizes_of(
        manifest, "vocab_size", "width", "n_mels", "source_positions"
    )
    known = {
        "tokens": Argument("int64", (None, None)),
        "lengths": Argument("int32", (None,)),
        "offsets": Argument("int64", (None,)),
        "source": Argument("int64", (None, None)),
        "source_lengths": Argument("int32", (None,)),
        "features": Argument("float32", (None, mels, None if frames is None else 2 * frames)),
        "logits": Argument("float32", (None, None, vocab)),
        "pooled": Argument("float32", (None, width)),
    }
    for i, layer in enumerate(layers):
        for part in ("key", "value"):
            argument = Argument(layer.dtype, (None, layer.heads, None, layer.head_dim))
            known |= {f"past_{part}_{i}": argument, f"present_{part}_{i}": argument}
    return known


def _hidden(manifest: Manifest, name: str) -> Argument:
    (width,) = sizes_of(manifest, "width")
    return Argument("float32", (None, width) if name == "pool" else (None, None, width))


def _argument(described: Any) -> tuple[str, Argument]:
    sizes = (size if isinstance(size, int) else None for size in described.shape)
    return described.name, Argument(_DTYPES.get(described.type, described.type), tuple(sizes))
