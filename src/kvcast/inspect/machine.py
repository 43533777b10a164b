"""A machine's peak rates: given by the user, or measured in a process of its own.

Knows no model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from kvcast.inspect.floor import Cost, fastest_read
from kvcast.inspect.rates import LARGE, Rates
from kvcast.inspect.units import plural
from kvcast.machine.child import Remote
from kvcast.runtimes.native.library import chosen_instructions

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
        bytes_per_weight: float,
    ) -> Self:
        """Use the given figures, and measure the rest with that many threads.

        `step_bytes` are what one step reads. The best figure of `kvcast.inspect.rates` counts,
        since it yields a lower bound on the time: the fastest reading, and the better of int8 and
        float32 products, unless weights are float32. Raises KvcastError if there is no native
        runtime to measure with.
        """
        if bandwidth is not None and rate is not None:
            return cls(bandwidth=bandwidth, rate=rate)
        rates = _measured(threads, step_bytes)
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


def _measured(threads: int, step_bytes: float) -> Mapping[str, float]:
    # The native runtime's one line, in this process.
    chosen_instructions()
    with Remote(Rates(threads), {}) as remote:
        rates: Mapping[str, float] = remote.call(
            "measure", working_set=max(_LEAST_BYTES, min(round(step_bytes), LARGE))
        )
    return rates
