"""A machine's peak rates: given by the user, or measured in a process of its own.

Knows no model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Self

from kvcast.errors import KvcastError
from kvcast.inspect.units import plural
from kvcast.inspect.work.floor import Cost, fastest_read
from kvcast.machine.rates import LARGE, Rates
from kvcast.machine.remote import Remote

# Larger products reach no higher rate; they only take longer to measure.
_MOST_TOKENS = 512
_MOST_WIDTH = 2048
_LEAST_BYTES = 2**20

GIVEN = "given"

FLOAT32 = 4.0
"""Weights of at least this many bytes are multiplied in float32."""


@dataclass(frozen=True, kw_only=True)
class MachineRates:
    """Bytes read and operations done per second, and where each figure comes from."""

    bandwidth: float
    rate: float
    bandwidth_from: str = GIVEN
    rate_from: str = GIVEN

    @classmethod
    def measure(
        cls,
        *,
        bandwidth: float | None,
        rate: float | None,
        threads: int,
        step_bytes: float,
        tokens: int,
        width: int,
        bytes_per_weight: float,
    ) -> Self:
        """Use the given figures, and measure the rest with that many threads.

        `kvcast.machine.rates` measures at the model's sizes, of which `step_bytes` are what one
        step reads. The best figure counts, since it yields a lower bound on the time: the fastest
        reading, and the better of int8 and float32 products, unless weights are float32. Raises
        KvcastError if `onnx` is needed but not installed.
        """
        if bandwidth is not None and rate is not None:
            return cls(bandwidth=bandwidth, rate=rate)
        rates = _measured(threads, step_bytes, tokens, width)
        products = ("fp32",) if bytes_per_weight >= FLOAT32 else ("int8", "fp32")
        fastest = max(products, key=rates.__getitem__)
        measured = f"measured with {plural(threads, 'thread')}"
        return cls(
            bandwidth=bandwidth or fastest_read(rates),
            rate=rate or rates[fastest],
            bandwidth_from=GIVEN if bandwidth else measured,
            rate_from=GIVEN if rate else f"{fastest}, {measured}",
        )

    def seconds(self, operations: float, read: float) -> float:
        """Return the least possible time for a call, with reading and multiplying overlapped."""
        cost = Cost(fp32=operations, bytes=read)
        return cost.seconds({"fp32": self.rate, "read": self.bandwidth})


def _measured(threads: int, step_bytes: float, tokens: int, width: int) -> Mapping[str, float]:
    if find_spec("onnx") is None:
        raise KvcastError(
            "measuring needs onnx: pip install 'kvcast[onnx]', or give --bandwidth and --rate, "
            "or --no-measure"
        )
    with Remote(Rates(threads), {}) as remote:
        rates: Mapping[str, float] = remote.call(
            "measure",
            working_set=max(_LEAST_BYTES, min(round(step_bytes), LARGE)),
            tokens=min(tokens, _MOST_TOKENS),
            width=min(width, _MOST_WIDTH),
        )
    return rates
