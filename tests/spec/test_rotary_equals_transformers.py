import numpy as np
import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from kvcast.errors import KvcastError
from kvcast.spec.rotary import Rotary

# Far enough for a wrong last bit of a frequency to be seen.
POSITIONS = 8192
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
KINDS = {
    "default": ({"rope_theta": 10_000.0}, Rotary(base=10_000.0)),
    "mixtral": ({"rope_theta": 1e6}, Rotary(base=1e6)),
    "linear": (
        {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
        Rotary(base=1e6, scaling="linear", factor=8.0),
    ),
    "llama3": (
        {**LLAMA3, "rope_theta": 500_000.0, "rope_type": "llama3"},
        Rotary(base=500_000.0, scaling="llama3", factor=32.0, trained_positions=8192),
    ),
    "yarn": (
        {
            "rope_theta": 1e6,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32_768,
        },
        Rotary(base=1e6, scaling="yarn", factor=4.0, high_frequency=32.0, trained_positions=32_768),
    ),
    "yarn with every setting": (
        {
            "rope_theta": 1e4,
            "rope_type": "yarn",
            "factor": 16.0,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.5,
            "original_max_position_embeddings": 512,
        },
        Rotary(
            base=1e4,
            scaling="yarn",
            factor=16.0,
            low_frequency=2.0,
            high_frequency=16.0,
            trained_positions=512,
            attention_factor=1.5,
        ),
    ),
}


def assert_same_tables(rotary, head_dim, embedding, *kind):
    positions = torch.arange(POSITIONS)[None]
    tables = rotary.tables(POSITIONS, head_dim)
    for ours, theirs in zip(tables, embedding(torch.zeros(1), positions, *kind), strict=True):
        # Theirs holds each angle for both halves of a head.
        assert ours.shape == (POSITIONS, head_dim // 2)
        np.testing.assert_allclose(np.tile(ours, 2), theirs[0].numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("head_dim", [8, 64, 80, 128, 256])
@pytest.mark.parametrize(("parameters", "rotary"), KINDS.values(), ids=KINDS)
def test_cosines_and_sines_are_transformers(parameters, rotary, head_dim):
    config = LlamaConfig(
        head_dim=head_dim,
        max_position_embeddings=131_072,
        rope_parameters={"rope_type": "default", **parameters},
    )
    assert_same_tables(rotary, head_dim, LlamaRotaryEmbedding(config))


def test_both_bases_of_gemma_3_are_transformers():
    config = Gemma3TextConfig(rope_scaling={"rope_type": "linear", "factor": 8.0})
    embedding = Gemma3RotaryEmbedding(config)
    far = Rotary(base=1e6, scaling="linear", factor=8.0)
    assert_same_tables(far, 256, embedding, "full_attention")
    assert_same_tables(Rotary(base=1e4), 256, embedding, "sliding_attention")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scaling": "longrope"}, "'longrope' is not supported"),
        ({"base": float("nan")}, "out of range"),
        ({"factor": 0.5}, "out of range"),
        ({"scaling": "llama3"}, "needs the trained length"),
        ({"scaling": "yarn", "trained_positions": 8, "high_frequency": 1.0}, "in this order"),
        ({"scaling": "llama3", "trained_positions": 8, "low_frequency": 0.0}, "above 0"),
    ],
)
def test_settings_that_make_no_angles_are_one_line(settings, words):
    with pytest.raises(KvcastError, match=words):
        Rotary(**{"base": 10_000.0, **settings})
