"""Whisper as most exports have it: every call of the decoder projects cross keys and values anew.

`encode` gives the encoder's states instead of caches, and `decode` takes them and projects each
layer's cross keys and values before it does what the cached `decode` does, with the same modules.
So the two differ in nothing else. A baseline: nobody but benchmarks and their tests need it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from kvcast.lowering import signatures
from kvcast.lowering.signatures import Signature
from kvcast.models.whisper import Decoder, LayerCache
from kvcast.programs.whisper import Decode, Encode, WhisperPrograms
from kvcast.spec.whisper import WhisperDimensions

STATES = "cross_states"
Source = Sequence[tuple[Tensor]]
"""The encoder's states [batch, t, width], where cached programs have a key and a value a layer."""
Project = Callable[[Decoder, Tensor], list[LayerCache]]


class EncodeStates(nn.Module):
    """Features to the encoder's states."""

    def __init__(self, encode: Encode) -> None:
        super().__init__()
        self.encoder = encode.encoder

    def forward(self, features_bmt: Tensor) -> Source:
        """[batch, n_mels, frames] to states [batch, frames // 2, width]."""
        return [(self.encoder(features_bmt),)]


class DecodeFromStates(nn.Module):
    """New tokens over self caches and the encoder's states to logits and caches."""

    def __init__(self, decode: Decode, project: Project) -> None:
        super().__init__()
        self.decoder = decode.decoder
        self._project = project

    def forward(
        self,
        tokens_rs: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        self_caches: Sequence[LayerCache],
        source: Source,
    ) -> tuple[Tensor, Sequence[LayerCache]]:
        """As `kvcast.programs.whisper.Decode`, from the source's states."""
        ((states_btx,),) = source
        # Products are given fp32, and cross keys have the numbers of the states.
        cross_caches = [
            (key.to(states_btx.dtype), value.to(states_btx.dtype))
            for key, value in self._project(self.decoder, states_btx.float())
        ]
        logits = self.decoder(tokens_rs, lengths, offsets, self_caches, cross_caches)
        return logits, self_caches


def by_head(decoder: Decoder, states_btx: Tensor) -> list[LayerCache]:
    """Every layer's cross key and value [batch, heads, t, d]."""
    return decoder.project_cross(states_btx)


def of_one_input(decoder: Decoder, states_btx: Tensor) -> list[LayerCache]:
    """Every layer's cross key [heads, d, t] and value [heads, t, d], of a batch of one.

    So ExecuTorch's attention takes them, in fp32, as making them fp16 takes longer than it saves.
    """
    return [
        (key.flatten(0, 1).transpose(1, 2), value.flatten(0, 1))
        for key, value in by_head(decoder, states_btx)
    ]


@dataclass(frozen=True, kw_only=True)
class RecomputingPrograms:
    """Both programs, over the weights of the cached ones; meets `kvcast.runtimes.eager.Programs`.

    As they are they run only with `by_head`.
    """

    cached: WhisperPrograms
    encode: EncodeStates
    decode: DecodeFromStates

    @classmethod
    def of(cls, cached: WhisperPrograms, project: Project = by_head) -> "RecomputingPrograms":
        """Make them of the cached programs."""
        return cls(
            cached=cached,
            encode=EncodeStates(cached.encode),
            decode=DecodeFromStates(cached.decode, project),
        )

    @property
    def dimensions(self) -> WhisperDimensions:
        """The model's sizes."""
        return self.cached.dimensions

    def signatures(self) -> Mapping[str, Signature]:
        """Return the signatures of `encode` and `decode`: the cached ones' but for the source."""
        cached = signatures.whisper(self.cached)
        encode, decode = cached["encode"], cached["decode"]
        *arguments, cross_caches = decode.arguments
        batch, _, positions, _ = cross_caches[0][0].shape
        states_btx = torch.zeros(batch, positions, self.dimensions.d_model)
        names = [name for name in decode.inputs if not name.startswith("cross_")]
        return {
            "encode": replace(encode, program=self.encode, outputs=[STATES]),
            "decode": replace(
                decode,
                program=self.decode,
                arguments=(*arguments, [(states_btx,)]),
                sizes=(*decode.sizes[:-1], [({0: Dim("batch")},)]),
                inputs=[*names, STATES],
            ),
        }


@dataclass(frozen=True)
class StatesTwice:
    """Recomputing programs for a runtime whose inputs have a key and a value.

    Meets `kvcast.runtimes.eager.Programs`: the encoder's states take both places.
    """

    programs: Any

    @property
    def dimensions(self) -> WhisperDimensions:
        """The model's sizes."""
        found: WhisperDimensions = self.programs.dimensions
        return found

    def encode(self, features_bmt: Tensor) -> list[LayerCache]:
        """Return the encoder's states of features."""
        ((states_btx,),) = self.programs.encode(features_bmt)
        return [(states_btx, states_btx)]

    def decode(
        self,
        tokens_rs: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        self_caches: Sequence[LayerCache],
        encoded: Sequence[LayerCache],
    ) -> Any:
        """Return logits of new tokens over self caches and states, and the caches."""
        ((states_btx, _),) = encoded
        return self.programs.decode(tokens_rs, lengths, offsets, self_caches, [(states_btx,)])
