"""int4 codes calibrated on text that the model itself generates.

A matrix's codes are chosen by the mean squares of its inputs, as in llama.cpp's importance matrices
(`tools/imatrix`). These depend on the text a little more than ranges do, for which random tokens
suffice (`activations.py`).

SmolLM2-135M, rotated so that its weights fit no 4-bit grid: this regains 79 to 80%, with two seeds,
of the log likelihood that int4 costs on five texts; random tokens 72 to 74%. GPTQ
(arXiv:2210.17323) regains 60 to 66% alone, and with these weights 74 to 77%, so it is left out.
tests/text/test_smollm2_calibrated.py holds two of the texts to half.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kvcast.errors import KvcastError
from kvcast.models.executor import TorchModel
from kvcast.runtimes.native.matrices import roles_of, searched
from kvcast.spec.runtimes import OnPhase
from kvcast.spec.stored_matrices import BLOCK, BlocksOf, CodedMatrix

_LENGTH = 256


class CalibrationModel(Protocol):
    @property
    def dimensions(self) -> Any:
        """Sizes of a model whose layers are alike: `windows`, `kv_heads`, `head_dim`."""

    def __getitem__(self, name: str, /) -> Any:
        """Return a program; `decode` gives logits before anything else."""


@torch.no_grad()
def write_text(programs: CalibrationModel, tokens: int, seed: int) -> Tensor:
    """Sample texts, each from a random first token; return int64 [rows, s].

    From the full distribution (LLM-QAT, arXiv:2305.17888, section 3.1). Raises KvcastError if
    logits are not finite.
    """
    dimensions = programs.dimensions
    length = min(_LENGTH, dimensions.max_positions)
    rows = tokens // length
    generator = torch.Generator().manual_seed(seed)
    caches = _caches(programs, rows, length)
    tokens_rs = torch.randint(dimensions.vocab_size, (rows, length), generator=generator)
    for past in range(length - 1):
        logits_rpv, *_ = programs["decode"](
            tokens_rs[:, past : past + 1],
            torch.full((rows,), past, dtype=torch.int32),
            torch.tensor([0]),
            *caches,
        )
        if not logits_rpv.isfinite().all():
            raise KvcastError("the model's logits are not all finite: fetch its weights again")
        shares_rv = logits_rpv[:, 0].softmax(dim=-1)
        tokens_rs[:, past + 1] = torch.multinomial(shares_rv, 1, generator=generator)[:, 0]
    return tokens_rs


@torch.no_grad()
def decode_from_the_start(programs: CalibrationModel, tokens_rs: Tensor) -> None:
    """Decode whole rows with logits of all positions, so that all pass every matrix."""
    for tokens_1s in tokens_rs[:, None]:
        count = tokens_1s.shape[1]
        caches, lengths = _caches(programs, 1, count), torch.zeros(1, dtype=torch.int32)
        programs["decode"](tokens_1s, lengths, torch.arange(count), *caches)


def _caches(programs: CalibrationModel, rows: int, capacity: int) -> list[Tensor]:
    dimensions = programs.dimensions
    shape = (rows, dimensions.kv_heads, capacity, dimensions.head_dim)
    return [torch.zeros(shape) for _ in dimensions.windows for _ in range(2)]


_TOKENS = 4096
_SEED = 0
# Of the mean square of all inputs, added to each: one may have been small in this text alone.
_DAMPING = 0.01


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    blocks_of: BlocksOf  # the checkpoint's codes, or calibrated ones, computed in each call
    record: dict[str, Any]  # counts of matrices and tokens, and the seed; for a bundle's manifest


@torch.no_grad()
def calibrate(programs: TorchModel, blocks_of: BlocksOf, on_phase: OnPhase) -> Calibrated:
    """Calibrate by the inputs of layers' fp32 matrices, except for the table and the head.

    The checkpoint's codes are kept. Raises KvcastError if logits are not finite.
    """
    decode = programs["decode"]
    roles = roles_of(decode.program)
    whole: dict[str, Any] = {
        name: decode.matrix(name) for name in sorted(roles.products - roles.heads)
    }
    divisible = {name: matrix for name, matrix in whole.items() if matrix.in_features % BLOCK == 0}
    matrices = {name: matrix for name, matrix in divisible.items() if blocks_of(name) is None}
    record = {"calibrated": len(matrices), "kept": len(divisible) - len(matrices)}
    if not matrices:
        on_phase("calibrating nothing")
        return Calibrated(blocks_of=blocks_of, record=record)
    on_phase("calibrating: the model writes a text")
    tokens_rs = write_text(programs, _TOKENS, _SEED)
    on_phase("calibrating: measuring inputs")
    with _squares(matrices) as squares:
        decode_from_the_start(programs, tokens_rs)

    def calibrated_blocks_of(name: str) -> CodedMatrix | None:
        if name not in matrices:
            return blocks_of(name)
        return searched(matrices[name].weight.numpy(), _weights(squares[name]).numpy())

    return Calibrated(
        blocks_of=calibrated_blocks_of,
        record={**record, "tokens": tokens_rs.numel(), "seed": _SEED},
    )


def _weights(squares_i: Tensor) -> Tensor:
    return squares_i + (_DAMPING * squares_i.mean()).clamp(min=torch.finfo(torch.float32).tiny)


@contextmanager
def _squares(matrices: Mapping[str, nn.Linear]) -> Iterator[dict[str, Tensor]]:
    """Yield the mean squares of each matrix's inputs, [inputs], summed over the model's calls."""
    squares: dict[str, Tensor] = {}

    def measure(name: str, hidden: Tensor) -> None:
        mean = hidden.flatten(0, -2).square().mean(dim=0)
        squares[name] = squares[name] + mean if name in squares else mean

    hooks = [
        matrix.register_forward_pre_hook(lambda _, given, name=name: measure(name, *given))
        for name, matrix in matrices.items()
    ]
    try:
        yield squares
    finally:
        for hook in hooks:
            hook.remove()
