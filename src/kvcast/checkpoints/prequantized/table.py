"""The methods whose folders open, by `quant_method`."""

from collections.abc import Callable, Mapping

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.auto_round import read_auto_round
from kvcast.checkpoints.prequantized.bitsandbytes import read_bitsandbytes
from kvcast.checkpoints.prequantized.compressed_tensors import read_compressed_tensors
from kvcast.checkpoints.prequantized.fp8_names import read_published_fp8
from kvcast.checkpoints.prequantized.gptq import read_awq, read_gptq
from kvcast.checkpoints.prequantized.hqq import read_hqq
from kvcast.checkpoints.prequantized.mlx import read_mlx
from kvcast.checkpoints.prequantized.modelopt import read_modelopt
from kvcast.checkpoints.prequantized.parts import Stored
from kvcast.checkpoints.prequantized.torchao import read_torchao

MLX, MODELOPT = "mlx", "modelopt"
"""Of folders whose configuration names no `quant_method`: all of MLX's, ModelOpt's older ones."""

METHODS: Mapping[str, Callable[[Fields, Stored], Stored]] = {
    "fp8": read_published_fp8,
    "gptq": read_gptq,
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "bitsandbytes": read_bitsandbytes,
    "auto-round": read_auto_round,
    "torchao": read_torchao,
    "hqq": read_hqq,
    MODELOPT: read_modelopt,
    MLX: read_mlx,
}
"""What makes one tensor of those of each matrix."""


def read_prequantized(kind: str, fields: Fields, stored: Mapping[str, StoredTensor]) -> Stored:
    """Return a folder's tensors with one for each matrix, [outputs, inputs].

    Args:
        kind: a `quant_method` of METHODS.
        fields: the configuration's `quantization_config`.
        stored: by the file's names.

    Raises:
        KvcastError: sizes contradict one another, a tensor is missing, a scale is not finite, or
            a variant is not supported.

    """
    return METHODS[kind](fields, dict(stored))
