"""Folders of other exporters: what their graphs compute, and what is read from them of a step."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from kit.foreign_models import LLAMA, SEQ2SEQ, T5, Llama, write_checkpoint
from kit.foreign_onnx import EXPORTS, write_genai_llama, write_optimum_llama, write_optimum_t5
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import KvcastError, UsageError
from kvcast.runtimes.reference import NativeReference
from kvcast.verification.foreign.base import ForeignModel, Movement, one_by_one
from kvcast.verification.foreign.readers import open_foreign, reader_of

HEAD = LLAMA.kv_heads * LLAMA.head_dim * 4
"""Bytes of a position of one key or value."""
TOKENS = np.random.default_rng(1).integers(0, 48, (1, 20))
SOURCE = np.random.default_rng(2).integers(3, 48, (1, 9))


def expected(folder: Path, model: Llama | T5) -> np.ndarray:
    """Logits [20, vocab] of kvcast's own kernels, all at once."""
    write_checkpoint(folder, model)
    runtime = NativeReference(open_checkpoint(folder), None).runtime
    if isinstance(model, Llama):
        cache = runtime.new_cache(1, 20)
    else:
        cache = runtime.encode(runtime.new_cache(1, 20, 1), [0], SOURCE, np.array([9], np.int32))
        cache = runtime.reset(cache, [0], [0])
    return runtime.decode(list(TOKENS), cache, positions=range(20))[0][0].copy()


def assert_computes(theirs: ForeignModel, source: tuple[np.ndarray, ...], want_sv: np.ndarray):
    """In a call, token by token, and token by token after a cut."""
    theirs.begin(1, source)
    np.testing.assert_allclose(theirs.feed(TOKENS)[0], want_sv, atol=1e-4)
    theirs.begin(1, source)
    np.testing.assert_allclose(one_by_one(theirs, TOKENS)[0], want_sv, atol=1e-4)
    theirs.cut(12)
    np.testing.assert_allclose(one_by_one(theirs, TOKENS[:, 12:])[0], want_sv[12:], atol=1e-4)


@pytest.mark.parametrize("export", EXPORTS)
def test_graphs_compute_what_the_checkpoint_does(tmp_path, export):
    model, write = EXPORTS[export]
    write(tmp_path / "theirs", model)
    theirs = open_foreign(tmp_path / "theirs", 1, trust=False)
    want_sv = expected(tmp_path / "checkpoint", model)
    source = (SOURCE,) if theirs.encoder else ()
    assert_computes(theirs, source, want_sv)
    assert theirs.precision.exact
    # Rows change places: row 1 goes on from what row 0 held.
    theirs.begin(2, tuple(np.repeat(part, 2, 0) for part in source))
    theirs.feed(np.concatenate([TOKENS[:, :8], TOKENS[:, 1:9]]))
    theirs.reorder([0, 0])
    both_rsv = one_by_one(theirs, np.repeat(TOKENS[:, 8:], 2, 0))
    np.testing.assert_allclose(both_rsv[1], want_sv[8:], atol=1e-4)


def test_concatenated_caches_are_copied_and_repeated_for_their_heads(tmp_path):
    write_optimum_llama(tmp_path, LLAMA)
    work = open_foreign(tmp_path, 1, trust=False).work()
    assert set(work.caches.values()) == {"copied"}
    copied = Movement(operator="Concat", count=4, fixed=4 * HEAD, per_position=4 * HEAD)
    assert work.moved == [copied]
    # ONNX Runtime's own count, which also has what a graph's outputs do not tell: each key and
    # value is written once more for every group of heads.
    groups = LLAMA.heads // LLAMA.kv_heads
    repeated = Movement(
        operator="Expand", count=4, fixed=4 * groups * HEAD, per_position=4 * groups * HEAD
    )
    assert work.measured == [copied, repeated]
    assert (work.branches, work.recomputed, work.repeated_weights) == (0, {}, 0)


@pytest.mark.parametrize(("shared", "how"), [(True, "in place"), (False, "copied")])
def test_attention_with_a_shared_buffer_writes_in_place(tmp_path, shared, how):
    write_genai_llama(tmp_path, LLAMA, shared=shared)
    theirs = open_foreign(tmp_path, 1, trust=False)
    work = theirs.work()
    assert set(work.caches.values()) == {how}
    assert [each.per_position for each in work.moved] == ([] if shared else [4 * HEAD])
    assert [each.per_position for each in work.measured] == ([] if shared else [4 * HEAD])
    theirs.begin(1)
    before = {name: array.ctypes.data for name, array in theirs._caches.items()}
    theirs.feed(TOKENS)
    after = {name: array.ctypes.data for name, array in theirs._caches.items()}
    assert (before == after) == shared


def test_branches_and_cross_keys_that_each_step_computes(tmp_path):
    write_optimum_t5(tmp_path / "kept", SEQ2SEQ)
    write_optimum_t5(tmp_path / "recomputed", SEQ2SEQ, recomputes=True)
    kept, recomputed = (
        open_foreign(tmp_path / name, 1, trust=False).work() for name in ("kept", "recomputed")
    )
    assert (kept.branches, recomputed.branches) == (1, 1)
    assert kept.recomputed == {}
    assert recomputed.recomputed == {"MatMul": 2 * SEQ2SEQ.layers}
    crossed = {how for name, how in kept.caches.items() if ".encoder." in name}
    assert crossed == {"kept"}


def test_two_graphs_have_the_decoders_weights_twice(tmp_path):
    write_optimum_t5(tmp_path, SEQ2SEQ, merged=False)
    work = open_foreign(tmp_path, 1, trust=False).work()
    crossed = 2 * SEQ2SEQ.layers * SEQ2SEQ.width * SEQ2SEQ.heads * SEQ2SEQ.head_dim * 4
    # A step has no matrices for cross keys and values; the first call's graph has all others, too.
    assert (
        0.8 * (work.weights - crossed) / 2 < work.repeated_weights <= (work.weights - crossed) / 2
    )


@pytest.mark.slow
@pytest.mark.parametrize(("in_place", "how"), [(False, "copied"), (True, "in place")])
def test_programs_of_executorch(tmp_path, in_place, how):
    from kit.foreign_programs import write_program

    write_program(tmp_path / "theirs", LLAMA, in_place=in_place)
    with pytest.raises(KvcastError, match="give --trust"):
        open_foreign(tmp_path / "theirs", 1, trust=False)
    theirs = open_foreign(tmp_path / "theirs", 1, trust=True)
    want_sv = expected(tmp_path / "checkpoint", LLAMA)
    assert (theirs.capacity, theirs.vocab_size, theirs.most_rows) == (64, 48, 1)
    assert_computes(theirs, (), want_sv)
    work, whole = theirs.work(), 4 * HEAD * LLAMA.positions
    assert theirs.held_bytes() == whole
    assert list(work.caches.values()) == [how] * 4
    assert work.spans_capacity != in_place
    copied = {each.operator: each.fixed for each in work.moved}
    if in_place:
        assert copied == {}
    else:
        assert copied["index_put"] == copied["copy_"] == whole
        assert copied["expand_copy"] >= whole * LLAMA.heads // LLAMA.kv_heads


def test_folders_that_are_not_opened_say_why_in_one_line(tmp_path):
    with pytest.raises(KvcastError, match="no folder"):
        reader_of(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(KvcastError, match=r"no exported decoder .*genai_config.*model\.pte"):
        reader_of(tmp_path / "empty")
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "bundle.json").write_text("{}")
    with pytest.raises(UsageError, match="leave out --foreign"):
        reader_of(tmp_path / "bundle")
    write_optimum_t5(tmp_path / "alone", SEQ2SEQ, merged=False)
    (tmp_path / "alone" / "decoder_with_past_model.onnx").unlink()
    with pytest.raises(KvcastError, match="nothing is cached"):
        open_foreign(tmp_path / "alone", 1, trust=False)


@pytest.mark.parametrize("location", ["../weights", "/etc/passwd", "a/../../weights"])
def test_weights_outside_of_the_folder_are_refused(tmp_path, location):
    write_genai_llama(tmp_path / "theirs", LLAMA)
    (tmp_path / "weights").write_bytes(bytes(100_000))
    path = tmp_path / "theirs" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = location if entry.key == "location" else entry.value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(KvcastError, match="outside of the folder"):
        open_foreign(tmp_path / "theirs", 1, trust=False)


def test_damaged_graphs_are_refused_in_one_line(tmp_path):
    write_genai_llama(tmp_path, LLAMA)
    whole = (tmp_path / "model.onnx").read_bytes()
    (tmp_path / "model.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(KvcastError, match="is no ONNX graph") as caught:
        open_foreign(tmp_path, 1, trust=False)
    assert "\n" not in str(caught.value)
    (tmp_path / "model.onnx").write_bytes(whole)
    (tmp_path / "model.onnx.data").write_bytes(b"short")
    with pytest.raises(KvcastError, match="ends before"):
        open_foreign(tmp_path, 1, trust=False)
    (tmp_path / "genai_config.json").write_text('{"model": {"decoder": {"filename": "../x"}}}')
    with pytest.raises(KvcastError, match="no graph inside of the folder"):
        open_foreign(tmp_path, 1, trust=False)
