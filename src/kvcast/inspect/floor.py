"""The least time that a machine with given rates could take for given work.

Counts become bytes, by the formats of ONNX Runtime's bundles, and
seconds at the rates that `kvcast.inspect.rates` measures, or that a user gives. Norms, activations,
rotation and softmax count as nothing. Knows no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvcast.inspect.work import Work

_TABLE_BLOCKS = (128, 64, 32, 16)
_INT4_BLOCK = 32
_SCALE = 4  # bytes


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Operations by arithmetic (a multiplication and an addition are two), and bytes read."""

    int8: float = 0.0
    fp32: float = 0.0
    bytes: float = 0.0

    def seconds(self, rates: Mapping[str, float]) -> float:
        """Return the least time at these rates, of which those of its own products are needed.

        Reading and multiplying overlap, the two products do not.
        """
        products = (("int8", self.int8), ("fp32", self.fp32))
        multiplying = sum(count / rates[name] for name, count in products if count)
        return max(multiplying, self.bytes / fastest_read(rates))


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Formats in a family's bundles that other families of the same quantisation may lack."""

    int4_table: bool = False  # whether the head's table has 4 bits in an int4 bundle; else 8
    # whether cross caches have 8 bits where matrices are quantised; else fp32
    int8_cross: bool = False
    # whether scales of int8 matrices' columns are charged; they are few
    column_scales: bool = False


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """In which numbers work is done."""

    precision: str  # fp32, bf16, int8 or int4
    # whether what is not quantised is multiplied in bf16. Nobody measures its rate: int8's is no
    # lower, and a floor must not be too high
    bf16_products: bool = False

    def cost(self, work: Work, stored: Stored, width: int) -> Cost:
        """Charge work on a model whose table is `width` wide.

        Products with weights are int8 where weights are quantised, attention and convolutions are
        fp32. Numbers of bf16 are half as long as those of fp32.
        """
        products = (
            work.encoder + work.cross_keys_values + work.keys_values + work.linear + work.head
        )
        others = work.encoder_attention + work.attention
        is_quantized = self.precision in ("int8", "int4")
        cross = work.cross * (1 if is_quantized and stored.int8_cross else 4)
        read = self._weights(work, stored, width) + cross + 4 * (work.held + work.written)
        cost = Cost(int8=products, fp32=others, bytes=read)
        if not is_quantized:
            cost = replace(cost, int8=0.0, fp32=products + others)
        if self.precision == "bf16":
            cost = replace(cost, bytes=cost.bytes / 2)
        if self.bf16_products:
            cost = replace(cost, int8=cost.int8 + cost.fp32, fp32=0.0)
        return cost

    def _weights(self, work: Work, stored: Stored, width: int) -> float:
        """Return the bytes of matrices and of the table with their scales."""
        if self.precision not in ("int8", "int4"):
            return 4 * (work.encoder_matrices + work.matrices + work.table)
        block = next((size for size in _TABLE_BLOCKS if width % size == 0), 1)
        table = work.table + _SCALE * work.table / block
        # The encoder's products are int8 in an int4 bundle too.
        if self.precision == "int8":
            columns = _SCALE * work.columns if stored.column_scales else 0
            return work.encoder_matrices + work.matrices + columns + table
        if stored.int4_table:
            table -= work.table / 2
        packed = work.matrices / 2 + _SCALE * work.matrices / _INT4_BLOCK
        return work.encoder_matrices + packed + table


def fastest_read(rates: Mapping[str, float]) -> float:
    """Return the best rate of reading: a lower bound on time must not be too high.

    That is from memory or, where it was measured, of reading the same bytes repeatedly, which may
    stay in the processor's cache.
    """
    return max(rates[name] for name in ("read", "read_again") if name in rates)


def best_of(measurements: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the best of each measured rate."""
    return {name: max(measured[name] for measured in measurements) for name in measurements[0]}
