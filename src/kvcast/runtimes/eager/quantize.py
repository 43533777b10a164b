"""Weight-only quantized linear layers for the CPU, in eager mode.

int8 and int4 weights with bf16 activations, by PyTorch's kernels for packed weights
(`aten._weight_int8pack_mm`, `aten._weight_int4pack_mm_for_cpu`), which torchao and gpt-fast use
too. A product's input is cast to bf16 and its result back to fp32.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kvcast.errors import KvcastError
from kvcast.runtimes.native.matrices import roles_of
from kvcast.spec.program import Program

_INT4_GROUP = 32
_INT4_OUTPUTS = 16


class Int8Linear(nn.Module):
    """Symmetric int8 weights with one scale per output."""

    weight: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight_oi = linear.weight
        scales_o = (weight_oi.abs().amax(dim=1) / 127).clamp(min=1e-12)
        self.register_buffer("weight", (weight_oi / scales_o[:, None]).round().to(torch.int8))
        self.register_buffer("scales", scales_o.to(torch.bfloat16))
        self.bias = linear.bias

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, -2).to(torch.bfloat16)
        product = torch.ops.aten._weight_int8pack_mm(flat, self.weight, self.scales).float()
        return _biased(product, self.bias).unflatten(0, hidden.shape[:-1])


class Int4Linear(nn.Module):
    """Asymmetric int4 weights in groups of 32 inputs."""

    weight: Tensor
    scales_and_zeros: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape
        if inputs % _INT4_GROUP or outputs % _INT4_OUTPUTS:
            raise KvcastError(
                f"a matrix of {inputs} inputs and {outputs} outputs cannot be quantised to int4 "
                f"(multiples of {_INT4_GROUP} and {_INT4_OUTPUTS}): use --quantize int8 or none"
            )
        groups = linear.weight.unflatten(1, (-1, _INT4_GROUP))
        low, high = groups.amin(dim=2), groups.amax(dim=2)
        scales = ((high - low) / 15).clamp(min=1e-6)
        codes = ((groups - low[..., None]) / scales[..., None]).round().clamp(0, 15)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            codes.flatten(1).to(torch.int32), 1
        )
        self.register_buffer("weight", packed)
        # The kernel computes (code - 8) * scale + zero.
        zeros = low + 8 * scales
        both = torch.stack([scales, zeros], dim=2).transpose(0, 1).contiguous()
        self.register_buffer("scales_and_zeros", both.to(torch.bfloat16))
        self.bias = linear.bias

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, -2).to(torch.bfloat16)
        product = torch.ops.aten._weight_int4pack_mm_for_cpu(
            flat, self.weight, _INT4_GROUP, self.scales_and_zeros
        ).float()
        return _biased(product, self.bias).unflatten(0, hidden.shape[:-1])


def _biased(product_no: Tensor, bias_o: Tensor | None) -> Tensor:
    return product_no if bias_o is None else product_no + bias_o


_LINEARS = {"int8": Int8Linear, "int4": Int4Linear}


class Executed(Protocol):
    @property
    def program(self) -> Program:
        """Return its operations."""

    def matrix(self, name: str) -> Any:
        """Return the layer that multiplies by a matrix."""

    def replace_matrix(self, name: str, layer: nn.Module) -> None:
        """Multiply by another layer."""


@torch.inference_mode()
def quantize_matrices(executed: Executed, quantize: str) -> set[str]:
    """Replace the matrices of a program's products with "int8" or "int4" in place; return names.

    Embedding tables, routers and gates of one output stay. Raises KvcastError if the kernel does
    not support a matrix's sizes; others may have been replaced.
    """
    roles = roles_of(executed.program)
    replaced = {
        name
        for name in executed.program.matrices("linear") - roles.tables - roles.routers
        if executed.matrix(name).out_features > 1
    }
    for name in sorted(replaced):
        executed.replace_matrix(name, _LINEARS[quantize](executed.matrix(name)))
    return replaced
