import numpy as np
import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

from kvcast.errors import KvcastError
from kvcast.spec.position_encodings import Rotary

# Far enough for a wrong last bit of a frequency to be seen.
POSITIONS = 8192
NAMES = {
    "base": "rope_theta",
    "scaling": "rope_type",
    "low_frequency": "beta_slow",
    "high_frequency": "beta_fast",
    "trained_positions": "original_max_position_embeddings",
    "partial": "partial_rotary_factor",
}


def rope(base, scaling="default", **settings):
    """The same settings as transformers' parameters and as ours."""
    ours = {"base": base, **settings} | ({} if scaling == "default" else {"scaling": scaling})
    theirs = {NAMES.get(name, name): value for name, value in ours.items()}
    if scaling == "llama3":
        theirs |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    elif scaling == "yarn":  # whose default differs from ours
        ours.setdefault("high_frequency", 32.0)
    return theirs, Rotary(**ours)


KINDS = {
    "default": rope(10_000.0),
    "mixtral": rope(1e6),
    "linear": rope(1e6, "linear", factor=8.0),
    "llama3": rope(500_000.0, "llama3", factor=32.0, trained_positions=8192),
    "yarn": rope(1e6, "yarn", factor=4.0, trained_positions=32_768),
    "yarn with every setting": rope(
        1e4,
        "yarn",
        factor=16.0,
        low_frequency=2.0,
        high_frequency=16.0,
        trained_positions=512,
        attention_factor=1.5,
    ),
    "yarn between pairs": rope(
        150_000.0, "yarn", factor=32.0, trained_positions=4096, truncate=False
    ),
    "linear in a part of a head": rope(1e4, "linear", factor=2.0, partial=0.75),
    "yarn in a part of a head": rope(1e4, "yarn", factor=4.0, partial=0.5, trained_positions=512),
    "proportional": rope(1e6, "proportional", partial=0.25),
    "proportional with a factor": rope(1e6, "proportional", partial=0.75, factor=8.0),
}


# Those of which PyTorch's power is wrong by a bit.
ROUNDED = ("yarn between pairs",)


def assert_same_tables(rotary, head_dim, embedding, *kind, rounded=False):
    positions, turned = torch.arange(POSITIONS)[None], rotary.channels(head_dim) // 2
    tables = rotary.tables(POSITIONS, head_dim)
    most = 1e-5
    if rounded:
        angles = np.arange(POSITIONS)[:, None] * rotary.frequencies(head_dim, POSITIONS)[:turned]
        most = 1e-5 + np.tile(angles, 2) * 2 * np.finfo(np.float32).eps
    for ours, theirs in zip(tables, embedding(torch.zeros(1), positions, *kind), strict=True):
        # Theirs holds each angle for both halves of what turns.
        assert ours.shape == (POSITIONS, head_dim // 2)
        both = np.tile(ours[:, :turned], 2)
        assert (np.abs(both - theirs[0].numpy()) <= most).all()
    for table, still in zip(tables, (1, 0), strict=True):
        assert (table[:, turned:] == still).all()


@pytest.mark.parametrize(
    ("trained", "factor", "attention"),
    [(4096, None, None), (4096, None, 1.25), (POSITIONS, 4.0, None)],
    ids=["longer than trained", "with its attention factor", "no longer than trained"],
)
def test_longropes_divisors_are_those_of_the_longest_sequence(trained, factor, attention):
    """In transformers those of the sequence, which is as long here."""
    short, long = (np.linspace(1, most, 48).tolist() for most in (1.5, 60))
    given = {"factor": factor, "attention_factor": attention}
    config = LlamaConfig(
        head_dim=128,
        max_position_embeddings=131_072,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
            "short_factor": short,
            "long_factor": long,
            "original_max_position_embeddings": trained,
            **{name: value for name, value in given.items() if value is not None},
        },
    )
    rotary = Rotary(
        base=1e4,
        scaling="longrope",
        factor=factor or 131_072 / trained,
        trained_positions=trained,
        attention_factor=attention,
        partial=0.75,
        divisors=short,
        long_divisors=long,
    )
    assert_same_tables(rotary, 128, LlamaRotaryEmbedding(config), rounded=True)


@pytest.mark.parametrize("positions", [512, 1024, POSITIONS])
def test_a_dynamic_base_is_that_of_the_longest_sequence(positions):
    config = LlamaConfig(
        head_dim=64,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    )
    theirs, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=positions)
    rotary = Rotary(base=1e4, scaling="dynamic", factor=2.0, trained_positions=1024)
    np.testing.assert_allclose(rotary.frequencies(64, positions), theirs.numpy(), rtol=1e-6)


def test_factors_on_queries_are_transformers():
    rotary = Rotary(base=1e4, trained_positions=100, query_beta=0.1)
    theirs = get_llama_4_attn_scale(torch.arange(1000)[None], 0.1, 100)
    np.testing.assert_allclose(rotary.query_scales(1000), theirs[0, 0].numpy(), rtol=1e-6)


@pytest.mark.parametrize("head_dim", [8, 64, 80, 128, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_cosines_and_sines_are_transformers(kind, head_dim):
    parameters, rotary = KINDS[kind]
    config = LlamaConfig(
        head_dim=head_dim,
        max_position_embeddings=131_072,
        rope_parameters={"rope_type": "default", **parameters},
    )
    embedding = LlamaRotaryEmbedding(config)
    assert_same_tables(rotary, head_dim, embedding, rounded=kind in ROUNDED)


def test_both_bases_of_gemma_3_are_transformers():
    config = Gemma3TextConfig(rope_scaling={"rope_type": "linear", "factor": 8.0})
    embedding = Gemma3RotaryEmbedding(config)
    far = Rotary(base=1e6, scaling="linear", factor=8.0)
    assert_same_tables(far, 256, embedding, "full_attention")
    assert_same_tables(Rotary(base=1e4), 256, embedding, "sliding_attention")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scaling": "axial"}, "'axial' is not supported"),
        ({"scaling": "longrope"}, "needs the trained length"),
        ({"query_beta": 0.1}, "needs the trained length"),
        ({"query_beta": -0.1, "trained_positions": 8}, "query_beta -0.1 is out of range"),
        ({"partial": 1.5}, "share of a head"),
        ({"divisors": [1.0, 0.0]}, "divisors must be numbers above 0"),
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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"partial": 0.1}, "has no pairs that turn"),
        ({"scaling": "dynamic", "trained_positions": 8, "partial": 0.25}, "has no pairs"),
        ({"scaling": "longrope", "trained_positions": 8}, "needs 4 divisors"),
        (
            {"scaling": "longrope", "trained_positions": 1, "divisors": [1.0] * 4,
             "long_divisors": [1.0] * 4},
            "trained length of 2",
        ),
    ],
)  # fmt: skip
def test_heads_that_cannot_turn_are_one_line(settings, words):
    with pytest.raises(KvcastError, match=words):
        Rotary(base=10_000.0, **settings).check(8)
