"""ggml's blocks as codes: what they stand for is what gguf's own dequantisation gives."""

import gguf
import numpy as np
import pytest
from gguf.quants import quantize

from kit.coded_gguf import SMALL_POWERS, put_halves
from kit.coded_gguf import raw as random_blocks
from kit.tiny_gguf import permuted, sizes, tensors, vocabulary, write
from kvcast.checkpoints.gguf.dequantize import dequantize, read_blocks
from kvcast.checkpoints.source import open_checkpoint
from kvcast.spec.grids import grid
from kvcast.spec.stored_matrices import BLOCKS, FLOATS, PREQUANTIZED

SHAPE = 6, 512


def raw_of(kind, seed=0):
    kind = gguf.GGMLQuantizationType[kind]
    generator = np.random.default_rng(seed)
    if kind.name == "Q4_K":  # which the library only reads
        raw = generator.integers(0, 256, (SHAPE[0], 2, 144), dtype=np.uint8)
        halves = generator.normal(0, 1e-3, (*raw.shape[:2], 2)).astype("<f2")
        raw[..., :4] = halves.view(np.uint8)
        raw = raw.reshape(SHAPE[0], -1)
    else:
        raw = quantize(generator.normal(size=SHAPE).astype(np.float32), kind)
    return raw, gguf.quants.dequantize(raw, kind)


@pytest.mark.parametrize("kind", sorted(BLOCKS.keys() - FLOATS - PREQUANTIZED))
def test_every_type_is_dequantized_as_by_gguf(kind):
    _, nbytes = BLOCKS[kind]
    raw = np.random.default_rng(kind).integers(0, 256, (4_000, nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # some halves are infinite, some no numbers
        want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind))
    own = dequantize(kind.name, raw.reshape(-1), want.shape)
    assert own.dtype == np.float32
    np.testing.assert_array_equal(own, want)


@pytest.mark.parametrize("kind", sorted(BLOCKS.keys() - FLOATS - SMALL_POWERS - PREQUANTIZED))
def test_extreme_scales_are_exact_to_the_bit(kind):
    halves = np.array([0, -0.0, 6e-8, -6e-8, 6.1e-5, 1e-3, -1, 65504, -65504], np.float16)
    raw = np.random.default_rng(kind).integers(
        0, 256, (len(halves) ** 2, BLOCKS[kind][1]), np.uint8
    )
    put_halves(kind, raw, np.array([(a, b) for a in halves for b in halves]))
    want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind))
    assert np.isfinite(want).all()
    own = dequantize(kind.name, raw.reshape(-1), want.shape)
    np.testing.assert_array_equal(own.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize(
    "kind", [f"IQ{i}" for i in ("1_S", "2_XXS", "2_XS", "2_S", "3_XXS", "3_S")]
)
def test_grids_are_ggufs(kind):
    theirs = getattr(gguf.quants, kind)
    theirs.init_grid()
    assert grid(kind).shape == theirs.grid_shape
    values = np.array(theirs.grid_map, np.float32)
    np.testing.assert_array_equal(values[grid(kind)], theirs.grid.reshape(theirs.grid_shape))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "TQ1_0", "TQ2_0"])
def test_simple_types_are_exact(kind):
    raw, want = raw_of(kind)
    blocks = read_blocks(kind, raw.reshape(-1), SHAPE)
    assert (blocks.least is None) == (kind == "Q8_0")
    np.testing.assert_array_equal(blocks.dequantize(), want)


def test_scales_of_q4_k_are_rounded_to_halves():
    raw, want = raw_of("Q4_K")
    blocks = read_blocks("Q4_K", raw.reshape(-1), SHAPE)
    scales, least = (
        np.abs(numbers.astype(np.float32)) for numbers in (blocks.scales, blocks.least)
    )
    # Half a unit in the last place of a half: 2^-11 of it, or half the least half.
    allowed = (15 * scales + least) * np.float32(2**-11) + 16 * np.float32(2**-25)
    error = np.abs(blocks.dequantize() - want).reshape(SHAPE[0], -1, 32)
    assert (error <= allowed[..., None] * 1.001).all()
    assert error.max() > 0


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "IQ2_XS", "NVFP4"])
def test_other_types_become_int8(kind):
    if kind in ("Q5_0", "Q5_1"):
        raw, want = raw_of(kind)
    else:  # which the library only reads
        raw = random_blocks(*SHAPE, kind, 0)
        want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    blocks = read_blocks(kind, raw.reshape(-1), SHAPE)
    assert blocks.least is None
    np.testing.assert_allclose(blocks.dequantize(), want, atol=np.abs(want).max() / 127 * 0.6)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_a_models_blocks_are_its_tensors(tmp_path, kind):
    """Fused matrices and queries in another order included."""
    arrays = {name: permuted(name, array) for name, array in tensors().items()}
    kinds = {name: kind for name, array in arrays.items() if array.ndim == 2}
    path = tmp_path / "m.gguf"
    write(path, "llama", sizes("llama") | vocabulary(), arrays, kinds)
    checkpoint = open_checkpoint(path)
    matrices = [name for name, array in checkpoint.tensors.items() if array.ndim == 2]
    assert len(matrices) > 4
    for name, array in checkpoint.tensors.items():
        blocks = checkpoint.tensors.blocks_of(name)
        assert (blocks is not None) == (array.ndim == 2)
        if blocks is not None:
            np.testing.assert_array_equal(blocks.dequantize(), array, err_msg=name)
