"""Packed matrices of AOTInductor packages, and the operators that multiply with them natively.

A compiled program holds a few words per matrix (`runtimes/native/src/operators.hpp`): the places of
its tiles and of kvcast's functions. The package's file holds codes and scales; when the package is
opened, kvcast's library packs them and fills the words in. Kernels run on the threads of the
program's own loops: two pools of threads would keep each other waiting.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kvcast.errors import KvcastError
from kvcast.runtimes.native.library import DESCRIPTION, Machine
from kvcast.runtimes.native.matrices import BIAS, OPERATORS, Tensors, packed_experts, packed_matrix

_WORDS = re.compile(r"(?P<name>.*_packed)\.(?P<kind>matrix|experts)_(?P<version>\d+)")


class PackedWeights:
    """Matrices, whose memory programs read for as long as this is there."""

    def __init__(
        self, tensors: Mapping[str, Tensor], constants: Iterable[str], threads: int
    ) -> None:
        """Pack the matrices of `tensors` that are among programs' constants.

        Raises LibraryMissingError where kvcast's library cannot be had, KvcastError for programs
        that know another version of it, ValueError or KeyError for tensors that do not fit.
        """
        self.words: dict[str, Tensor] = {}
        self._kept: list[Any] = []
        matches = {name: match for name in constants if (match := _WORDS.fullmatch(name))}
        if not matches:
            return
        if {match["version"] for match in matches.values()} != {OPERATORS}:
            raise KvcastError("it was compiled for another version of kvcast")
        machine = Machine(threads)
        stored = {name: part.numpy() for name, part in tensors.items() if "_packed" in name}
        for constant, match in matches.items():
            words = _MAKERS[match["kind"]](self, machine, stored, match["name"])
            self.words[constant] = torch.from_numpy(words).view(1, -1)

    def _matrix(self, machine: Machine, tensors: Tensors, name: str) -> NDArray[Any]:
        bias = name + BIAS if name + BIAS in tensors else None
        matrix = packed_matrix(machine, tensors, name, bias)
        self._kept.append(matrix)
        return machine.describe(matrix.format, matrix.outputs, matrix.inputs, matrix.tiles)

    def _experts(self, machine: Machine, tensors: Tensors, name: str) -> NDArray[Any]:
        experts = packed_experts(machine, tensors, name)
        self._kept.append(experts)
        first, count = experts.matrices[0], len(experts.matrices)
        sizes = first.format, first.outputs, first.inputs
        return machine.describe(*sizes, experts.addresses, count)


_MAKERS: Mapping[str, Callable[[PackedWeights, Machine, Tensors, str], NDArray[Any]]] = {
    "matrix": PackedWeights._matrix,
    "experts": PackedWeights._experts,
}


# None for eager PyTorch: only an opened package has the memory they read.
torch.library.define(
    "kvcast::multiply_packed", "(Tensor hidden, Tensor matrix, int outputs) -> Tensor"
)
torch.library.define("kvcast::look_up_packed", "(Tensor ids, Tensor matrix, int inputs) -> Tensor")
torch.library.define(
    "kvcast::mix_packed",
    "(Tensor hidden, Tensor router_logits, Tensor gate_up, Tensor down, int each) -> Tensor",
)


@torch.library.register_fake("kvcast::multiply_packed")  # type: ignore[untyped-decorator]
def _(hidden: Tensor, matrix: Tensor, outputs: int) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(hidden.shape[0], outputs)


@torch.library.register_fake("kvcast::look_up_packed")  # type: ignore[untyped-decorator]
def _(ids: Tensor, matrix: Tensor, inputs: int) -> Tensor:  # noqa: ARG001
    return ids.new_empty(ids.shape[0], inputs, dtype=torch.float32)


@torch.library.register_fake("kvcast::mix_packed")  # type: ignore[untyped-decorator]
def _(
    hidden: Tensor,
    router_logits: Tensor,  # noqa: ARG001
    gate_up: Tensor,  # noqa: ARG001
    down: Tensor,  # noqa: ARG001
    each: int,  # noqa: ARG001
) -> Tensor:
    return hidden.new_empty(hidden.shape)


class MatrixWords(nn.Module):
    """The words of a matrix, zeros until a package is opened.

    In two dimensions: Inductor would inline the values of a vector into its code.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.register_buffer(name, torch.zeros(1, DESCRIPTION, dtype=torch.int64))


def multiply(hidden: Tensor, matrix: Tensor, outputs: int) -> Tensor:
    product = torch.ops.kvcast.multiply_packed(hidden.flatten(0, -2), matrix, outputs)
    return product.view(*hidden.shape[:-1], outputs)  # type: ignore[no-any-return]


def look_up(ids: Tensor, matrix: Tensor, inputs: int) -> Tensor:
    rows = torch.ops.kvcast.look_up_packed(ids.flatten().long(), matrix, inputs)
    return rows.view(*ids.shape, inputs)  # type: ignore[no-any-return]


def mix(hidden: Tensor, logits: Tensor, gate_up: Tensor, down: Tensor, each: int) -> Tensor:
    return torch.ops.kvcast.mix_packed(hidden, logits, gate_up, down, each)  # type: ignore[no-any-return]


def mix_shares_of_all(
    hidden: Tensor, logits: Tensor, gate_up: Tensor, down: Tensor, each: int
) -> Tensor:
    """As `mix`, with the chosen experts' weights from a softmax over all experts."""
    share = logits.softmax(dim=-1).topk(each, dim=-1).values.sum(-1, keepdim=True)
    return mix(hidden, logits, gate_up, down, each) * share


_CALLS = r"""
"C" {
extern "C++" {
#include <omp.h>
}

struct kvcast_lent {
  int count;
  void (*on_each)(void (*)(void*), void*);
};
struct kvcast_matrix;
struct kvcast_operators {
  int (*multiply)(const kvcast_matrix*, const float*, int64_t, int64_t, float*, const kvcast_lent*);
  int (*look_up)(const kvcast_matrix*, const int64_t*, int64_t, float*);
  int (*mix)(const kvcast_matrix*, const kvcast_matrix*, const float*, int64_t, int64_t,
             const float*, int64_t, int64_t, float*, const kvcast_lent*);
};
struct kvcast_matrix {
  int64_t version;
  const kvcast_operators* call;
  const void* with;
  int64_t format, outputs, inputs, count;
  const void* tiles;
};

static void kvcast_on_each(void (*work)(void*), void* context) {
#pragma omp parallel
  work(context);
}

static kvcast_lent kvcast_threads() { return {omp_get_max_threads(), kvcast_on_each}; }

// Rows [rows, width], `stride` numbers apart; no data where they do not lie like that.
struct kvcast_rows {
  void* data = nullptr;
  int64_t rows = 0, stride = 0;

  kvcast_rows(AtenTensorHandle tensor, int64_t width) {
    int64_t count = 0, step = 1;
    const bool fits = aoti_torch_get_size(tensor, 0, &rows) == AOTI_TORCH_SUCCESS &&
                      aoti_torch_get_size(tensor, 1, &count) == AOTI_TORCH_SUCCESS &&
                      aoti_torch_get_stride(tensor, 0, &stride) == AOTI_TORCH_SUCCESS &&
                      aoti_torch_get_stride(tensor, 1, &step) == AOTI_TORCH_SUCCESS;
    if (fits && count == width && (step == 1 || width == 1)) aoti_torch_get_data_ptr(tensor, &data);
  }
};

// The words of a matrix; null where they are not those that this program was compiled for.
static const kvcast_matrix* kvcast_words(AtenTensorHandle tensor) {
  void* data = nullptr;
  if (aoti_torch_get_data_ptr(tensor, &data) != AOTI_TORCH_SUCCESS) return nullptr;
  const kvcast_matrix* words = static_cast<const kvcast_matrix*>(data);
  return words->version == 1 ? words : nullptr;
}

static float* kvcast_result(int64_t rows, int64_t width, AtenTensorHandle* result) {
  const int64_t sizes[] = {rows, width}, strides[] = {width, 1};
  void* data = nullptr;
  const bool made =
      aoti_torch_empty_strided(2, sizes, strides, aoti_torch_dtype_float32(),
                               aoti_torch_device_type_cpu(), 0, result) == AOTI_TORCH_SUCCESS &&
      aoti_torch_get_data_ptr(*result, &data) == AOTI_TORCH_SUCCESS;
  return made ? static_cast<float*>(data) : nullptr;
}

__attribute__((visibility("hidden"))) AOTITorchError aoti_torch_cpu_multiply_packed(
    AtenTensorHandle hidden, AtenTensorHandle matrix, int64_t outputs, AtenTensorHandle* result) {
  const kvcast_matrix* words = kvcast_words(matrix);
  if (!words || words->outputs != outputs) return AOTI_TORCH_FAILURE;
  const kvcast_rows x(hidden, words->inputs);
  float* out = kvcast_result(x.rows, outputs, result);
  if (x.rows == 0) return AOTI_TORCH_SUCCESS;
  if (!x.data || !out) return AOTI_TORCH_FAILURE;
  const kvcast_lent threads = kvcast_threads();
  return words->call->multiply(words, static_cast<const float*>(x.data), x.stride, x.rows, out,
                               &threads);
}

__attribute__((visibility("hidden"))) AOTITorchError aoti_torch_cpu_look_up_packed(
    AtenTensorHandle ids, AtenTensorHandle matrix, int64_t inputs, AtenTensorHandle* result) {
  const kvcast_matrix* words = kvcast_words(matrix);
  int64_t count = 0, step = 1;
  void* data = nullptr;
  const bool fits = words && words->inputs == inputs &&
                    aoti_torch_get_size(ids, 0, &count) == AOTI_TORCH_SUCCESS &&
                    aoti_torch_get_stride(ids, 0, &step) == AOTI_TORCH_SUCCESS &&
                    aoti_torch_get_data_ptr(ids, &data) == AOTI_TORCH_SUCCESS;
  if (!fits || (step != 1 && count > 1)) return AOTI_TORCH_FAILURE;
  float* out = kvcast_result(count, inputs, result);
  if (count == 0) return AOTI_TORCH_SUCCESS;
  if (!data || !out) return AOTI_TORCH_FAILURE;
  return words->call->look_up(words, static_cast<const int64_t*>(data), count, out);
}

__attribute__((visibility("hidden"))) AOTITorchError aoti_torch_cpu_mix_packed(
    AtenTensorHandle hidden, AtenTensorHandle router_logits, AtenTensorHandle gate_up,
    AtenTensorHandle down, int64_t each, AtenTensorHandle* result) {
  const kvcast_matrix *up = kvcast_words(gate_up), *last = kvcast_words(down);
  if (!up || !last) return AOTI_TORCH_FAILURE;
  const kvcast_rows x(hidden, up->inputs), logits(router_logits, up->count);
  float* out = kvcast_result(x.rows, up->inputs, result);
  if (x.rows == 0) return AOTI_TORCH_SUCCESS;
  if (!x.data || !logits.data || logits.rows != x.rows || !out) return AOTI_TORCH_FAILURE;
  const kvcast_lent threads = kvcast_threads();
  return up->call->mix(up, last, static_cast<const float*>(x.data), x.stride, x.rows,
                       static_cast<const float*>(logits.data), logits.stride, each, out, &threads);
}
}
"""

SHIMS: Mapping[Any, Sequence[str]] = {
    torch.ops.kvcast.multiply_packed.default: [_CALLS.strip()],
    torch.ops.kvcast.look_up_packed.default: [],
    torch.ops.kvcast.mix_packed.default: [],
}
"""C++ that Inductor writes into a package with these operators, so that it calls them directly."""
