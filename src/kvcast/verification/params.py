"""Options of a verification."""

from dataclasses import dataclass

from kvcast.options import Group, Params

VERIFYING = Group("verification")


@dataclass(frozen=True, kw_only=True)
class VerifyParams(Params):
    against: str | None = VERIFYING(
        None, metavar="CHECKPOINT", shown="the model itself; of a bundle what its export recorded"
    )(
        "the checkpoint that a bundle was made from: its fp32 results without a cache are "
        "the reference"
    )
    positions: int = VERIFYING(512, least=16, most=1 << 20)(
        "length of the longest text, whose every position is compared, up to the model's "
        "own; longer where a window is to be passed"
    )
    seed: int = VERIFYING(0, least=0, most=2**32 - 1)("of the texts, which the model samples")
