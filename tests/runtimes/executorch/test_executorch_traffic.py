"""What a file's instructions read and write equals an independent count."""

from typing import Any

import pytest

from kit.dimensions import EXECUTORCH, SHALLOW
from kit.models import bundle
from kvcast.bundle.manifest import read_bundle
from kvcast.families.table import family_with
from kvcast.inspect.work import ModelWork
from kvcast.runtimes.copies import copies_of, traffic_of
from kvcast.runtimes.traffic import INPUT, CallSizes

pytest.importorskip("executorch", reason="ExecuTorch is not installed")


def read_of(folder: Any, sizes: CallSizes) -> Any:
    read = traffic_of(folder, read_bundle(folder), sizes)
    return {program.name: program for program in read.programs}["decode"]


@pytest.mark.slow
def test_instructions_read_and_write_what_is_counted_from_dimensions():
    folder = bundle(SHALLOW, runtime="executorch")
    decode, work = read_of(folder, CallSizes(length=9)), ModelWork(dimensions=SHALLOW).call(9, 1)
    assert sum(layer.read for layer in decode.layers) == 4 * work.cached
    assert sum(layer.written for layer in decode.layers) == 4 * work.written
    assert sum(layer.weights for layer in decode.layers if layer.name != INPUT) == 4 * work.weights
    names = [layer.name for layer in decode.layers]
    assert names == ["input", "decoder layer 0", "output"]
    assert not copies_of(folder)


@pytest.mark.slow
def test_equal_layers_have_equal_weights():
    layers = read_of(
        bundle(EXECUTORCH["decoder"], runtime="executorch"), CallSizes(length=9)
    ).layers
    names = ["input", "decoder layer 0", "decoder layer 1", "output"]
    assert [layer.name for layer in layers] == names
    assert layers[1].weights == layers[2].weights > 0


@pytest.mark.slow
def test_rows_read_weights_one_after_the_other():
    folder = bundle(SHALLOW, runtime="executorch")
    one, three = (read_of(folder, CallSizes(length=9, rows=rows)) for rows in (1, 3))
    assert three.weights == 3 * one.weights


@pytest.mark.slow
def test_attention_with_a_bias_reads_all_slots():
    sizes = EXECUTORCH["t5"]
    folder = bundle(sizes, runtime="executorch")
    caches = read_of(folder, CallSizes(length=9, source=30)).caches
    own = {cache.read for cache in caches if cache.kind == "linear"}
    assert own == {4 * sizes.heads * sizes.head_dim * (9 + 1)}
    assert {cache.how for cache in caches} == {"in place", "read"}


@pytest.mark.slow
def test_a_cache_that_anything_else_takes_is_copied(monkeypatch: pytest.MonkeyPatch):
    from kvcast.runtimes.executorch import traffic

    read = traffic.deserialize_pte_binary

    def with_index_put(content: bytes) -> Any:
        file = read(content)
        for plan in file.program.execution_plan:
            for operator in plan.operators:
                if operator.name == "llama::update_cache":
                    operator.name = "aten::index_put"
        return file

    monkeypatch.setattr(traffic, "deserialize_pte_binary", with_index_put)
    copied = {cache.name for cache in copies_of(bundle(SHALLOW, runtime="executorch"))}
    layers = family_with(SHALLOW).caches(SHALLOW)[0].layers
    assert copied == {f"past_{part}_{i}" for part in ("key", "value") for i in range(layers)}
