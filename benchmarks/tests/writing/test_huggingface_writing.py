"""Hugging Face folders that are written: read back, they hold the same model."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperModel

from checkpoints.folder_checks import assert_same_tensors
from checkpoints.tiny_whisper import random_checkpoint
from kvcast.checkpoints.source import open_checkpoint
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerDecoderOnly
from kvcast.spec.position_encodings import Rotary
from kvcast_bench.writing.huggingface import (
    is_like_llama,
    transformers_tensors,
    write_huggingface,
)
from tiny_models import TINY, tiny_checkpoint

QWEN2 = replace(TINY, architecture="qwen2", qkv_bias=True)
QWEN3 = replace(TINY, architecture="qwen3", query_key_norm=True, tied=False)
MISTRAL = replace(TINY, architecture="mistral", windows=(7, 7))


@pytest.mark.parametrize(
    "checkpoint",
    [
        *map(tiny_checkpoint, (TINY, QWEN2, QWEN3, MISTRAL)),
        random_checkpoint(()),
        random_checkpoint((5, 6)),
    ],
    ids=["llama", "qwen2", "qwen3", "mistral", "english", "multilingual"],
)
def test_a_model_read_back_is_the_same(checkpoint, tmp_path):
    write_huggingface(checkpoint, tmp_path / "model")
    read = open_checkpoint(tmp_path / "model")
    assert read.dimensions == checkpoint.dimensions
    assert read.generation == checkpoint.generation
    assert json.loads(read.text["tokenizer.json"]) == json.loads(checkpoint.text["tokenizer.json"])
    if "text.json" in checkpoint.text:
        about = json.loads(read.text["text.json"])
        assert about | json.loads(checkpoint.text["text.json"]) == about  # and what its class adds
    assert_same_tensors(read.tensors, checkpoint.tensors)


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
