"""Attention weights equal those of the libraries that models come from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kit.decoder_cases import LENGTH, VOCAB
from kit.dimensions import ROFORMER
from kit.in_transformers import SETTINGS, random_t5, read_t5
from kit.models import checkpoint_of, random_programs
from kit.openai_whisper import openai_attention
from kit.random_barts import random_bart, save_bart
from kit.random_decoders import oracle_and_checkpoint
from kit.recordings import EXAMPLE
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.inspect.attention.model import (
    AttentionReader,
    FedSequence,
    InspectedModel,
    read_segment,
)
from kvcast.inspect.attention.weights import LayerWeights
from kvcast.models.executor import TorchModel
from kvcast.runtimes.reference import EagerReference, NativeReference

QUICK = ("gemma 4 whose layers share caches", "gpt oss")
"""Windows, layers that read another's cache, and sinks."""
SLOW = (
    "gemma 2",
    "gemma 3",
    "gpt 2 with unscaled attention",
    "granite 4",
    "lfm2",
    "mistral with its window",
    "olmo 2",
    "phi 3 longer than trained",
    "qwen 3.5",
)
"""Further ways to scale, to cap, to rotate and to norm, and layers without attention."""
ATTENDING = {"granite 4": [1], "lfm2": [1], "qwen 3.5": [1, 3]}
"""Layers with attention, where not all of them have it."""


def fed(tokens: Any, *source: Any, prompt: int = 1) -> FedSequence:
    return FedSequence(source=source, prompt=prompt, tokens=np.asarray(tokens).tolist())


def softcapped(oracle: Any) -> Mapping[str, Any]:
    # transformers' Gemma 3 reads this soft cap and does not use it unless it is told here.
    cap = getattr(oracle.config, "attn_logit_softcapping", None)
    return {"softcap": cap} if oracle.config.model_type == "gemma3_text" and cap else {}


@pytest.mark.parametrize(
    "model", [*QUICK, *(pytest.param(model, marks=pytest.mark.slow) for model in SLOW)]
)
def test_a_decoders_weights_are_those_of_transformers(model: str, tmp_path: Path):
    oracle, checkpoint = oracle_and_checkpoint(model, tmp_path)
    tokens = np.random.default_rng(1).integers(0, VOCAB, LENGTH)
    with torch.no_grad():
        told = softcapped(oracle)
        results = oracle(torch.from_numpy(tokens)[None], output_attentions=True, **told)
    theirs = [part[0].numpy() for part in results.attentions if part is not None]
    reader = AttentionReader(checkpoint, NativeReference(checkpoint, None))
    ours = list(reader.layers(fed(tokens), "self"))
    assert len(ours) == len(theirs)
    for layer, expected_hst in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(layer.weights_hst, expected_hst, atol=3e-5)
    assert max(layer.error for layer in ours) < 1e-5
    assert [layer.layer for layer in ours] == ATTENDING.get(model, list(range(len(theirs))))


def of_sources(oracle: Any, checkpoint: Checkpoint) -> dict[str, LayerWeights]:
    """Check all layers against transformers; give the first of self- and of cross-attention."""
    generator = np.random.default_rng(0)
    source, target = (generator.integers(6, 80, (1, count)) for count in (13, 11))
    with torch.no_grad():
        results = oracle(
            input_ids=torch.from_numpy(source),
            decoder_input_ids=torch.from_numpy(target),
            output_attentions=True,
        )
    padded = np.pad(source, ((0, 0), (0, 4)))
    sequence = fed(target[0], padded, np.array([13], np.int32))
    reader = AttentionReader(checkpoint, NativeReference(checkpoint, None))
    assert reader.kinds == {"self", "cross"}
    first = {}
    for kind, theirs in (("cross", results.cross_attentions), ("self", results.decoder_attentions)):
        ours = list(reader.layers(sequence, kind))
        assert [layer.layer for layer in ours] == list(range(checkpoint.dimensions.decoder_layers))
        assert max(layer.error for layer in ours) < 1e-5
        for layer, expected in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(layer.weights_hst, expected[0].numpy(), atol=1e-5)
        first[kind] = ours[0]
    return first


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "NARROW" else pytest.mark.slow) for n in SETTINGS]
)
def test_a_t5s_weights_are_those_of_transformers(name: str):
    oracle = random_t5(name, attn_implementation="eager")
    of_sources(oracle, read_t5(oracle))


def test_weights_of_target_and_source_in_one_softmax_are_those_of_transformers(tmp_path: Path):
    oracle = random_bart("t5gemma2")
    first = of_sources(oracle, open_checkpoint(save_bart(oracle, tmp_path / "model")))
    whole = sum(layer.weights_hst.sum(-1) for layer in first.values())
    np.testing.assert_allclose(whole, 1, atol=1e-5)


def test_a_source_sees_itself_and_a_target_what_is_before_it():
    programs = random_programs(ROFORMER)
    reader = AttentionReader(checkpoint_of(programs), EagerReference(programs))
    layers = list(reader.layers(fed([5, 6, 7, 8, 9, 10, 11], prompt=4), "self"))
    assert max(layer.error for layer in layers) < 1e-5
    queries, keys = np.ogrid[:7, :7]
    seen = (keys < 4) | (keys <= queries)
    for layer in layers:
        assert (layer.weights_hst[:, seen] > 0).all()
        assert not layer.weights_hst[:, ~seen].any()


@pytest.mark.slow
def test_a_whispers_weights_are_those_of_openai_whisper():
    model = InspectedModel.open("demo", lambda _: None)
    sequence = model.transcribed(read_segment(str(EXAMPLE), 0, 30), None)
    layers = list(model.reader.layers(sequence, "cross"))
    checkpoint = open_checkpoint(locate("demo"))
    programs = TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    scores_hst, _ = openai_attention(programs, sequence.source[0][0], sequence.tokens_s)
    theirs = torch.from_numpy(scores_hst).softmax(-1).numpy()
    heads = model.alignment_heads
    ours = np.stack([layers[layer].weights_hst[head] for layer, head in heads])
    assert ours.shape == (8, len(sequence.tokens), 1500)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
