"""The precisions that kvcast generates in: their names, classes to compare within, and bytes."""

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


def weight_bytes(quantize: str, matrices: int, table: int, width: int) -> float:
    """Return the bytes of layers' matrices and of a table that is the head.

    Blocks have scales; those of columns are few. Tables are stored in 8 bits, with int4 too.

    Args:
        quantize: none, int8 or int4.
        matrices: weights of the matrices.
        table: weights of the table.
        width: of the table, which decides its blocks.

    """
    if quantize == "none":
        return 4 * (matrices + table)
    block = next((size for size in _TABLE_BLOCKS if width % size == 0), 1)
    stored = table + _SCALE * table / block
    if quantize == "int8":
        return matrices + stored
    return matrices / 2 + _SCALE * matrices / _INT4_BLOCK + stored
