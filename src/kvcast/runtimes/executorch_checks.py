"""Whether the methods of an ExecuTorch file are what a bundle's manifest says.

Knows nothing of how they are run.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import CacheLayers, Graph, Manifest
from kvcast.errors import KvcastError
from kvcast.runtimes.opening import (
    Argument,
    check_arguments,
    check_past,
    each_layer,
    sizes_of,
)

# Numbers as executorch's core/portable_type/scalar_type.h has them.
_DTYPES = {1: "int8", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 15: "bfloat16"}


def check_methods(path: Path, program: Any, manifest: Manifest) -> None:
    """Raise KvcastError unless a loaded file has the manifest's methods, and they their arguments.

    Raises whatever a damaged file makes the runtime raise, too.
    """
    layers = each_layer(manifest.cache)
    encoded: dict[str, Argument] = {}
    for name, graph in sorted(manifest.graphs.items(), reverse=True):  # encode before decode
        if name not in program.method_names:
            raise KvcastError(f"{path} has no method {name}, as bundle.json says; export it again")
        takes, gives = _arguments(path, name, program.metadata(name), graph)
        if name == "encode":
            encoded = {n: given for n, given in gives.items() if n.startswith("cross_")}
        known = _known(manifest, name, layers) | encoded
        check_arguments(path, graph.inputs, takes, known)
        check_arguments(path, graph.outputs, gives, known)
        if name == "decode":
            check_past(path, graph.inputs, layers)


def _arguments(
    path: Path, name: str, metadata: Any, graph: Graph
) -> tuple[dict[str, Argument], dict[str, Argument]]:
    """Return what a method says of its inputs and outputs, which have no names of their own."""

    def named(
        names: tuple[str, ...], count: int, meta: Callable[[int], Any]
    ) -> dict[str, Argument]:
        if len(names) != count:
            raise KvcastError(
                f"{path} does not fit bundle.json: {name} has {count} inputs or outputs, "
                f"not {len(names)}; export again"
            )
        return {n: _argument(meta(i)) for i, n in enumerate(names)}

    return (
        named(graph.inputs, metadata.num_inputs(), metadata.input_tensor_meta),
        named(graph.outputs, metadata.num_outputs(), metadata.output_tensor_meta),
    )


def _argument(meta: Any) -> Argument:
    code = int(meta.dtype())
    return Argument(_DTYPES.get(code, f"type {code}"), tuple(meta.sizes()))


def _known(manifest: Manifest, method: str, layers: list[CacheLayers]) -> dict[str, Argument]:
    vocab, width, mels, frames = sizes_of(
        manifest, "vocab_size", "width", "n_mels", "source_positions"
    )
    known = {
        "tokens": Argument("int64", (1, None)),
        "lengths": Argument("int32", (1,)),
        "offsets": Argument("int64", (None,)),
        "source": Argument("int64", (1, None)),
        "source_lengths": Argument("int32", (1,)),
        "features": Argument("float32", (1, mels, None if frames is None else 2 * frames)),
        "logits": Argument("float32", (1, None, vocab)),
        "hidden": Argument("float32", (1, width) if method == "pool" else (1, None, width)),
        "pooled": Argument("float32", (1, width)),
    }
    for i, layer in enumerate(layers):
        for part in ("key", "value"):
            known[f"past_{part}_{i}"] = Argument(
                layer.dtype, (layer.heads, None, 1, layer.head_dim)
            )
    return known
