"""The cached programs with the cross projections moved from `encode` to `decode`."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from typing_extensions import override

from kvcast.families.blocks import project_cross_caches
from kvcast.families.programs import Argument, ProgramSignature
from kvcast.families.table import family_with
from kvcast.families.whisper import WhisperDimensions
from kvcast.models.executor import TorchModel, TorchProgram
from kvcast.models.ops.attention import cross_attention
from kvcast.runtimes.target import LoweringJob
from kvcast.spec.program import Constant, Node, Program, ProgramWriter

STATES = "cross_states"
LayOut = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A layer's key and value [batch, heads, t, d], as arguments of a target's attention."""


def _as_they_are(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return key, value


class DecodeFromStates(TorchProgram):
    """Projects every layer's cross key and value from states, which are the last argument.

    `dtype` is the input dtype of GEMMs; keys and values have the dtype of the states.
    """

    def __init__(
        self,
        dimensions: WhisperDimensions,
        weights: Mapping[str, Tensor],
        lay_out: LayOut = _as_they_are,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        outputs = family_with(dimensions).programs(dimensions)["decode"].outputs
        super().__init__(recomputing_programs(dimensions)["decode"], outputs, weights)
        self._lay_out, self._dtype = lay_out, dtype

    @override
    def forward(self, *arguments: Tensor) -> list[Tensor]:
        *given, states_btx = arguments

        def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
            parts = self._lay_out(key.to(states_btx.dtype), value.to(states_btx.dtype))
            mixed: Tensor = cross_attention(query, *parts, scale)
            return mixed

        return self.run([*given, states_btx.to(self._dtype)], cross_attention=attend)


def _of_one_input(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return key [heads, d, t] and value [heads, t, d] of a batch of one.

    They stay fp32, as making them fp16 takes longer than it saves.
    """
    return key.flatten(0, 1).transpose(1, 2), value.flatten(0, 1)


_LAY_OUTS: Mapping[str, LayOut] = {"executorch": _of_one_input}


def recomputing(cached: TorchModel, runtime: str) -> TorchModel:
    """Return programs for a runtime over the same weights; `encode` gives states."""
    lay_out = _LAY_OUTS.get(runtime, _as_they_are)
    encode = TorchProgram(
        recomputing_programs(cached.dimensions)["encode"], [STATES], cached.weights
    )
    decode = DecodeFromStates(cached.dimensions, cached.weights, lay_out)
    return replace(cached, programs={"encode": encode, "decode": decode})


def recomputing_programs(dimensions: WhisperDimensions) -> Mapping[str, Program]:
    cached = family_with(dimensions).write_programs(dimensions)
    encode, decode = cached["encode"], cached["decode"]
    write = ProgramWriter([], first=len(decode.steps))
    width = dimensions.d_model
    sizes = dimensions.decoder_layers, (2 * width, width), dimensions.decoder_heads
    made = project_cross_caches(write, Node(STATES), *sizes, bias=True)
    names = {node.name: name for name, node in made.items()}
    projected = [replace(step, name=names.get(step.name, step.name)) for step in write.steps]
    return {
        "encode": encoded_states(encode),
        "decode": replace(
            decode,
            inputs=[*(n for n in decode.inputs if not n.startswith("cross_")), STATES],
            steps=[*projected, *decode.steps],
        ),
    }


def encoded_states(encode: Program) -> Program:
    """Return an encoder that gives its states and projects none."""
    states = next(
        step.name for step in encode.steps if Constant("encoder.norm.weight") in step.arguments
    )
    up_to_states = replace(encode, outputs={STATES: states})
    return replace(up_to_states, steps=up_to_states.needed([STATES]))


class RecomputingJob(LoweringJob):
    @override
    def write_programs(self) -> Mapping[str, Program]:
        return recomputing_programs(self.dimensions)

    @override
    def program_signatures(self) -> Mapping[str, ProgramSignature]:
        cached = super().program_signatures()
        encode, decode, sizes = cached["encode"], cached["decode"], self.dimensions
        shape = ("batch", sizes.source_positions, sizes.d_model)
        states = Argument(name=STATES, shape=shape, dtype="float32")
        kept = (argument for argument in decode.arguments if argument.name != "cross")
        return {
            "encode": replace(encode, outputs=(STATES,)),
            "decode": replace(decode, arguments=(*kept, states)),
        }
