"""Options of a verification. Knows no check."""

from dataclasses import dataclass
from typing import Annotated

from kvcast.options import Bounds, Option, Params

VERIFYING = "verification"


@dataclass(frozen=True, kw_only=True)
class VerifyParams(Params):
    """What is compared, and how far."""

    against: Annotated[
        str | None,
        Option(
            group=VERIFYING,
            help="the checkpoint that a bundle was made from: its fp32 results without a cache are "
            "the reference",
            metavar="CHECKPOINT",
            default="the model itself; of a bundle what its export recorded",
        ),
    ] = None
    positions: Annotated[
        int,
        Option(
            group=VERIFYING,
            help="length of the longest text, whose every position is compared, up to the model's "
            "own; longer where a window is to be passed",
            check=Bounds(least=16, most=1 << 20),
        ),
    ] = 512
    seed: Annotated[
        int,
        Option(
            group=VERIFYING,
            help="of the texts, which the model samples",
            check=Bounds(least=0, most=2**32 - 1),
        ),
    ] = 0
