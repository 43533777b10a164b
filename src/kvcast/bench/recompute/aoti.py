"""What the recomputing Whisper needs beside kvcast's own machinery on AOTInductor."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kvcast.bench.recompute.programs import StatesTwice
from kvcast.bundle.manifest import Manifest
from kvcast.programs.whisper import WhisperPrograms
from kvcast.runtimes.aoti import AotiEncoderDecoder, DecodeProgram, open_programs
from kvcast.runtimes.eager import EagerEncoderDecoder, LayerCache
from kvcast.spec.whisper import WhisperDimensions


def with_cast_projections(programs: WhisperPrograms, numbers: torch.dtype) -> WhisperPrograms:
    """Return programs whose projections of cross keys and values are cast and not quantised.

    int4 products are made for few tokens, and these are of many. A lowering that quantises what
    `decode` multiplies knows matrices by the name of `weight`, and leaves these alone.
    """
    copied = deepcopy(programs)
    for layer in copied.decode.decoder.layers:
        attention: Any = layer.cross_attention
        attention.key_value = _Cast(attention.key_value, numbers)
    return copied


class _Cast(nn.Module):
    """Weights of fewer bits, fp32 outside."""

    matrix: Tensor

    def __init__(self, projection: nn.Linear, numbers: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("matrix", projection.weight.to(numbers))
        self.bias = projection.bias

    def forward(self, states: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs], fp32."""
        return linear(states.to(self.matrix.dtype), self.matrix).float() + self.bias


class _Programs:
    """The recomputing programs of a package."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        programs = open_programs(folder, manifest, threads)
        self._encode, self._decode = programs["encode"], DecodeProgram(programs)
        self.dimensions = WhisperDimensions.from_json(manifest.dimensions)

    def encode(self, features_bmt: Tensor) -> list[tuple[Tensor, ...]]:
        return [tuple(self._encode([features_bmt], {}))]

    def decode(
        self,
        tokens_rs: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        self_caches: Sequence[LayerCache],
        source: Sequence[tuple[Tensor]],
    ) -> tuple[Tensor, Sequence[LayerCache]]:
        own = (part for layer in self_caches for part in layer)
        held = int(lengths.max()) + tokens_rs.shape[1]
        inputs = [tokens_rs, lengths, offsets, *own, *source[0]]
        (logits,) = self._decode(inputs, {"linear": held})
        return logits, self_caches


class RecomputingAoti(AotiEncoderDecoder):
    """The runtime of such a package."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        programs = StatesTwice(_Programs(folder, manifest, threads))
        EagerEncoderDecoder.__init__(self, programs)
        self._dtype = getattr(torch, manifest.cache_layers("linear").dtype)
        self.device = manifest.device
