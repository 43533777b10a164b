"""Decoders with the shapes of known models and random weights, on a device, with a text begun.

Time does not depend on what weights and caches hold, so nothing is downloaded, encoded or
prefilled. Knows nothing of clocks and of how a step is compiled.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kvcast.bench.workloads.gpu import TimedModel
from kvcast.bundle.caches import CACHES
from kvcast.lowering.greedy_step import Text
from kvcast.models.decoder import DecoderModel
from kvcast.models.whisper import Whisper
from kvcast.programs.decoder import AttentionConstants
from kvcast.programs.decoder import Decode as DecodeText
from kvcast.programs.whisper import Decode as DecodeSpeech
from kvcast.spec.decoder import DecoderDimensions
from kvcast.spec.whisper import WhisperDimensions
from kvcast.work import work_of

_SEED = 0


class RandomModel(NamedTuple):
    """A model and the beginning of a text."""

    timed: TimedModel
    decode: nn.Module  # takes tokens, lengths, offsets, caches and what is given
    source: Tensor | None  # stands for the encoder's output [1, t, width] behind cross caches
    begun: Text


@torch.no_grad()
def random_model(timed: TimedModel, dtype: torch.dtype, device: str) -> RandomModel:
    """Return a model on a device, whose caches hold `timed.prompt` positions."""
    family, make = _DECODE[type(timed.dimensions)]
    generator = torch.Generator(device).manual_seed(_SEED)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype, device=device)

    with torch.device("meta"):
        decode = make(timed.dimensions)
    weights = {}
    for name, weight in decode.named_parameters():
        # Every part of the model moves the logits.
        mean = 1 if name.endswith("norm.weight") else 0
        spread = 2 / weight.shape[-1] ** 0.5 if weight.ndim > 1 else 0.2
        weights[name] = normal(*weight.shape).mul_(spread).add_(mean)
    decode.load_state_dict(weights, assign=True)
    # Rotary tables get the weights' dtype, too.
    decode = decode.to(device, dtype).requires_grad_(requires_grad=False).eval()
    caches, source, given = [], None, tuple[Any, ...]()
    for part in CACHES[family](timed.dimensions):
        if part.kind == "cross":
            source = normal(1, part.capacity, part.heads * part.head_dim)
            given = (decode.decoder.project_cross(source),)
        else:
            shape = (1, part.heads, part.capacity, part.head_dim)
            caches += [(normal(*shape), normal(*shape)) for _ in range(part.layers)]
    most = work_of(timed.dimensions).most_positions
    begun = Text(
        token_rs=torch.ones((1, 1), dtype=torch.int64, device=device),
        lengths=torch.full((1,), timed.prompt, dtype=torch.int32, device=device),
        written=torch.zeros(most + 1, dtype=torch.int64, device=device),
        caches=caches,
        given=given,
    )
    return RandomModel(timed, decode, source, begun)


def _decode_text(dimensions: DecoderDimensions) -> nn.Module:
    return DecodeText(DecoderModel(dimensions).decoder, AttentionConstants(dimensions))


# By the type of dimensions, a family's name and what makes its program.
_DECODE: Mapping[type, tuple[str, Callable[[Any], Any]]] = {
    WhisperDimensions: ("whisper", lambda dimensions: DecodeSpeech(Whisper(dimensions))),
    DecoderDimensions: ("decoder", _decode_text),
}
