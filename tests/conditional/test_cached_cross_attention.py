"""Cached cross-attention in transformers' models gives the same logits for every source."""

import copy
import warnings

import pytest
import torch
import transformers
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from conditional.tiny_transformers import (
    FRESH,
    LAYERS,
    MODELS,
    ROWS,
    SAME,
    SOURCE,
    TARGET,
    Decoder,
    assert_as_stock,
    bart,
    random_model,
    sources,
    steps,
)
from kit.marks import slow
from kvcast.conditional.cross_attention import CachedCrossAttention, use_cached_cross_attention
from kvcast.errors import KvcastError, UsageError


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export's, of its own doings
        yield


# torch.export takes seconds a model: the one with sources of one length, and one with a mask.
export_few = pytest.mark.parametrize(
    "stock", ["whisper", "t5", *(slow(name) for name in ("bart", "marian"))], indirect=True
)


@pytest.fixture(scope="module", params=sorted(MODELS))
def stock(request):
    return random_model(request.param)


@pytest.fixture(scope="module")
def swapped(stock):
    model = copy.deepcopy(stock)
    return model, use_cached_cross_attention(model, rows=ROWS)


def has_one_length(model):
    return isinstance(model, transformers.WhisperForConditionalGeneration)


@pytest.fixture(scope="module")
def exported(stock, swapped):
    sizes = torch.export.Dim("rows", max=ROWS), torch.export.Dim("new", max=TARGET - 1)
    source = {0: sizes[0]} | (
        {} if has_one_length(stock) else {1: torch.export.Dim("source", max=SOURCE)}
    )
    with torch.no_grad():
        return torch.export.export(
            Decoder(*swapped),
            (steps()[1], sources()[0], FRESH),
            dynamic_shapes=({0: sizes[0], 1: sizes[1]}, source, None),
            strict=False,
        )


def test_two_sources_give_the_stock_models_logits(stock, swapped):
    assert_as_stock(Decoder(*swapped), stock, sources())


def test_fewer_rows_and_shorter_sources_than_there_is_place_for(stock, swapped):
    assert_as_stock(Decoder(*swapped), stock, sources(rows=2))
    if not has_one_length(stock):
        assert_as_stock(Decoder(*swapped), stock, sources(positions=5))


@export_few
def test_an_exported_program_has_its_reset(stock, exported):
    program = exported.module()
    assert_as_stock(program, stock, sources())
    assert_as_stock(program, stock, sources(rows=2))
    if not has_one_length(stock):
        assert_as_stock(program, stock, sources(positions=5))


@export_few
def test_an_exported_program_projects_in_one_branch_alone(exported):
    graph = exported.graph_module
    conditionals = [node for node in graph.graph.nodes if str(node.target) == "cond"]
    assert len(conditionals) == 2
    for node in conditionals:
        read, compute = (getattr(graph, branch.target) for branch in node.args[1:3])
        assert "linear" not in read.code
        assert compute.code.count("linear.default") == 2
    projected = [node.target for node in graph.graph.nodes if "linear" in str(node.target)]
    # Queries and outputs of cross-attention, four of self-attention, two after, and the head.
    assert len(projected) in (2 * 8 + 1, 2 * 8)


def test_a_missing_reset_is_an_error(swapped):
    model, caches = swapped
    first, second = sources()
    caches.reset()
    run = Decoder(model)
    run(steps()[0], first, SAME)
    with pytest.raises(KvcastError, match="computed from other encoder states"):
        run(steps()[0], second, SAME)


@export_few
def test_a_missing_reset_gives_an_exported_programs_rows_nan(stock, exported):
    run = exported.module()
    first, second = sources()
    mixed = torch.cat([first[:2], second[2:]])
    run(steps()[0], first, FRESH)
    logits = run(steps()[0], mixed, SAME)
    assert torch.isnan(logits[2]).all()
    reference = Decoder(stock)(steps()[0], first, FRESH)
    torch.testing.assert_close(logits[:2], reference[:2], atol=1e-5, rtol=1e-5)


def test_states_are_not_read_again(stock, swapped):
    model, caches = swapped
    (source, _) = sources()
    caches.reset()
    run = Decoder(model)
    run(steps()[0], source, SAME)
    spoiled = source.clone()
    spoiled[:, 1:] = torch.nan
    logits = run(steps()[1], spoiled, SAME)
    reference = Decoder(stock)(steps()[1], source, FRESH)
    torch.testing.assert_close(logits, reference, atol=1e-5, rtol=1e-5)


def test_beam_search_through_generate(stock, swapped):
    model, caches = swapped
    for source in sources(rows=1):
        caches.reset()
        written = [
            each.generate(
                encoder_outputs=BaseModelOutput(last_hidden_state=source),
                num_beams=ROWS,
                max_new_tokens=6,
                do_sample=False,
                attention_mask=torch.ones(1, SOURCE, dtype=torch.long),
            )
            for each in (stock, model)
        ]
        assert written[0].tolist() == written[1].tolist()


def test_masked_sources(stock, swapped):
    if has_one_length(stock):
        pytest.skip("Whisper's sources have no mask")
    model, caches = swapped
    (source, _) = sources()
    caches.reset()
    mask = torch.arange(SOURCE) < torch.tensor([[SOURCE], [7], [4]])
    given = {"encoder_outputs": (source,), "attention_mask": mask.long(), "use_cache": False}
    for prefix in steps():
        torch.testing.assert_close(
            model(decoder_input_ids=prefix, **given).logits,
            stock(decoder_input_ids=prefix, **given).logits,
            atol=1e-5,
            rtol=1e-5,
        )


def test_weights_are_shared(stock):
    model = copy.deepcopy(stock)
    before = {parameter.data_ptr() for parameter in model.parameters()}
    use_cached_cross_attention(model)
    assert {parameter.data_ptr() for parameter in model.parameters()} == before


def test_the_flag_stays_on_the_cpu_and_caches_follow_the_weights():
    model = bart().eval()
    use_cached_cross_attention(model)
    model.to(torch.bfloat16)
    layer = next(part for part in model.modules() if isinstance(part, CachedCrossAttention))
    assert layer.keys.dtype == torch.bfloat16
    assert layer.filled.dtype == torch.bool
    moved = layer._apply(lambda tensor: tensor.to("meta") if tensor.dim() else tensor)
    assert moved.keys.device.type == "meta"
    assert moved.filled.device.type == "cpu"


def test_more_than_there_is_place_for_is_refused():
    model = bart().eval()
    use_cached_cross_attention(model, rows=1, source_positions=4)
    with pytest.raises(UsageError, match="3 rows and 13 positions does not fit buffers for 1 and"):
        Decoder(model)(steps()[0], sources()[0], FRESH)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(2, 2).eval(), "Linear has no cross-attention"),
        (lambda: bart().train(), "call model.eval"),
        (
            lambda: transformers.MBartForConditionalGeneration(
                transformers.MBartConfig(max_position_embeddings=TARGET, **LAYERS)
            ).eval(),
            "MBartAttention has no cached form; supported are BartAttention, Marian",
        ),
    ],
)
def test_other_models_are_refused_in_one_line(model, message):
    with pytest.raises(UsageError, match=message) as refusal:
        use_cached_cross_attention(model())
    assert "\n" not in str(refusal.value)


def test_an_attention_with_other_masks_is_refused():
    model = bart().eval()
    model.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(UsageError, match="flex_attention"):
        use_cached_cross_attention(model)
