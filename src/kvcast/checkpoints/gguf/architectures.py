"""Architectures of GGUF files: a row for each.

llama.cpp's conversion/*.py define how models are converted. Norms are stored as they multiply.
Knows no files.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.gguf.metadata import Values
from kvcast.checkpoints.gguf.particulars import (
    EPSILON,
    RMS_EPSILON,
    WINDOW,
    arcee,
    cohere,
    exaone4,
    falcon,
    gemma,
    gemma2,
    gemma3,
    gemma4,
    gpt2,
    gpt_oss,
    gptneox,
    granite,
    granite_hybrid,
    lfm2,
    many_experts,
    mixture,
    nemotron,
    olmo,
    olmo2,
    olmoe,
    phi2,
    qwen2_experts,
    qwen35,
    qwen35_experts,
    shared_experts,
    smollm3,
    stablelm,
    starcoder2,
)
from kvcast.checkpoints.gguf.tensors import (
    FUSED_EXPERTS,
    FUSED_GATE_UP,
    FUSED_QKV,
    GEMMA4_NAMES,
    LFM2_NAMES,
    NAMES,
    NORM_AFTER_ATTENTION,
    QWEN35_NAMES,
    STATE_SPACE_NAMES,
    delta_net_tensors,
    gemma4_tensors,
    grouped_delta_net_tensors,
    kernels_turned,
    norms_of_ones,
    second_norm_first,
    state_space_tensors,
)
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.spec.position_encodings import Rotary


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Properties of an architecture beyond the file's values.

    `neighbours`: rotary pairs of queries and keys are neighbouring rows, not halves of a head.
    `global_every`: with a window, every n-th layer sees everything; 0: no layer does.
    `turns_in_windows`: whether, in models with windows, layers without one have no rotation.
    `partial`: whether a part of a head may turn.
    `truncate`: whether whole pairs bound YaRN's blend.
    `uneven`: whether sizes of layers may differ.
    `hybrid`: whether layers with no heads of keys have other parts than attention.
    `names`: of the files' tensors.
    `particulars`: dimensions that other architectures do not have.
    `prepare`: changes tensors that a table of names cannot describe.
    `epsilon`: name of the value of the norms' epsilon.
    """

    neighbours: bool = False
    global_every: int = 0
    turns_in_windows: bool = False
    partial: bool = False
    truncate: bool = True
    uneven: bool = False
    hybrid: bool = False
    names: Mapping[str, Sequence[str]] = field(default_factory=lambda: NAMES)
    particulars: Callable[[Values], Mapping[str, Any]] = lambda _: {}
    prepare: Callable[[Mapping[str, StoredTensor], DecoderDimensions], dict[str, StoredTensor]] = (
        lambda stored, _: dict(stored)
    )
    epsilon: str = RMS_EPSILON

    def names_in(self, tensors: Container[str]) -> Mapping[str, Sequence[str]]:
        """Return the names in a file, which may have several matrices in one tensor."""
        is_fused = not self.hybrid and "blk.0.attn_qkv.weight" in tensors
        of_experts = "blk.0.ffn_gate_up_exps.weight" in tensors
        return {
            **self.names,
            **(FUSED_QKV if is_fused else {}),
            **(FUSED_EXPERTS if of_experts else {}),
        }

    def rotary(self, values: Values, rotary: Rotary) -> dict[str, Rotary | None]:
        """Return the dimensions of rotary embeddings."""
        if self.turns_in_windows and values.whole(WINDOW, 0, least=0):
            return {"rotary": None, "window_rotary": rotary}
        return {"rotary": rotary}


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(neighbours=True, particulars=mixture),
    "qwen2": Architecture(),
    "qwen3": Architecture(particulars=lambda _: {"query_key_norm": True}),
    "qwen2moe": Architecture(particulars=qwen2_experts),
    "qwen3moe": Architecture(
        particulars=lambda values: many_experts(values) | {"query_key_norm": True}
    ),
    "gpt-oss": Architecture(
        global_every=2,
        truncate=False,
        names={**NAMES, **NORM_AFTER_ATTENTION},
        particulars=gpt_oss,
    ),
    "phi3": Architecture(partial=True, names={**NAMES, **FUSED_GATE_UP}),
    "glm4": Architecture(
        neighbours=True,
        partial=True,
        names={**NAMES, **FUSED_GATE_UP},
        particulars=lambda _: {"post_norms": True},
    ),
    "gemma": Architecture(particulars=gemma),
    "gemma2": Architecture(global_every=2, particulars=gemma2),
    "gemma3": Architecture(global_every=6, particulars=gemma3),
    "gemma4": Architecture(
        uneven=True, names=GEMMA4_NAMES, particulars=gemma4, prepare=gemma4_tensors
    ),
    "granite": Architecture(neighbours=True, particulars=granite),
    "smollm3": Architecture(neighbours=True, particulars=smollm3),
    "olmo2": Architecture(global_every=4, particulars=olmo2),
    "starcoder2": Architecture(particulars=starcoder2, epsilon=EPSILON),
    "command-r": Architecture(neighbours=True, particulars=cohere, epsilon=EPSILON),
    "cohere2": Architecture(
        neighbours=True,
        global_every=4,
        turns_in_windows=True,
        particulars=cohere,
        epsilon=EPSILON,
    ),
    "exaone4": Architecture(global_every=4, turns_in_windows=True, particulars=exaone4),
    "gpt2": Architecture(particulars=gpt2, epsilon=EPSILON),
    "gptneox": Architecture(partial=True, particulars=gptneox, epsilon=EPSILON),
    "phi2": Architecture(partial=True, particulars=phi2, epsilon=EPSILON),
    "stablelm": Architecture(partial=True, particulars=stablelm, epsilon=EPSILON),
    "lfm2": Architecture(hybrid=True, names=LFM2_NAMES, particulars=lfm2, prepare=kernels_turned),
    "qwen35": Architecture(
        partial=True,
        hybrid=True,
        names=QWEN35_NAMES,
        particulars=qwen35,
        prepare=delta_net_tensors,
    ),
    "qwen35moe": Architecture(
        partial=True,
        hybrid=True,
        names=QWEN35_NAMES,
        particulars=qwen35_experts,
        prepare=delta_net_tensors,
    ),
    "qwen3next": Architecture(
        partial=True,
        hybrid=True,
        names=QWEN35_NAMES,
        particulars=qwen35_experts,
        prepare=grouped_delta_net_tensors,
    ),
    "qwen2vl": Architecture(),
    "qwen3vl": Architecture(particulars=lambda _: {"query_key_norm": True}),
    "qwen3vlmoe": Architecture(
        particulars=lambda values: many_experts(values) | {"query_key_norm": True}
    ),
    "mistral3": Architecture(neighbours=True, particulars=mixture),
    "granitemoe": Architecture(
        neighbours=True, particulars=lambda values: granite(values) | shared_experts(values)
    ),
    "granitehybrid": Architecture(
        neighbours=True,
        hybrid=True,
        names=STATE_SPACE_NAMES,
        particulars=granite_hybrid,
        prepare=state_space_tensors,
    ),
    "ernie4_5": Architecture(neighbours=True),
    "seed_oss": Architecture(names={**NAMES, **NORM_AFTER_ATTENTION}),
    "arcee": Architecture(neighbours=True, particulars=arcee),
    "nemotron": Architecture(partial=True, particulars=nemotron, epsilon=EPSILON),
    "jais2": Architecture(particulars=nemotron, epsilon=EPSILON),
    "olmo": Architecture(neighbours=True, particulars=olmo, prepare=norms_of_ones, epsilon=EPSILON),
    "olmoe": Architecture(particulars=olmoe),
    "starcoder": Architecture(particulars=gpt2, epsilon=EPSILON),
    "falcon": Architecture(particulars=falcon, prepare=second_norm_first, epsilon=EPSILON),
}
