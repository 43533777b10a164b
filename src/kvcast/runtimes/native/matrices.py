"""Matrices for kvcast's own kernels: quantized, stored in bundles, and packed into tiles.

A bundle holds a processor-independent form: a matrix of floats, or codes with their scales and
minimums (`kvcast.spec.stored_matrices`).

- int8: a scale per output, in models with an encoder.
- int8 in blocks: a scale for 32 inputs of an output; decoder-only models, tables that int4 keeps at
  8 bits, and Q8_0. Perplexity grows by less than half of the growth with one scale per output.
- int4: a scale and a minimum for 32 inputs of an output; Q4_0, Q4_1 and Q4_K as well.

In bundles, a GGUF file's Q4_0, Q4_1 and Q8_0 stay exact; the scales and minimums of Q4_K, products
of two, become fp16; Q5 and Q6, and fused matrices whose parts differ, become 8 bits in blocks.
Checkpoints opened directly keep more (`weights.py`). AOTInductor's packages hold the same.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.runtimes.native.library import Format, Machine
from kvcast.runtimes.native.plan_builder import Experts, Matrix
from kvcast.spec.program import Node, Program, SelfAttention, Step, leaves
from kvcast.spec.recipes import MATRICES
from kvcast.spec.runtimes import OWN, BundlePrecision
from kvcast.spec.stored_matrices import BLOCK, BlocksOf, CodedMatrix, rounded

CODES, SCALES, LEAST = ".codes", ".scales", ".least"
"""Suffixes of the names of a quantised matrix's parts."""

BIAS = ".bias"
OPERATORS = "1"
"""The version of operators.hpp."""

MATRIX, EXPERTS = f".matrix_{OPERATORS}", f".experts_{OPERATORS}"
"""Suffix in compiled programs: the words of a matrix, or of one for each expert."""

Tensors = Mapping[str, NDArray[Any]]


def packed_matrix(machine: Machine, tensors: Tensors, name: str, bias: str | None = None) -> Matrix:
    """Pack a matrix with its bias; ValueError or KeyError for tensors that do not fit."""
    format_, codes, scales, inputs = _stored(tensors, name)
    added = None if bias is None else tensors[bias]
    if added is not None and (added.dtype != np.float32 or added.shape != (len(codes),)):
        raise ValueError(f"{bias} does not fit {name}")
    return Matrix(format_, len(codes), inputs, machine.pack(format_, codes, scales, added, inputs))


def packed_experts(machine: Machine, tensors: Tensors, name: str) -> Experts:
    """Pack a matrix for each expert; ValueError or KeyError for tensors that do not fit."""
    parts = {
        name + part: tensors[name + part]
        for part in ("", CODES, SCALES, LEAST)
        if name + part in tensors
    }
    return Experts.of(
        [
            packed_matrix(machine, dict(zip(parts, of_one, strict=True)), name)
            for of_one in zip(*parts.values(), strict=True)
        ]
    )


def _stored(
    tensors: Tensors, name: str
) -> tuple[Format, NDArray[Any], NDArray[np.float32] | None, int]:
    if name in tensors:
        codes = _checked(tensors, name, np.float32, (None, None))
        return Format.F32, codes, None, codes.shape[1]
    scales = tensors[name + SCALES]
    if name + LEAST in tensors:
        codes = _checked(tensors, name + CODES, np.uint8, (None, None))
        inputs = 2 * codes.shape[1]
        shape = (len(codes), -(-inputs // BLOCK))
        parts = [_checked(tensors, name + part, np.float16, shape) for part in (SCALES, LEAST)]
        return Format.INT4_MIN, codes, np.stack(parts).astype(np.float32), inputs
    codes = _checked(tensors, name + CODES, np.int8, (None, None))
    outputs, inputs = codes.shape
    if scales.ndim == 1:
        scales = _checked(tensors, name + SCALES, np.float32, (outputs,))
        return Format.INT8, codes, scales, inputs
    scales = _checked(tensors, name + SCALES, np.float16, (outputs, -(-inputs // BLOCK)))
    return Format.INT8_BLOCK, codes, scales.astype(np.float32), inputs


def _checked(
    tensors: Tensors, name: str, dtype: Any, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    tensor = tensors[name]
    fits = tensor.ndim == len(shape) and all(
        size > 0 if wanted is None else size == wanted
        for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits or tensor.dtype != dtype:
        raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}, which does not fit")
    return tensor


_DECODE, _ENCODE, _LOGITS = "decode", "encode", "logits"
_SMALL = {"mixture_of_experts": 1, "select_positions": 2}
"""Arguments that a small product makes on which a choice depends, by operation."""
_STACKS = ("mixture_of_experts", "latent_attention")
"""Operations whose matrices are stacks: one for each expert or head."""


class Kind(Enum):
    EXACT = "fp32"
    INT8 = "int8"
    INT8_BLOCK = "int8 in blocks"
    TABLE = "int8 in blocks, or what the checkpoint has"
    INT4 = "int4"


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The uses of a program's matrices, by their names."""

    products: Set[str]
    convolutions: Set[str]
    tables: Set[str]
    heads: Set[str]  # their products become logits, with only scalar operations in between
    routers: Set[str]
    crosses: bool = True  # layers may attend to an encoded input


def roles_of(program: Program) -> Roles:
    return Roles(
        products=program.matrices("linear").union(*map(program.matrices, _STACKS)),
        convolutions=program.matrices("conv1d") | program.matrices("conv2d"),
        tables=program.matrices("embedding"),
        heads=set(_heads(program)),
        routers=set(_routers(program)),
        crosses=any(map(_crosses, program.steps)),
    )


def kinds(programs: Mapping[str, Roles], quantize: str) -> dict[str, Kind]:
    """Choose the storage of each matrix that programs multiply with, by name.

    With "int4", these keep 8 bits: heads, tables, convolutions, and matrices that `decode` does not
    read (they run once for a source, where many tokens share each weight load). Routers are not
    quantized: they are small, and their choices matter.
    """
    # Blocks take some 5% more time and more than halve what int8 costs of a decoder-only model's
    # perplexity. What they would do for encoders, and decoders that attend to them, was not
    # measured.
    decodes = _DECODE in programs
    has_audio_prefix = decodes and _ENCODE in programs and not programs[_DECODE].crosses
    int8 = Kind.INT8_BLOCK if has_audio_prefix or not programs.keys() - {_DECODE} else Kind.INT8
    whole = {"none": Kind.EXACT, "int8": int8, "int4": Kind.INT4}[quantize]
    chosen_kinds: dict[str, Kind] = {}
    for name, roles in programs.items():
        once = decodes and name != _DECODE and whole is not Kind.EXACT
        chosen = Kind.INT8 if once else whole
        for matrix in roles.products - roles.routers:
            if chosen_kinds.get(matrix) is not Kind.INT4:
                chosen_kinds[matrix] = chosen
        if whole is not Kind.EXACT:
            chosen_kinds |= dict.fromkeys(roles.convolutions, Kind.INT8)
    if whole is Kind.INT4:
        for roles in programs.values():
            for matrix in (roles.tables | roles.heads) & chosen_kinds.keys():
                chosen_kinds[matrix] = Kind.TABLE
    return chosen_kinds


def choices(programs: Mapping[str, Roles]) -> dict[str, tuple[str, ...]]:
    *without_int4, _ = MATRICES
    convolved = {name for roles in programs.values() for name in roles.convolutions}
    return {
        name: tuple(without_int4) if name in convolved else MATRICES
        for name in sorted(kinds(programs, "int8"))
    }


def kinds_by(programs: Mapping[str, Roles], precision: BundlePrecision) -> dict[str, Kind]:
    """Choose the storage of each matrix, by a recipe if any; KvcastError if its matrices differ."""
    if precision.recipe is None:
        return kinds(programs, "int8" if precision.quantize == OWN else precision.quantize)
    asked, allowed, int8 = precision.recipe.matrices, choices(programs), kinds(programs, "int8")
    if strange := sorted(asked.keys() ^ allowed.keys()):
        raise KvcastError(f"the recipe is of another model: {strange[0]} is in one of them alone")
    for name, chosen in asked.items():
        if chosen not in allowed[name]:
            raise KvcastError(f"the recipe asks for {chosen} of {name}, a convolution")
    return {
        name: {"fp32": Kind.EXACT, "int8": int8[name], "int4": Kind.INT4}[chosen]
        for name, chosen in asked.items()
    }


def store_matrix(
    name: str, matrix: NDArray[np.float32], kind: Kind, blocks_of: BlocksOf
) -> dict[str, NDArray[Any]]:
    """Return the weight file's tensors of a matrix [outputs, inputs], or one for each expert.

    The checkpoint's codes are kept: 8 bits always, 4 bits with int4.
    """
    if kind is Kind.EXACT:
        return {name: matrix}
    if matrix.ndim > 2:
        whole = store_matrix(name, matrix.reshape(-1, matrix.shape[-1]), kind, blocks_of)
        return {
            key: part.reshape(*matrix.shape[:2], *part.shape[1:]) for key, part in whole.items()
        }
    own = blocks_of(name)
    if own is not None and own.shape != matrix.shape:
        raise AssertionError(f"the checkpoint's codes of {name} are {own.shape}")
    if own is not None and (own.least is None or kind in (Kind.INT4, Kind.TABLE)):
        return coded_tensors(name, own)
    if kind is Kind.INT8 or matrix.shape[1] % BLOCK:
        codes, scales = _int8(matrix)
        return {name + CODES: codes, name + SCALES: scales}
    return coded_tensors(name, searched(matrix) if kind is Kind.INT4 else rounded(matrix))


def _int8(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    scales = np.abs(matrix).max(axis=1) / np.float32(127)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    return np.rint(matrix * inverse[:, None]).astype(np.int8), scales.astype(np.float32)


def coded_tensors(name: str, blocks: CodedMatrix) -> dict[str, NDArray[Any]]:
    """Return the weight file's tensors of a matrix in codes."""
    codes = np.ascontiguousarray(blocks.codes)
    tensors: dict[str, NDArray[Any]] = {name + SCALES: np.ascontiguousarray(blocks.scales)}
    if blocks.least is not None:
        codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
        tensors[name + LEAST] = np.ascontiguousarray(blocks.least)
    return {name + CODES: codes, **tensors}


def _crosses(step: Step) -> bool:
    if step.operation == "self_attention":
        return SelfAttention[Any](*step.arguments, **step.keywords).crosses
    return step.operation == "cross_attention"


def _routers(program: Program) -> Iterator[str]:
    by_name = {step.name: step for step in program.steps}
    for step in program.steps:
        logits = _SMALL.get(step.operation)
        if logits is not None:
            yield by_name[step.arguments[logits].name].arguments[1].name


def _heads(program: Program) -> Iterator[str]:
    by_name = {step.name: step for step in program.steps}
    waiting = [program.outputs[_LOGITS]] if _LOGITS in program.outputs else []
    while waiting:
        step = by_name.get(waiting.pop())
        if step is None:
            continue
        if step.operation == "linear":
            yield step.arguments[1].name
        else:
            waiting += [leaf.name for leaf in leaves(step.arguments) if isinstance(leaf, Node)]


_MOST_CODE = 15
# Of make_qkx2_quants' 21 ranges, up to a step narrower and wider than a block's, every fourth.
_STEPS = np.arange(-1.0, 1.01, 0.2, dtype=np.float32)
_AT_ONCE = 1 << 12  # blocks, so that the search's arrays stay in the CPU caches
_LARGEST = np.float32(np.finfo(np.float16).max)


def searched(
    matrix: NDArray[np.float32], weights: NDArray[np.float32] | None = None
) -> CodedMatrix:
    """Return int4 blocks of a matrix, whose inputs are a multiple of 32, with little squared error.

    As llama.cpp's `make_qkx2_quants` for Q4_K: ranges a little narrower and wider than a block's
    give codes; of their least-squares scales and minimums, in fp16, the pair with the least error
    is kept. `weights` [inputs], above 0, weigh the squared errors of an input.
    """
    outputs, inputs = matrix.shape
    given = np.ones(inputs, np.float32) if weights is None else weights
    codes = np.empty(matrix.shape, np.uint8)
    scales, least = (np.empty((outputs, inputs // BLOCK), np.float16) for _ in range(2))
    for block, weights_i in enumerate(given.reshape(-1, BLOCK)):
        columns = slice(block * BLOCK, (block + 1) * BLOCK)
        weights_i1 = (weights_i / weights_i.mean())[:, None]
        for first in range(0, outputs, _AT_ONCE):
            rows = slice(first, first + _AT_ONCE)
            x_ib = np.ascontiguousarray(matrix[rows, columns].T)
            with np.errstate(all="ignore"):  # values outside float16's range, and infinite ones
                block_codes, scales[rows, block], least[rows, block] = _searched(x_ib, weights_i1)
            codes[rows, columns] = block_codes.T
    return CodedMatrix(codes=codes, scales=scales, least=least)


def _searched(
    x_ib: NDArray[np.float32], weights_i1: NDArray[np.float32]
) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16]]:
    """Return codes [32, blocks], scales and least values [blocks]; weights are 1 on average."""
    lowest, highest = x_ib.min(axis=0), x_ib.max(axis=0)
    extent = highest - lowest
    best = lowest.clip(-_LARGEST, _LARGEST)
    scales = (extent / _MOST_CODE).clip(0, _LARGEST)
    codes, scales, best, error = _coded(x_ib, weights_i1, scales, best)
    weighted = weights_i1 * x_ib
    total = weighted.sum(axis=0)
    for step in _STEPS:
        width = extent / (_MOST_CODE + step)
        tried, *_ = _coded(x_ib, weights_i1, width, lowest)
        # The least-squares line of values over codes.
        products = (tried * weighted).sum(axis=0)
        counted = weights_i1 * tried
        ones = counted.sum(axis=0)
        counted *= tried
        squares = counted.sum(axis=0)
        spread = BLOCK * squares - ones * ones
        fits = spread > 0
        slope = np.divide(BLOCK * products - ones * total, spread, out=width, where=fits)
        start = (total - slope * ones) / BLOCK
        candidate = _coded(x_ib, weights_i1, slope, np.where(fits, start, lowest))
        better = candidate[-1] < error
        codes = np.where(better, candidate[0], codes)
        scales, best = np.where(better, candidate[1], scales), np.where(better, candidate[2], best)
        error = np.minimum(error, candidate[3])
    return codes.astype(np.uint8), scales.astype(np.float16), best.astype(np.float16)


def _coded(
    x_ib: NDArray[np.float32],
    weights_i1: NDArray[np.float32],
    scales: NDArray[np.float32],
    least: NDArray[np.float32],
) -> tuple[NDArray[np.float32], ...]:
    """Round to codes; return them, the scales and minimums rounded to float16, and the error."""
    scales, least = (
        part.clip(-_LARGEST, _LARGEST).astype(np.float16).astype(np.float32)
        for part in (scales, least)
    )
    shifted = x_ib - least
    codes = np.divide(shifted, scales, out=np.zeros_like(shifted), where=scales > 0)
    codes = np.rint(codes, out=codes).clip(0, _MOST_CODE, out=codes)
    errors = codes * scales
    errors -= shifted
    np.square(errors, out=errors)
    errors *= weights_i1
    return codes, scales, least, errors.sum(axis=0)
