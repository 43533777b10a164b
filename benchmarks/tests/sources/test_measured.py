"""What published claims count is counted again: operations, copies, slots, tokens. No times."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvcast.inspect.work import ModelWork
from kvcast.spec.ring import EMPTY, positions_held
from kvcast_bench.sources import conditional, cross, recomputed, reset, ring
from kvcast_bench.sources.generated import counts, loops_of

pytestmark = pytest.mark.slow  # PyTorch's compiler takes seconds to import
PAGE = (Path(__file__).parents[3] / "docs" / "sources.md").read_text("utf-8")


def test_the_rings_example_is_what_the_model_computes():
    done = ring.example()
    assert [each.call.counts for each in done[:2]] == [(2, 1, 2), (2, 0, 1)]
    assert len(done) == 2 + ring.NEW
    for each in done:
        assert each.error < 1e-4
        lengths = map(sum, zip(each.call.lengths, each.call.counts, strict=True))
        expected = [
            [None if position == EMPTY else position for position in positions_held(length, 3)]
            for length in lengths
        ]
        assert each.slots == expected
    assert done[1].slots[0] == [3, 1, 2]
    table = re.search(r"figures: ring -->\n(.*?)<!--", PAGE, re.DOTALL)[1].splitlines()
    shown = [line.split(" | ")[2:5] for line in table[2 : 2 + len(done)]]
    computed = [
        [" ".join(ring._shown(row, slots)) for row, slots in enumerate(each.slots)] for each in done
    ]
    assert shown == computed


def test_loops_are_nests_over_all_their_numbers():
    kernel = """
            for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(20L); x0+=1)
                for(int64_t x1=static_cast<int64_t>(0L); x1<static_cast<int64_t>(30L); x1+=1)
            for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(599L); x0+=16)
            for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(600L); x0+=16)
    """
    assert loops_of(kernel, 600) == 2
    assert loops_of(kernel, 599) == 3


def test_recomputing_runs_the_predicted_products_and_gives_the_same():
    step = cross.step("whisper-tiny.en")
    once, recomputed_ = (step.take[name] for name in ("computed once", "recomputed"))
    with torch.inference_mode():
        torch.testing.assert_close(once(), recomputed_(), atol=1e-4, rtol=1e-4)
    saved = cross.products(recomputed_) - cross.products(once)
    assert saved == step.projections == 2 * 2 * 4 * 1500 * 384 * 384


SIZES = conditional.Sizes(width=64, heads=4, source=48)
EXPECTED = {
    "recomputed": (2, 0, 0),
    "torch.cond with clones": (0, 4, 1),
    "torch.cond with operators that alias": (0, 0, 1),
    "the same with a reset (`kvcast.conditional`)": (0, 0, 1),
    "keys and values as inputs (two programs)": (0, 0, 0),
}
"""Projections, copies of keys or values, and flags read, of a step."""


@pytest.mark.parametrize("name", EXPECTED)
def test_copies_are_counted_in_the_generated_code(name, tmp_path):
    quick = {"aot_inductor.compile_wrapper_opt_level": "O0"}
    with torch._inductor.config.patch(quick):
        program, given = conditional.form(SIZES, name, tmp_path)
    counted = counts(program, SIZES.cache)
    assert (counted.projections, counted.copies, counted.flags) == EXPECTED[name]
    plain = conditional.Recomputed(SIZES)
    hidden, states = conditional.inputs(SIZES)
    with torch.no_grad():
        torch.testing.assert_close(program.call(*given)[0], plain(hidden, states)[0])
        if name != "torch.cond with operators that alias":
            return
        # Nothing resets it: a second source gets the answer to the first.
        torch.testing.assert_close(
            program.call(hidden, states.flip(1) + 1)[0], plain(hidden, states)[0]
        )


def test_a_flag_in_the_devices_memory_is_copied_for_every_layer():
    assert conditional.exported_flags("cpu") == ["cpu", "cpu"]
    assert conditional.exported_flags("cuda") == ["cuda", "cuda"]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's, of its own doings
def test_without_a_reset_clip_2_is_answered_with_clip_1(monkeypatch):
    monkeypatch.setattr(reset, "LONGEST", 9)
    said = reset.texts()
    first, second = said["a program for each clip"]
    assert first.startswith("And Mr. John Dashwood")
    assert second.startswith("and rather selfish")
    assert said["one program without a reset"] == [first, first]
    assert said["one program with a reset"] == [first, second]


@pytest.mark.parametrize("case", recomputed.CASES, ids=lambda case: case.shape)
def test_texts_are_equal_without_a_cache_and_products_as_predicted(case):
    case = replace(case, source=12, new=4)
    writer = case.make(recomputed.published(case.shape))
    predicted = case.predicted()
    with torch.inference_mode():
        texts = [writer.cached(), writer.recomputed()]
        ran = [cross.products(writer.cached), cross.products(writer.recomputed)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == case.new
    # A UniLM's source is read in a call of its own, whose head the prediction leaves out.
    of = recomputed.published(case.shape)
    heads = 0
    if case.writer is recomputed.UnilmWriter:
        heads = (case.new - 1) * ModelWork(dimensions=of).call(0, case.source).head
    assert ran == [predicted["cached"], predicted["recomputed"] + heads]
