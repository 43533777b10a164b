"""The cached programs' modules, with the cross projections moved from `encode` to `decode`.

Knows no file and no clock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from typing_extensions import override

from kvcast.families.blocks import cross_caches
from kvcast.models.programs.whisper import WhisperDecode, WhisperEncode, WhisperPrograms
from kvcast.models.whisper import LayerCache
from kvcast.runtimes.lowering.signatures import Signature, signatures_of
from kvcast.runtimes.target import LoweringJob
from kvcast.spec.program import Constant, Node, Program
from kvcast.spec.writer import ProgramWriter

STATES = "cross_states"
LayOut = Callable[[Tensor, Tensor], LayerCache]
"""A layer's key and value [batch, heads, t, d], as arguments of a target's attention."""


class EncodeStates(WhisperEncode):
    """Maps features to the encoder's states."""

    def __init__(self, cached: WhisperEncode) -> None:
        nn.Module.__init__(self)
        self.encoder = cached.encoder

    @override
    def forward(self, features_bmt: Tensor) -> Any:
        # Nested as caches are: one layer, of one tensor in place of a key and a value.
        return [(self.encoder(features_bmt),)]


def _as_they_are(key: Tensor, value: Tensor) -> LayerCache:
    return key, value


class DecodeFromStates(WhisperDecode):
    """Projects every layer's cross key and value from states, then does what `WhisperDecode` does.

    `dtype` is what products take; keys and values have the dtype of the states.
    """

    def __init__(
        self,
        cached: WhisperDecode,
        lay_out: LayOut = _as_they_are,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        nn.Module.__init__(self)
        self.decoder = cached.decoder
        self._lay_out, self._dtype = lay_out, dtype

    @override
    def forward(
        self,
        tokens_rs: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        self_caches: Sequence[LayerCache],
        cross_caches: Any,
    ) -> tuple[Tensor, Tensor, Sequence[LayerCache]]:
        ((states_btx,),) = cross_caches
        projected = [
            self._lay_out(key.to(states_btx.dtype), value.to(states_btx.dtype))
            for key, value in self.decoder.project_cross(states_btx.to(self._dtype))
        ]
        return super().forward(tokens_rs, lengths, offsets, self_caches, projected)


def _of_one_input(key: Tensor, value: Tensor) -> LayerCache:
    """Return key [heads, d, t] and value [heads, t, d] of a batch of one.

    They stay fp32, as making them fp16 takes longer than it saves.
    """
    return key.flatten(0, 1).transpose(1, 2), value.flatten(0, 1)


_LAY_OUTS: Mapping[str, LayOut] = {"executorch": _of_one_input}


def recomputing(cached: WhisperPrograms, runtime: str) -> WhisperPrograms:
    """Return programs for a runtime over the same weights; `encode` gives [(states,)]."""
    decode = DecodeFromStates(cached.decode, _LAY_OUTS.get(runtime, _as_they_are))
    return replace(cached, encode=EncodeStates(cached.encode), decode=decode)


def _states(encode: Program) -> str:
    """Return the step that makes the encoder's states."""
    return next(
        step.name for step in encode.steps if Constant("encoder.norm.weight") in step.arguments
    )


class RecomputingJob(LoweringJob):
    """A lowering job of recomputing programs."""

    @override
    def written(self) -> Mapping[str, Program]:
        cached = super().written()
        encode, decode, layers = cached["encode"], cached["decode"], self.dimensions.decoder_layers
        write = ProgramWriter([], first=len(decode.steps))
        heads = self.dimensions.decoder_heads
        made = cross_caches(write, Node(STATES), layers, heads, bias=True)
        names = {node.name: name for name, node in made.items()}
        projected = [replace(step, name=names.get(step.name, step.name)) for step in write.steps]
        return {
            "encode": replace(encode, outputs={STATES: _states(encode)}),
            "decode": replace(
                decode,
                inputs=[*(n for n in decode.inputs if not n.startswith("cross_")), STATES],
                steps=[*projected, *decode.steps],
            ),
        }

    @override
    def signatures(self) -> Mapping[str, Signature]:
        # The cached ones', but for the states.
        signed = signatures_of(self.programs)
        encode, decode = signed["encode"], signed["decode"]
        *arguments, cross_caches = decode.arguments
        batch, _, positions, _ = cross_caches[0][0].shape
        states_btx = torch.zeros(batch, positions, self.programs.dimensions.d_model)
        names = [name for name in decode.inputs if not name.startswith("cross_")]
        return {
            "encode": replace(encode, outputs=[STATES]),
            "decode": replace(
                decode,
                arguments=(*arguments, [(states_btx,)]),
                sizes=(*decode.sizes[:-1], [({0: Dim("batch")},)]),
                inputs=[*names, STATES],
            ),
        }
