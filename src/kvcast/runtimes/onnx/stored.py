"""Reads the constants of a bundle's graphs, for comparing them with a checkpoint's.

In int8 and int4 matrices are smoothed, or in blocks of ONNX Runtime's own, and are not read; nor
are experts' matrices, whose gates lie between their rows. Knows no model.
"""

from functools import partial
from pathlib import Path

from kvcast.bundle.manifest import Manifest, stays_inside
from kvcast.runtimes.stored import Stored, StoredNumbers

_EXPERTS = 3  # axes of a matrix for each
_TRANSPOSED = ".transposed"  # ends the name of a weight [inputs, outputs]


def stored(folder: Path, manifest: Manifest) -> Stored:
    """Return an fp32 bundle's constants, if what reads graphs is installed."""
    if manifest.quantize != "none":
        return Stored()
    try:
        import onnx_ir as ir
    except ModuleNotFoundError:
        return Stored()

    def read(tensor: ir.TensorProtocol, *, transposed: bool) -> StoredNumbers:
        numbers = tensor.numpy()
        return StoredNumbers(numbers.T if transposed else numbers)

    constants = {}
    for graph in manifest.graphs.values():
        for name, value in ir.load(folder / graph.file).graph.initializers.items():
            tensor = value.const_value
            outside = isinstance(tensor, ir.ExternalTensor) and not stays_inside(
                str(tensor.location)
            )
            if tensor is not None and not outside and len(tensor.shape) < _EXPERTS:
                own = name.removesuffix(_TRANSPOSED)
                constants[own] = partial(read, tensor, transposed=own != name)
    return Stored(constants=constants)
