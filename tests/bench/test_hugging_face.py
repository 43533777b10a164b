"""Folders that peers are fed: read back, they hold the model that was written."""

from dataclasses import replace

import numpy as np
import pytest

from bench_models import TINY, tiny_checkpoint
from kvcast.bench.hugging_face import is_like_llama, model_type, write_hugging_face
from kvcast.checkpoints.source import open_checkpoint
from kvcast.spec.rotary import Rotary

QWEN2 = replace(TINY, architecture="qwen2", qkv_bias=True)
QWEN3 = replace(TINY, architecture="qwen3", query_key_norm=True, tied=False)
MISTRAL = replace(TINY, architecture="mistral", windows=(7, 7))


@pytest.mark.parametrize("dimensions", [TINY, QWEN2, QWEN3, MISTRAL], ids=model_type)
def test_a_hugging_face_folder_holds_the_same_model(dimensions, tmp_path):
    checkpoint = tiny_checkpoint(dimensions)
    write_hugging_face(checkpoint, tmp_path / "model")
    found = open_checkpoint(tmp_path / "model")
    assert found.dimensions == dimensions
    assert found.tensors.keys() == checkpoint.tensors.keys()
    for name, tensor in checkpoint.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], tensor)


def test_transformers_computes_the_same_from_it(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    from kvcast.programs.decoder import DecoderPrograms
    from kvcast.runtimes.eager_decoder import EagerDecoderOnly

    checkpoint = tiny_checkpoint()
    write_hugging_face(checkpoint, tmp_path / "model")
    tokens = np.arange(2, 9)
    with torch.inference_mode():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")(
            torch.from_numpy(tokens[None])
        )
    runtime = EagerDecoderOnly(
        DecoderPrograms.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    )
    ours, _ = runtime.decode([tokens], runtime.new_cache(1, 8))
    np.testing.assert_allclose(ours[0, 0], theirs.logits[0, -1], atol=1e-3)


def test_models_that_a_configuration_does_not_describe_are_told_apart():
    assert all(map(is_like_llama, (TINY, QWEN2, QWEN3, MISTRAL)))
    peculiar = (
        replace(TINY, experts=4, experts_per_token=2),
        replace(TINY, windows=(7, None)),
        replace(TINY, post_norms=True),
        replace(TINY, activation="gelu_tanh"),
        replace(TINY, rotary=Rotary(base=1e4, scaling="linear", factor=2.0)),
        replace(QWEN3, windows=(7, 7)),
    )
    assert not any(map(is_like_llama, peculiar))
