"""Hugging Face folders that are written: read back, they hold the same model."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperModel

from checkpoints.tiny_whisper import random_checkpoint
from kvcast.checkpoints.source import open_checkpoint
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerDecoderOnly
from kvcast.spec.position_encodings import Rotary
from kvcast_bench.writing.huggingface import (
    is_like_llama,
    model_type,
    transformers_tensors,
    write_huggingface,
)
from tiny_models import TINY, tiny_checkpoint

QWEN2 = replace(TINY, architecture="qwen2", qkv_bias=True)
QWEN3 = replace(TINY, architecture="qwen3", query_key_norm=True, tied=False)
MISTRAL = replace(TINY, architecture="mistral", windows=(7, 7))


def assert_same_tensors(written, expected):
    assert written.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(written[name], tensor)


@pytest.mark.parametrize("dimensions", [TINY, QWEN2, QWEN3, MISTRAL], ids=model_type)
def test_a_decoder_read_back_is_the_same(dimensions, tmp_path):
    checkpoint = tiny_checkpoint(dimensions)
    write_huggingface(checkpoint, tmp_path / "model")
    written = open_checkpoint(tmp_path / "model")
    assert written.dimensions == dimensions
    assert json.loads(written.text["tokenizer.json"]) == json.loads(
        checkpoint.text["tokenizer.json"]
    )
    about = json.loads(written.text["text.json"])
    assert about | json.loads(checkpoint.text["text.json"]) == about  # and what its class adds
    assert_same_tensors(written.tensors, checkpoint.tensors)


@pytest.mark.parametrize("languages", [(), (5, 6)], ids=["english", "multilingual"])
def test_a_whisper_read_back_is_the_same(languages, tmp_path):
    checkpoint = random_checkpoint(languages)
    write_huggingface(checkpoint, tmp_path / "model")
    written = open_checkpoint(tmp_path / "model")
    assert written.dimensions == checkpoint.dimensions
    assert written.generation == checkpoint.generation
    assert json.loads(written.text["tokenizer.json"]) == json.loads(
        checkpoint.text["tokenizer.json"]
    )
    assert_same_tensors(written.tensors, checkpoint.tensors)


def test_transformers_computes_the_same_from_a_decoder(tmp_path):
    checkpoint = tiny_checkpoint()
    write_huggingface(checkpoint, tmp_path / "model")
    tokens = np.arange(2, 9)
    with torch.inference_mode():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")(
            torch.from_numpy(tokens[None])
        )
    runtime = EagerDecoderOnly(TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors))
    ours, _ = runtime.decode([tokens], runtime.new_cache(1, 8))
    np.testing.assert_allclose(ours[0, 0], theirs.logits[0, -1], atol=1e-3)


def test_transformers_gets_exactly_the_tensors_of_its_whisper(tmp_path):
    checkpoint = random_checkpoint()
    write_huggingface(checkpoint, tmp_path / "model")
    config = WhisperConfig.from_pretrained(tmp_path / "model")
    with torch.device("meta"):
        model = WhisperModel(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    written = transformers_tensors(checkpoint.tensors)
    assert {name: tensor.shape for name, tensor in written} == shapes


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
