"""Precisions that kvcast is measured in when it generates, and classes that ratios are taken within."""

from kvcast.bench.cost import Cost

FLOAT, INT8, INT4 = "float", "int8", "int4"
"""Classes of precision: ratios are taken within one."""

PRECISIONS = {"int8": INT8, "int4": INT4, "none": FLOAT}
"""The class of a bundle's quantisation."""

OURS = {"int8": "kvcast-int8", "int4": "kvcast-int4", "none": "kvcast-fp32"}
"""Names of kvcast's contenders, by quantisation."""

REFERENCES = {PRECISIONS[quantize]: name for quantize, name in OURS.items()}
"""Whom a contender of a class is compared with."""

_TABLE_BLOCKS = (128, 64, 32, 16)
_INT4_BLOCK = 32
_SCALE = 4  # bytes


def products(quantize: str, operations: float) -> Cost:
    """Return the cost of multiplying with weights of a bundle that is quantised so."""
    return Cost(fp32=operations) if quantize == "none" else Cost(int8=operations)


def matrix_bytes(quantize: str, weights: int) -> float:
    """Return the bytes of layers' matrices, with the scales of blocks; columns' are few."""
    if quantize == "none":
        return 4 * weights
    return weights if quantize == "int8" else weights / 2 + _SCALE * weights / _INT4_BLOCK
