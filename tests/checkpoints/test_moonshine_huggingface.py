"""Configurations and files of Moonshines: what is read, and what is refused."""

from pathlib import Path

import pytest
import torch

from checkpoints.folder_checks import rewrite_weights
from kit.random_moonshines import random_moonshine, save_moonshine
from kvcast.checkpoints.source import open_checkpoint
from kvcast.checkpoints.speech.moonshine import moonshine_dimensions
from kvcast.errors import KvcastError

TYPES = ("moonshine", "moonshine_streaming")
LIES = [
    {"hidden_size": -1},
    {"vocab_size": "many"},
    {"intermediate_size": 0},
    {"max_position_embeddings": 2**40},
    {"decoder_start_token_id": 10**9},
    {"head_dim": 7},
    {"attention_bias": 3},
    {"partial_rotary_factor": 2.0},
    {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
]
OVER_SAMPLES = [
    {"encoder_num_hidden_layers": 10**9},
    {"encoder_num_key_value_heads": 2},
    {"decoder_num_attention_heads": 4},
    {"encoder_hidden_act": "mish"},
]
OVER_FRAMES = [
    {"num_hidden_layers": 10**9},
    {"num_key_value_heads": 2},
    {"hidden_act": "mish"},
    {"encoder_config": {"sample_rate": 8000}},
    {"encoder_config": {"frame_ms": 0}},
    {"encoder_config": {"frame_ms": 1e300}},
    {"encoder_config": {"num_key_value_heads": 4}},
    {"encoder_config": {"sliding_windows": [[16, 4]]}},
    {"encoder_config": {"sliding_windows": [[0, 4]] * 6}},
    {"encoder_config": {"sliding_windows": [[4, -1]] * 6}},
    {"encoder_config": {"sliding_windows": [4] * 6}},
    {"encoder_config": {"sliding_windows": 4}},
    {"encoder_config": 3},
]


@pytest.mark.parametrize(
    ("model_type", "lie"),
    [
        *((model_type, lie) for model_type in TYPES for lie in LIES),
        *(("moonshine", lie) for lie in OVER_SAMPLES),
        *(("moonshine_streaming", lie) for lie in OVER_FRAMES),
    ],
    ids=str,
)
def test_a_configuration_that_lies_is_one_line(model_type: str, lie: dict):
    moonshine_dimensions({"model_type": model_type}, "config.json")
    with pytest.raises(KvcastError, match=r"config\.json: ") as caught:
        moonshine_dimensions({"model_type": model_type, **lie}, "config.json")
    assert "\n" not in str(caught.value)


def test_published_shapes_are_the_defaults():
    tiny = moonshine_dimensions({"model_type": "moonshine"}, "config.json")
    assert (tiny.width, tiny.head_dim, tiny.rotary.partial) == (288, 36, 0.9)
    assert tiny.positions_of(30 * 16_000) == tiny.source_positions == 1248
    streaming = moonshine_dimensions({"model_type": "moonshine_streaming"}, "config.json")
    assert streaming.windows == ((15, 3), (15, 3), (15, 0), (15, 0), (15, 3), (15, 3))
    assert (streaming.frame, streaming.position_samples, streaming.sees_ahead) == (80, 320, 12)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_moonshine(random_moonshine("moonshine"), tmp_path / "model")


def test_a_head_that_is_the_embedding_is_tied_and_foreign_tensors_are_refused(folder: Path):
    expected = open_checkpoint(folder)
    rewrite_weights(
        folder,
        lambda tensors: (
            tensors | {"proj_out.weight": tensors["model.decoder.embed_tokens.weight"].clone()}
        ),
    )
    assert open_checkpoint(folder).dimensions == expected.dimensions
    rewrite_weights(folder, lambda tensors: tensors | {"model.other.weight": torch.zeros(3)})
    with pytest.raises(KvcastError, match=r"model\.safetensors|other\.weight"):
        open_checkpoint(folder)
