"""Configurations and files of Moonshines: what is read, and what is refused."""

from pathlib import Path

import pytest
import torch

from checkpoints.folder_checks import rewrite_weights
from kit.random_moonshines import random_moonshine, save_moonshine
from kvcast.checkpoints.source import open_checkpoint
from kvcast.checkpoints.speech.moonshine import moonshine_dimensions
from kvcast.errors import KvcastError


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
