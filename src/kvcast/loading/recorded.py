"""Results of a proof that a bundle keeps: tokens, and the largest logits of every step.

So a bundle can be compared with its model, and with itself on the day of its export, where the
checkpoint is not at hand. What a file says is checked before it is used. Knows no family.

Letters in shapes: r rows, s steps, k largest logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcast.errors import KvcastError
from kvcast.families.table import family_with
from kvcast.runtimes.base import Float32, Int64

KEY = "outputs"
"""Their name in a manifest's `verification`."""

_LARGEST = 8
_DIGITS = 7  # of a float32


@dataclass(frozen=True)
class TopLogits:
    """The largest logits of tokens, descending, and log-sum-exps [r, s] of all."""

    tokens_rsk: Int64
    logits_rsk: Float32
    sums_rs: Float32


@dataclass(frozen=True)
class RecordedOutputs:
    """Tokens [r, s] that a bundle wrote after its family's probe, and logits before each.

    Attributes:
        written_rs: the tokens.
        reference: of the model in fp32, all tokens at once.
        exported: of the bundle, one token after the other.
        deviation: of the reference's logits, a standard deviation.

    """

    written_rs: Int64
    reference: TopLogits
    exported: TopLogits
    deviation: float


def log_sum_exp(logits: Float32) -> Float32:
    """Return the logarithm of the sum of exponentials over the last axis."""
    largest = logits.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", over="ignore"):
        sums: Float32 = np.log(np.exp(logits - largest).sum(axis=-1)) + largest[..., 0]
    return sums


def record_of(written_rs: Int64, stepped_rsv: Float32, whole_rsv: Float32) -> dict[str, Any]:
    """Return what JSON keeps of a bundle's logits and of the model's."""
    return {
        "written": written_rs.tolist(),
        "reference": _largest(whole_rsv),
        "exported": _largest(stepped_rsv),
        "deviation": float(whole_rsv.std(axis=-1).mean()),
    }


def read_record(verification: Mapping[str, Any], dimensions: Any) -> RecordedOutputs | None:
    """Return the outputs in a manifest's `verification`; None where an older export has none.

    Raises KvcastError for ones that no export wrote.
    """
    if KEY not in verification:
        return None
    try:
        fields = verification[KEY]
        written_rs = np.array(fields["written"], np.int64)
        reference, exported = (_top(fields[name]) for name in ("reference", "exported"))
        deviation = float(fields["deviation"])
        sizes = {top.sums_rs.shape for top in (reference, exported)} | {written_rs.shape}
        tokens = [written_rs, reference.tokens_rsk, exported.tokens_rsk]
        known = all(
            part.size and part.min() >= 0 and part.max() < dimensions.vocab_size for part in tokens
        )
        numbers = [top.logits_rsk for top in (reference, exported)]
        finite = all(np.isfinite(part).all() for part in numbers) and np.isfinite(deviation)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise _wrong() from None
    rows = len(family_with(dimensions).probe(dimensions).prompts)
    if sizes != {(rows, written_rs.shape[-1])} or not known or not finite or deviation <= 0:
        raise _wrong()
    return RecordedOutputs(written_rs, reference, exported, deviation)


def _wrong() -> KvcastError:
    return KvcastError("bundle.json records outputs that no export wrote; export it again")


def _largest(logits_rsv: Float32) -> dict[str, Any]:
    count = min(_LARGEST, logits_rsv.shape[-1])
    tokens_rsk = np.argsort(-logits_rsv, axis=-1, kind="stable")[..., :count]
    logits_rsk = np.take_along_axis(logits_rsv, tokens_rsk, axis=-1)
    return {
        "tokens": tokens_rsk.tolist(),
        "logits": _rounded(logits_rsk.tolist()),
        "log_sum_exps": _rounded(log_sum_exp(logits_rsv).tolist()),
    }


def _rounded(numbers: Sequence[Any]) -> list[Any]:
    return [
        _rounded(each) if isinstance(each, list) else float(f"{each:.{_DIGITS}g}")
        for each in numbers
    ]


def _top(fields: Mapping[str, Any]) -> TopLogits:
    """Read logits; raises ValueError where sizes differ."""
    tokens_rsk = np.array(fields["tokens"], np.int64)
    logits_rsk = np.array(fields["logits"], np.float32)
    sums_rs = np.array(fields["log_sum_exps"], np.float32)
    if not tokens_rsk.shape == logits_rsk.shape == (*sums_rs.shape, tokens_rsk.shape[-1]):
        raise ValueError
    return TopLogits(tokens_rsk, logits_rsk, sums_rs)
