"""The programs that families write, for each family and flag, on those that read them."""

from dataclasses import replace

import pytest

from kit.dimensions import (
    BERGAMOT,
    BLOCKS,
    CANARY,
    CROSS_BIASED_T5,
    DECODERS,
    DSA,
    FALCON_H1,
    GEMMA3N,
    GEMMA4,
    GEMMA4_EXPERTS,
    GRANITE4,
    GRANITE_SPEECH,
    KIMI,
    LFM2,
    LLAMA,
    MARIAN,
    MOONSHINE,
    MOONSHINE_STREAMING,
    NLLB,
    PARAKEETS,
    QWEN3_5,
    SMALL,
    SMALL_T5,
    T5GEMMA,
    T5GEMMA2,
    UNILMS,
    VOXTRAL_REALTIME,
    YOUTU,
)
from kit.models import opened, random_programs
from kvcast.families.table import family_with
from kvcast.loading.export_proof import prove
from kvcast.models.ops.operations import OPERATIONS
from kvcast.runtimes.native.operations import OPERATIONS as NATIVE
from kvcast.runtimes.onnx.operations import OPERATIONS as ONNX
from kvcast.runtimes.reference import EagerReference

CASES = [
    SMALL,
    replace(SMALL, encoder_layers=2, decoder_layers=1, alignment_heads=()),
    SMALL_T5,
    T5GEMMA,
    CROSS_BIASED_T5,
    replace(SMALL_T5, gated=False, activation="silu", logit_scale=0.125),
    replace(SMALL_T5, activation="gelu", tied=True),
    replace(SMALL_T5, activation="relu", layer_bias=True),
    *DECODERS,
    replace(LLAMA, out_bias=True, qkv_bias=True, tied=False),
    replace(LLAMA, post_norms=True, embedding_scale=3.0, logit_softcap=20.0),
    replace(LLAMA, attention_softcap=5.0, windows=(5, None)),
    *BLOCKS,
    *UNILMS,
    MARIAN,
    NLLB,
]
# Not on ONNX Runtime.
OTHERS = [LFM2, replace(LFM2, convolution=1, convolution_bias=False), QWEN3_5, GEMMA4, YOUTU, DSA]
OTHERS += [KIMI, replace(KIMI, delta=replace(KIMI.delta, least=-5.0))]
OTHERS += [GEMMA4_EXPERTS, GRANITE4, T5GEMMA, CANARY, *PARAKEETS, GRANITE_SPEECH, VOXTRAL_REALTIME]
OTHERS += [T5GEMMA2, GEMMA3N, FALCON_H1, BERGAMOT, replace(BERGAMOT, norm_first=True)]

SOUND = [MOONSHINE, MOONSHINE_STREAMING]

QUICK = [SMALL, CROSS_BIASED_T5, *DECODERS[-2:], *BLOCKS, UNILMS[1], NLLB, *OTHERS, *SOUND]


@pytest.mark.parametrize(
    "dimensions",
    [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case not in QUICK)],
    ids=str,
)
def test_steps_on_the_plain_interpreter_are_what_torch_gives_for_the_whole_sequence(dimensions):
    record = prove(
        opened(dimensions, runtime="native"),
        EagerReference(random_programs(dimensions)),
        exact=True,
    )
    assert record["tokens_equal"] == record["tokens"] > 0
    assert record["max_logit_error"] < 1e-3


@pytest.mark.parametrize("dimensions", [*CASES, *OTHERS, *SOUND], ids=str)
def test_every_operation_is_known_to_all_that_read_programs(dimensions):
    written = family_with(dimensions).write_programs(dimensions)
    operations = {step.operation for program in written.values() for step in program.steps}
    assert operations <= OPERATIONS.keys()
    assert operations <= NATIVE.keys()
    without = {"short_convolution", "delta_rule", "selective_scan", "gated", "shared_attention"}
    without |= {"source_attention", "latent_attention", "select_positions"}
    without |= {"group_norm", "window_attention", "asinh"}
    without |= {"moments", "slice", "gated_recurrence"}
    without |= {"rewrite", "floor_divide", "channel_convolution", "relative_scores", "softmax"}
    assert operations - without <= ONNX.keys()
