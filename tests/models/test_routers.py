"""How tokens choose experts, against the routers of transformers."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnxruntime import InferenceSession
from transformers import AutoConfig
from transformers.models.afmoe.modeling_afmoe import AfmoeTokenChoiceRouter
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.ernie4_5_moe.modeling_ernie4_5_moe import Ernie4_5_MoeTopKRouter
from transformers.models.lfm2_moe.modeling_lfm2_moe import Lfm2MoeTopKRouter
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2TopKRouter
from transformers.models.mistral4.modeling_mistral4 import Mistral4TopkRouter

from kvcast.errors import KvcastError
from kvcast.families.feed_forwards import Routing
from kvcast.families.programs import Argument, ProgramSignature
from kvcast.models.ops.experts import mixture_of_experts, route
from kvcast.runtimes.aoti import operators, packed
from kvcast.runtimes.onnx.operations import graph_of
from kvcast.spec.program import Constant, Node, ProgramWriter

WIDTH, EXPERTS, EACH, TOKENS = 64, 12, 3, 50
GROUPS = {"n_group": 4, "topk_group": 2}
SIGMOID, BIAS = {"score": "sigmoid"}, torch.linspace(-0.4, 0.4, EXPERTS).flip(0)
BIASED = {**SIGMOID, "choice_bias": BIAS}
ROUTERS = {
    "deepseek v2": (DeepseekV2TopkRouter, {}, {"normalised": False, "scale": 2.5}),
    "deepseek v2 of groups": (
        DeepseekV2TopkRouter,
        {"topk_method": "group_limited_greedy", **GROUPS},
        {"normalised": False, "scale": 2.5, "groups": [4, 2, 1]},
    ),
    "deepseek v3": (
        DeepseekV3TopkRouter,
        {"norm_topk_prob": False, "n_group": 1, "topk_group": 1},
        {**BIASED, "normalised": False, "scale": 2.5},
    ),
    "deepseek v3 of groups": (
        DeepseekV3TopkRouter,
        GROUPS,
        {**BIASED, "groups": [4, 2, 2], "scale": 2.5, "epsilon": 1e-20},
    ),
    "mistral 4": (Mistral4TopkRouter, GROUPS, {"groups": [4, 2, 2], "scale": 2.5}),
    "ernie 4.5": (Ernie4_5_MoeTopKRouter, {}, {"choice_bias": BIAS}),
    "lfm2": (Lfm2MoeTopKRouter, {}, {**BIASED, "epsilon": 1e-6, "scale": 2.5}),
    "minimax m2": (MiniMaxM2TopKRouter, {}, BIASED),
    "afmoe": (
        AfmoeTokenChoiceRouter,
        {"route_scale": 2.5},
        {**BIASED, "epsilon": 1e-20, "scale": 2.5},
    ),
}
SIZES = {
    "hidden_size": WIDTH,
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), EXPERTS),
    **{"moe_num_experts": EXPERTS, "moe_k": EACH, "num_experts_per_tok": EACH},
    **{"routed_scaling_factor": 2.5, "norm_topk_prob": True},
}


def routed(kind, fields, hidden):
    """Return a router's logits, weights and choices."""
    name = kind.__module__.split(".")[-2]
    known = AutoConfig.for_model(name)
    sizes = {key: size for key, size in SIZES.items() if hasattr(known, key)}
    router = kind(AutoConfig.for_model(name, **{**sizes, **fields}))
    for part, tensor in (*router.named_parameters(), *router.named_buffers()):
        if part.endswith("correction_bias"):
            tensor.copy_(BIAS)
        else:
            tensor.normal_(std=0.2)
    takes_bias = kind in (Lfm2MoeTopKRouter, MiniMaxM2TopKRouter, AfmoeTokenChoiceRouter)
    shaped = hidden[None] if kind is AfmoeTokenChoiceRouter else hidden
    return router(shaped, *([BIAS] if takes_bias else []))


@torch.no_grad()
@pytest.mark.parametrize("router", ROUTERS)
def test_tokens_choose_the_same_experts_with_the_same_weights(router):
    kind, fields, options = ROUTERS[router]
    torch.manual_seed(0)
    logits, weights, chosen = routed(kind, fields, torch.randn(TOKENS, WIDTH))
    actual_weights, actual = route(logits, EACH, **options)
    expected = torch.zeros(TOKENS, EXPERTS).scatter(-1, chosen, weights)
    np.testing.assert_allclose(
        torch.zeros(TOKENS, EXPERTS).scatter(-1, actual, actual_weights), expected, atol=1e-6
    )


def test_of_equal_experts_and_groups_the_first_are_chosen():
    logits = torch.zeros(1, 64)
    assert route(logits, 3)[1].tolist() == [[0, 1, 2]]
    logits[0, 32:] = 1.0
    grouped = route(logits, 3, groups=[16, 2, 2], score="sigmoid")
    assert grouped[1].tolist() == [[32, 33, 34]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"score": "relu"}, "score 'relu' is not supported"),
        ({"scale": 0.0}, "is not possible"),
        ({"epsilon": 0.1}, "only sums of sigmoids"),
        ({"groups": 0}, "groups"),
        ({"groups": 5, "groups_per_token": 2}, "3 of 12 experts in 2 of 5 groups"),
        ({"groups": 2, "groups_per_token": 3}, "3 of 2 groups"),
        ({"groups": 12, "groups_per_token": 6}, "6 of 12 groups"),
        ({"groups": 6, "groups_per_token": 1}, "1 of 6 groups"),
    ],
    ids=str,
)
def test_impossible_routing_is_refused(fields, message):
    with pytest.raises(KvcastError, match=message):
        Routing(**fields).check(EXPERTS, EACH)


def given_experts():
    torch.manual_seed(0)
    hidden, logits = torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, EXPERTS)
    return hidden, logits, torch.randn(EXPERTS, 16, WIDTH), torch.randn(EXPERTS, WIDTH, 8), EACH


@pytest.mark.parametrize("router", ROUTERS)
def test_onnx_runtime_has_the_same_rule(router):
    *_, options = ROUTERS[router]
    hidden, logits, gate_up, down, each = given_experts()
    named = {"gate_up": gate_up, "down": down}
    if "choice_bias" in options:
        options, named = {**options, "choice_bias": Constant("bias")}, {**named, "bias": BIAS}
    shapes = {"hidden": ("n", WIDTH), "logits": ("n", EXPERTS)}
    arguments = [Argument(name=name, shape=shapes[name], dtype="float32") for name in shapes]
    signature = ProgramSignature(arguments=tuple(arguments), outputs=("mixed",))
    write = ProgramWriter([*shapes])
    given = Node("hidden"), Node("logits"), Constant("gate_up"), Constant("down"), each
    program = write.program(mixed=write.step("mixture_of_experts", *given, **options))
    constants = {name: tensor.numpy() for name, tensor in named.items()}
    model = ir.to_proto(graph_of(program, signature, constants, {})).SerializeToString()
    session = InferenceSession(model)
    [actual] = session.run(None, {"hidden": hidden.numpy(), "logits": logits.numpy()})
    expected = mixture_of_experts(hidden, logits, gate_up, down, each, **ROUTERS[router][2])
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("form", ["exact", "quantized"])
def test_aotinductor_has_the_same_rule(router, form, monkeypatch):
    *_, options = ROUTERS[router]
    expected = mixture_of_experts(*given_experts(), **options)
    if form == "exact":
        replaced = operators.table(torch.float32)[torch.ops.kvcast.mixture_of_experts.default]
    else:
        monkeypatch.setattr(packed, "mix", mixture_of_experts)
        replaced = operators.mix_routed
    actual = replaced(*given_experts(), **options)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)
