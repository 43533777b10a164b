"""Logits of every kind of T5 equal transformers', with its attention written out in PyTorch."""

import numpy as np
import pytest
import torch

from kit.in_transformers import SETTINGS, random_t5, read_t5
from kit.models import encoded, in_chunks
from kit.rounding import FAULTS, assert_equal_but_for_rounding, plant
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder

SOURCE_LENGTHS = (9, 4, 1, 12)


@pytest.fixture(scope="module", params=SETTINGS)
def pair(request):
    """transformers' model, ours, and their tensors."""
    return both(request.param)


def both(name, **settings):
    model = random_t5(name, **settings)
    model.set_attn_implementation("eager")
    read = read_t5(model)
    runtime = EagerEncoderDecoder(TorchModel.from_tensors(read.dimensions, read.tensors))
    return model, runtime, read.tensors


def random_tokens(model, *shape, seed=1):
    return np.random.default_rng(seed).integers(0, model.config.vocab_size, shape)


def expected(model, sources, lengths, targets):
    """transformers' logits [rows, s, vocab] of all targets at once."""
    mask = torch.arange(sources.shape[1]) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        output = model(
            input_ids=torch.from_numpy(sources),
            attention_mask=mask.long(),
            decoder_input_ids=torch.from_numpy(targets),
            use_cache=False,
        )
    return output.logits.numpy()


def decoded(runtime, sources, lengths, targets, chunks):
    """Our logits [rows, s, vocab], with `chunks` tokens a call."""
    source = (sources, np.asarray(lengths, np.int32))
    return in_chunks(
        runtime, encoded(runtime, source, len(targets), targets.shape[1]), targets, chunks
    )


@pytest.mark.parametrize("chunks", [(11,), (1,) * 11, (3, 1, 5, 2)], ids=str)
def test_padded_sources_of_different_lengths_all_at_once_and_step_by_step(pair, chunks):
    model, runtime, tensors = pair
    rows = len(SOURCE_LENGTHS)
    sources = random_tokens(model, rows, max(SOURCE_LENGTHS))
    targets = random_tokens(model, rows, sum(chunks), seed=2)
    theirs = expected(model, sources, SOURCE_LENGTHS, targets)
    ours = decoded(runtime, sources, SOURCE_LENGTHS, targets, chunks)
    assert_equal_but_for_rounding(ours, theirs, tensors)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_constant_exceeds_the_tolerance(fault, monkeypatch, pair):
    plant(fault, monkeypatch)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_padded_sources_of_different_lengths_all_at_once_and_step_by_step(pair, (11,))


def test_positions_far_past_the_largest_distance(pair):
    model, runtime, tensors = pair
    assert model.config.relative_attention_max_distance in (16, 128)
    sources = random_tokens(model, 2, 300)
    targets = random_tokens(model, 2, 200, seed=2)
    theirs = expected(model, sources, (300, 170), targets)
    steps = (60, 60, 60, *(1,) * 20)
    ours = decoded(runtime, sources, (300, 170), targets, steps)
    assert_equal_but_for_rounding(ours, theirs, tensors)


@pytest.mark.parametrize(
    "settings",
    [
        *(
            {"feed_forward_proj": kind}
            for kind in ("gelu", "gated-gelu", "gated-silu", "gated-relu")
        ),
        {"scale_decoder_outputs": True},
        {"scale_decoder_outputs": False},
    ],
    ids=str,
)
def test_every_feed_forward_and_a_tied_head_with_and_without_a_scale(settings):
    model, runtime, tensors = both("T5_10", **settings)
    sources, targets = random_tokens(model, 2, 6), random_tokens(model, 2, 4, seed=2)
    theirs = expected(model, sources, (6, 3), targets)
    if "scale_decoder_outputs" in settings:
        assert (theirs.std() > 2) == (not settings["scale_decoder_outputs"])
    ours = decoded(runtime, sources, (6, 3), targets, (4,))
    assert_equal_but_for_rounding(ours, theirs, tensors)
