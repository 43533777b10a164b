"""Codes of a whole model: of which matrices, for which inputs, and the same each time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kit.dimensions import GEMMA3, LLAMA, MISTRAL, QWEN2
from kit.models import random_programs
from kvcast.errors import KvcastError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.models.executor import TorchModel
from kvcast.runtimes.lowering import calibration
from kvcast.runtimes.lowering.calibration import calibrate, decode_from_the_start, write_text
from kvcast.runtimes.native.matrices import searched
from kvcast.spec.runtimes import ignore_phase
from kvcast.spec.stored_matrices import CodedMatrix, no_blocks, rounded

NAMES = ("attention.qkv", "attention.out", "feed_forward.gate_up", "feed_forward.down")


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_TOKENS", 512)


def short(dimensions: DecoderDimensions) -> TorchModel:
    """Programs whose texts take few steps, and with channels that stand out, as real ones have."""
    programs = random_programs(replace(dimensions, max_positions=32))
    random = torch.Generator().manual_seed(0)
    for layer in range(dimensions.layers):
        for norm in ("attention_norm", "feed_forward_norm"):
            gain = programs.weights[f"decoder.layers.{layer}.{norm}.weight"]
            gain *= torch.randn(dimensions.width, generator=random).exp()
    return programs


def matrices(programs: TorchModel) -> dict[str, NDArray[np.float32]]:
    weights = programs["decode"].state_dict()
    return {
        name: weights[name].numpy().copy()
        for layer in range(programs.dimensions.layers)
        for name in (f"decoder.layers.{layer}.{part}.weight" for part in NAMES)
    }


def inputs_of(programs: TorchModel, seed: int) -> dict[str, NDArray[np.float32]]:
    """What each matrix is given in a text, [positions, inputs]."""
    inputs: dict[str, NDArray[np.float32]] = {}

    def keep(name: str, given: torch.Tensor) -> None:
        inputs[name] = given.flatten(0, -2).numpy()

    for name in matrices(programs):
        matrix = programs["decode"].matrix(name)
        matrix.register_forward_pre_hook(lambda _, given, name=name: keep(name, *given))
    text = write_text(programs, 512, seed)
    decode_from_the_start(programs, text)
    return inputs


@pytest.mark.parametrize("dimensions", [LLAMA, MISTRAL, QWEN2, GEMMA3])
def test_what_matrices_give_is_nearer_in_another_text_as_well(
    dimensions: DecoderDimensions,
) -> None:
    programs = short(dimensions)
    exact = matrices(programs)
    calibrated = calibrate(programs, no_blocks, ignore_phase)
    assert calibrated.record == {"calibrated": len(exact), "kept": 0, "tokens": 512, "seed": 0}
    assert calibrated.blocks_of("decoder.embedding.weight") is None
    assert calibrated.blocks_of("decoder.head.weight") is None
    nearer = []
    for name, inputs in inputs_of(short(dimensions), seed=1).items():
        blocks = calibrated.blocks_of(name)
        assert blocks is not None
        own, plain = (
            np.square(inputs @ (coded.dequantize() - exact[name]).T).mean()
            for coded in (blocks, searched(exact[name]))
        )
        nearer.append(own / plain)
    assert np.mean(nearer) < 0.95


def test_no_weight_changes_and_twice_gives_the_same() -> None:
    programs = short(LLAMA)
    before = matrices(programs)
    first, second = (calibrate(programs, no_blocks, ignore_phase).blocks_of for _ in range(2))
    for name, matrix in matrices(programs).items():
        np.testing.assert_array_equal(matrix, before[name])
        blocks, same = first(name), second(name)
        assert blocks is not None
        assert same is not None
        for part in ("codes", "scales", "least"):
            np.testing.assert_array_equal(getattr(blocks, part), getattr(same, part))


def test_a_seed_is_a_text() -> None:
    programs = short(LLAMA)
    texts = [write_text(programs, 512, seed) for seed in (0, 0, 1)]
    assert texts[0].shape == (16, 32)
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def test_a_checkpoints_own_codes_are_kept_and_others_are_calibrated_beside_them() -> None:
    programs = short(LLAMA)
    name = "decoder.layers.0.attention.qkv.weight"
    own: dict[str, CodedMatrix] = {name: rounded(matrices(programs)[name])}
    calibrated = calibrate(programs, own.get, ignore_phase)
    assert calibrated.blocks_of(name) is own[name]
    assert (calibrated.record["calibrated"], calibrated.record["kept"]) == (7, 1)


def test_where_all_codes_are_the_checkpoints_no_text_is_written() -> None:
    programs = short(LLAMA)
    own = {name: rounded(matrix) for name, matrix in matrices(programs).items()}
    phases: list[str] = []
    calibrated = calibrate(programs, own.get, phases.append)
    assert calibrated.record == {"calibrated": 0, "kept": 8}
    assert phases == ["calibrating nothing"]
    assert all(calibrated.blocks_of(name) is blocks for name, blocks in own.items())


def test_inputs_that_are_no_multiple_of_a_block_are_left_to_the_lowering() -> None:
    calibrated = calibrate(short(replace(LLAMA, inner=40)), no_blocks, ignore_phase)
    assert calibrated.record["calibrated"] == 6
    assert calibrated.blocks_of("decoder.layers.0.feed_forward.down.weight") is None


def test_weights_whose_logits_are_not_finite_are_refused() -> None:
    programs = short(LLAMA)
    programs.weights["decoder.norm.weight"].fill_(torch.nan)
    with pytest.raises(KvcastError, match="logits are not all finite"):
        calibrate(programs, no_blocks, ignore_phase)
