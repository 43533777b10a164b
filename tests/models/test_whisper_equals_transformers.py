"""Eager Whisper's logits equal transformers' on random weights, for each kind of shape."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from kit.models import whole
from kit.rounding import FAULTS, assert_equal_but_for_rounding, plant
from kvcast.checkpoints.source import open_checkpoint
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder

TINY = {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6}
NARROW = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4}
LARGE = {**NARROW, "vocab_size": 51866, "num_mel_bins": 128}
SHAPES = {
    "tiny.en": {**TINY, "vocab_size": 51864, "decoder_layers": 4},
    "tiny": {**TINY, "vocab_size": 51865, "decoder_layers": 4},
    "large-v3's 128 mel bins and vocabulary": {**LARGE, "decoder_layers": 2},
    "turbo's shallow decoder": {**LARGE, "encoder_layers": 8, "decoder_layers": 1},
}


def _save_random_model(folder: Path, shape: dict[str, int]) -> WhisperForConditionalGeneration:
    torch.manual_seed(0)
    config = WhisperConfig(
        **shape,
        decoder_attention_heads=shape["encoder_attention_heads"],
        encoder_ffn_dim=4 * shape["d_model"],
        decoder_ffn_dim=4 * shape["d_model"],
        init_std=0.05,
    )
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms and biases, which are ones and zeros
                parameter.normal_(float(name.endswith("norm.weight")), 0.1)
    model.save_pretrained(folder)
    # The model never reads a token's text, so any tokenizer will do.
    (folder / "tokenizer.json").write_text("{}")
    return model


# Tiny is tiny.en with another vocabulary.
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, marks=[pytest.mark.slow] if name == "tiny" else [], id=name)
        for name, shape in SHAPES.items()
    ],
)
def test_logits_equal_transformers(shape: dict[str, int], tmp_path: Path) -> None:
    oracle = _save_random_model(tmp_path, shape)
    checkpoint = open_checkpoint(tmp_path)
    runtime = EagerEncoderDecoder(
        TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    )
    generator = np.random.default_rng(1)
    features = generator.normal(size=(2, checkpoint.dimensions.n_mels, 3000)).astype(np.float32)
    tokens = generator.integers(0, shape["vocab_size"], (2, 9))
    with torch.inference_mode():
        expected = oracle(
            input_features=torch.from_numpy(features), decoder_input_ids=torch.from_numpy(tokens)
        ).logits.numpy()
    logits = whole(runtime, (features,), list(tokens))
    assert_equal_but_for_rounding(logits, expected, checkpoint.tensors)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_constant_exceeds_the_tolerance(fault, monkeypatch, tmp_path) -> None:
    plant(fault, monkeypatch)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_logits_equal_transformers(SHAPES["turbo's shallow decoder"], tmp_path)
