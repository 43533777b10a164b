"""Exported graphs contain no copies of whole caches, no duplicate weights and no local paths."""

import operator
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from kit import models
from kit.dimensions import SMALL
from kit.marks import slow
from kit.models import (
    encoded,
    int8_cross_caches,
    open_folder,
    opened,
    random_programs,
    random_tokens,
    stepped,
    whole,
)
from kit.rounding import assert_logits_equal
from kvcast.bundle.manifest import read_bundle
from kvcast.families.programs import ALIGNMENT_QUERIES
from kvcast.families.whisper import WhisperDimensions
from kvcast.models.executor import TorchModel
from kvcast.runtimes.base import Float32
from kvcast.runtimes.onnx.matrices import to_int8_columns
from kvcast.runtimes.onnx.runtime import OnnxEncoderDecoder
from kvcast.runtimes.onnx.target import OnnxTarget

ATTENTION = {"GroupQueryAttention", "MultiHeadAttention"}


@pytest.fixture(scope="module", params=["none", "int8", slow("int4")])
def quantize(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def bundle(quantize: str) -> Path:
    return models.bundle(SMALL, quantize)


@pytest.fixture
def small_bundle() -> Path:
    return models.bundle(SMALL)


@pytest.fixture(scope="module")
def small_programs() -> TorchModel:
    return random_programs(SMALL)


def test_self_caches_go_from_input_to_output_through_one_operator(bundle: Path) -> None:
    graph = ir.load(bundle / "onnx/decode.onnx").graph
    past = [value for value in graph.inputs if value.name.startswith("past_")]
    present = [value for value in graph.outputs if value.name.startswith("present_")]
    assert len(past) == len(present) == 2 * SMALL.decoder_layers
    for before, after in zip(past, present, strict=True):
        (use,) = before.uses()
        assert use.node.op_type == "GroupQueryAttention"
        assert after.producer() is use.node
        assert not list(after.uses()), "nothing but the program's result reads a grown cache"


def test_cross_caches_are_read_by_attention_only(bundle: Path, quantize: str) -> None:
    graph = ir.load(bundle / "onnx/decode.onnx").graph
    attention = {"none": {"MultiHeadAttention"}}.get(quantize, {"GroupQueryAttention", "Cast"})
    cross = [
        value for value in graph.inputs if value.name.startswith("cross_") and len(value.shape) == 4
    ]
    assert len(cross) == 2 * SMALL.decoder_layers
    for value in cross:
        readers = {use.node.op_type for use in value.uses()}
        assert attention <= readers <= {*attention, "Shape"}, value.name
        for use in value.uses():
            if use.node.op_type == "Cast":
                assert [user.node.op_type for user in use.node.outputs[0].uses()] == [
                    "MultiHeadAttention"
                ]


def test_a_quantised_head_gives_logits_as_they_leave_the_graph(bundle: Path, quantize: str) -> None:
    graph = ir.load(bundle / "onnx/decode.onnx").graph
    (logits,) = (value for value in graph.outputs if value.name == "logits")
    expected = "Reshape" if quantize == "none" else "MatMulNBits"
    assert logits.producer().op_type == expected


def test_cross_caches_are_int8_when_quantized_and_never_written(quantize: str) -> None:
    features = np.random.default_rng(0).normal(size=(1, 80, 50)).astype(np.float32)
    runtime = opened(SMALL, quantize)
    cache = encoded(runtime, (features,), rows=3)
    slots = cache.memory.slots
    caches = [part for part in slots.parts if part.ndim == 4]
    expected = np.float32 if quantize == "none" else np.int8
    assert {array.dtype for array in caches} == {np.dtype(expected)}
    before = [array.copy() for array in caches]
    for new in (4, 1, 1):
        _, cache = runtime.decode([np.ones(new, np.int64)] * 3, cache)
    assert all(map(operator.is_, (part for part in slots.parts if part.ndim == 4), caches))
    for array, kept in zip(caches, before, strict=True):
        np.testing.assert_array_equal(array, kept)


def test_no_concat_joins_anything_larger_than_a_shape(bundle: Path) -> None:
    for name in ("encode", "decode"):
        for node in ir.load(bundle / f"onnx/{name}.onnx").graph:
            if node.op_type == "Concat" and not _selects_queries(node):
                assert {value.dtype for value in node.outputs} == {ir.DataType.INT64}


def test_no_product_shares_a_scale_among_rows(bundle: Path) -> None:
    """Rows would be rounded differently in other company: `DynamicQuantizeMatMul` has one scale."""
    for name in ("encode", "decode"):
        products = {node.op_type for node in ir.load(bundle / f"onnx/{name}.onnx").graph}
        assert "DynamicQuantizeMatMul" not in products


def test_inputs_encoded_together_give_what_each_gives_alone(quantize: str) -> None:
    """Also where one is ten times as large."""
    features = np.random.default_rng(0).normal(size=(3, 80, 50)).astype(np.float32)
    features[1] *= 10
    runtime = opened(SMALL, quantize)
    tokens_rs = random_tokens(3, 4, seed=0)
    together_rsv, _ = stepped(runtime, encoded(runtime, (features,)), tokens_rs)
    for row in range(3):
        one = slice(row, row + 1)
        alone_1sv, _ = stepped(runtime, encoded(runtime, (features[one],)), tokens_rs[one])
        np.testing.assert_allclose(together_rsv[one], alone_1sv, atol=1e-4)


def test_the_alignment_heads_cost_two_operators(bundle: Path) -> None:
    graph = ir.load(bundle / "onnx/decode.onnx").graph
    (queries,) = (value for value in graph.outputs if value.name == ALIGNMENT_QUERIES)
    selected = queries.producer()
    assert (selected.op_type, selected.inputs[0].producer().op_type) == ("Gather", "Concat")
    assert len(selected.inputs[0].producer().inputs) == 2  # layers
    assert queries.shape[2] == 3 * SMALL.head_dim


def _selects_queries(node: ir.Node) -> bool:
    return any(use.node.outputs[0].name == ALIGNMENT_QUERIES for use in node.outputs[0].uses())


def test_cross_projections_are_in_encode_and_not_in_decode(small_bundle: Path) -> None:
    width = SMALL.d_model

    def projections(name: str) -> int:
        graph = ir.load(small_bundle / f"onnx/{name}.onnx").graph
        return sum(
            tuple(value.shape) == (width, 2 * width) for value in graph.initializers.values()
        )

    assert projections("encode") == SMALL.decoder_layers
    assert projections("decode") == 0


def test_weights_are_stored_once(small_bundle: Path, small_programs: TorchModel) -> None:
    used = sum(parameter.numel() for parameter in small_programs["decode"].parameters())
    graph = ir.load(small_bundle / "onnx/decode.onnx").graph
    stored = sum(value.const_value.nbytes for value in graph.initializers.values())
    assert 4 * used <= stored < 4 * used * 1.01


def test_graphs_carry_no_paths(bundle: Path) -> None:
    for path in (bundle / "onnx").iterdir():
        content = path.read_bytes()
        assert b"site-packages" not in content
        assert str(Path(__file__).parents[3]).encode() not in content


@pytest.fixture
def cross_runtime() -> OnnxEncoderDecoder:
    return open_folder(int8_cross_caches())


def test_many_queries_read_an_int8_cache_as_few_do(cross_runtime: OnnxEncoderDecoder) -> None:
    features = np.random.default_rng(9).normal(size=(2, 80, 50)).astype(np.float32)
    features *= np.array([0.1, 3], np.float32)[:, None, None]
    tokens = random_tokens(2, 25, seed=10)
    together = whole(cross_runtime, (features,), tokens)
    cache = encoded(cross_runtime, (features,))
    before = [part.copy() for part in cache.memory.slots.parts]
    one_by_one, cache = stepped(cross_runtime, cache, tokens)
    assert_logits_equal(together, one_by_one, SMALL)
    for old, new in zip(before, cache.memory.slots.parts, strict=True):
        np.testing.assert_array_equal(old, new)


def test_inputs_that_were_quantised_apart_give_in_a_batch_what_they_give_alone(
    cross_runtime: OnnxEncoderDecoder,
) -> None:
    runtime = cross_runtime
    # Channels' magnitudes differ from input to input, as those of loud and soft speech do.
    features = np.random.default_rng(7).normal(size=(4, 80, 50)).astype(np.float32)
    features *= np.array([0.01, 1, 30, 1], np.float32)[:, None, None]
    tokens = np.random.default_rng(8).integers(0, 300, (4, 6))
    alone = [
        stepped(runtime, encoded(runtime, (features[i : i + 1],)), tokens[i : i + 1])[0][0]
        for i in range(4)
    ]
    cache = runtime.new_cache(4, 32, inputs=4)
    for slots in ([2], [0, 3], [1]):
        cache = runtime.encode(cache, slots, features[slots])
    cache = runtime.reset(cache, range(4), range(4))
    together, cache = stepped(runtime, cache, tokens)
    assert len(cache.memory.bound["plan"].runs) == 1
    assert_logits_equal(together, np.stack(alone), SMALL)
    parts = dict(zip(runtime.encoded, cache.memory.slots.parts, strict=True))
    scales = parts["cross_key_scale_0"][[cache.memory.slots.places[slot] for slot in (0, 1)]]
    assert np.abs(scales[0] / scales[1] - 1).max() > 0.05


def test_nothing_is_read_from_graphs_without_onnx_ir(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running a bundle needs none, so verify skips the checks of files."""
    manifest = read_bundle(small_bundle)
    assert OnnxTarget().read_stored(small_bundle, manifest, {}).constants
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    assert not OnnxTarget().read_stored(small_bundle, manifest, {}).constants


def test_graphs_are_valid_onnx(small_bundle: Path) -> None:
    for name in ("encode", "decode"):
        onnx.checker.check_model(small_bundle / f"onnx/{name}.onnx")


def test_a_step_writes_its_own_slots_and_nothing_else() -> None:
    small_onnx = opened(SMALL)
    features = np.random.default_rng(0).normal(size=(2, 80, 50)).astype(np.float32)
    cache = encoded(small_onnx, (features,), rows=4)
    cells = cache.memory.cells
    for cell in cells:
        cell[:] = 7
    _, cache = small_onnx.decode([np.ones(3, np.int64)] * 4, cache)
    before = [cell.copy() for cell in cells]
    _, cache = small_onnx.decode([np.ones(1, np.int64)] * 4, cache)
    assert cache.memory.cells is cells
    for old, new in zip(before, cells, strict=True):
        assert (old[..., 3, :] == 7).all()
        assert (new[..., 3, :] != 7).all()
        np.testing.assert_array_equal(new[..., :3, :], old[..., :3, :])
        assert (new[..., 4:, :] == 7).all()


def test_quantized_logits_stay_close(quantize: str) -> None:
    """The random model's logits span about 9; int8 changes them by a few per cent."""
    bounds = {"none": 1e-3, "int8": 1.0, "int4": 6.0}
    features = np.random.default_rng(1).normal(size=(1, 80, 50)).astype(np.float32)
    tokens = np.random.default_rng(2).integers(0, 300, (1, 8))
    exact = _logits(SMALL, features, tokens)
    runtime = opened(SMALL, quantize)
    logits = whole(runtime, (features,), tokens)
    error = np.abs(logits - exact).max()
    assert np.ptp(exact) > 8
    assert error < bounds[quantize]
    if quantize != "none":
        assert error > 1e-3, "nothing was quantised"


def _logits(dimensions: WhisperDimensions, features: Float32, tokens: np.ndarray) -> Float32:
    runtime = opened(dimensions, runtime="eager")
    return whole(runtime, (features,), tokens)


def test_int8_columns_are_within_half_a_step() -> None:
    weight = np.random.default_rng(3).normal(size=(48, 20)).astype(np.float32)
    weight[:, 3] = 0
    codes, scales = to_int8_columns(weight)
    assert (np.abs(codes * scales - weight) <= scales / 2 + 1e-6).all()


@pytest.mark.slow
def test_128_mel_bins_and_a_deep_encoder_export() -> None:
    dimensions = replace(SMALL, n_mels=128, encoder_layers=5, decoder_layers=1, alignment_heads=())
    runtime = opened(dimensions)
    features = np.random.default_rng(5).normal(size=(1, 128, 50)).astype(np.float32)
    tokens = np.random.default_rng(6).integers(0, 300, (1, 8))
    logits = whole(runtime, (features,), tokens)
    assert_logits_equal(logits, _logits(dimensions, features, tokens), dimensions)
