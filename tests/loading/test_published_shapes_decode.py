"""Models with the proportions of published ones are exported and write what openai-whisper does."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import kvcast
import whisper
from kit.errors import one_line
from kit.models import own_cache
from kit.openai_whisper import openai_model, openai_tokenizer
from kit.published_shapes import PUBLISHED, Shape, ctranslate2, hugging_face, random_whisper
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import KvcastError
from kvcast.whisper.decoding import DecodingOptions
from kvcast.whisper.model import WhisperModel
from kvcast.whisper.requests import Features

SMALL = replace(PUBLISHED["large-v3-turbo"], encoder_layers=2, decoder_layers=1, heads=4)
# Depth adds time and little that differs: one decoder has layers with two digits, the others have a
# few. With that the shapes that are not here are like one that is.
SHAPES = {
    "large-v3": replace(PUBLISHED["large-v3"], encoder_layers=4, decoder_layers=11),
    **{
        name: replace(PUBLISHED[name], encoder_layers=4)
        for name in ("distil-large-v2", "distil-large-v3", "distil-small.en")
    },
    "small": SMALL,
}
AUDIO = np.random.default_rng(0).normal(0, 0.1, 2 * 16000).astype(np.float32)

# openai-whisper sorts torch tensors with NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    own_cache(monkeypatch, tmp_path / "kvcast-cache")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "small" else pytest.mark.slow) for name in SHAPES],
)
def test_an_exported_model_decodes_as_openai_whisper(name: str, tmp_path: Path):
    shape: Shape = SHAPES[name]
    folder = hugging_face(random_whisper(shape), shape, tmp_path / "model", max_shard_size="8MB")
    model = kvcast.load(folder, quantize="none", threads=1)
    assert isinstance(model, WhisperModel)
    checkpoint = open_checkpoint(folder)
    oracle = openai_model(checkpoint.dimensions, checkpoint.tensors)
    openai_tokenizer(bool(shape.languages), num_languages=shape.languages or 99)
    window_mt = np.random.default_rng(1).normal(0, 0.5, (shape.n_mels, 3000)).astype(np.float32)
    language = "yue" if shape.languages == 100 else "en"
    options = DecodingOptions(language=language, max_new_tokens=12)
    [ours] = model.decoder(options).decode([Features(window_mt)], options)
    theirs = whisper.decode(
        oracle,
        torch.from_numpy(window_mt),
        whisper.DecodingOptions(language=language, sample_len=12, fp16=False),
    )
    assert list(ours.tokens) == theirs.tokens
    assert ours.avg_logprob == pytest.approx(theirs.avg_logprob, abs=1e-3)
    assert ours.no_speech_prob == pytest.approx(theirs.no_speech_prob, rel=1e-2)
    if shape.languages:
        [probabilities] = model.decoder(options).detect_languages([Features(window_mt)])
        _, expected = whisper.detect_language(oracle, torch.from_numpy(window_mt))
        assert probabilities == pytest.approx(expected, abs=1e-4)
        assert len(probabilities) == shape.languages
    transcription = model.transcribe(
        AUDIO, timestamps=False, max_new_tokens=6, temperature=0, no_speech_threshold=None
    )
    [segment] = transcription
    assert transcription.language in model.languages
    assert 0 < len(segment.tokens) <= 6
    assert max(segment.tokens) < checkpoint.dimensions.vocab_size


def model_of_added_tokens(shape: Shape, words: list[int]) -> "torch.nn.Module":
    """A model that writes added tokens: special ones likest, then rows of padding, then `words`."""
    model = random_whisper(shape)
    decoder, named = model.model.decoder, shape.vocab_size - len(shape.added) - shape.padding
    with torch.no_grad():
        decoder.layer_norm.weight.fill_(0.01)
        decoder.layer_norm.bias.fill_(1)
        decoder.embed_tokens.weight[:named] *= 0.01
        decoder.embed_tokens.weight[named:] = 3
        decoder.embed_tokens.weight[named + len(shape.added) :] = 2
        decoder.embed_tokens.weight[words] = 1
    return model


@pytest.mark.parametrize(
    ("layout", "languages"),
    [
        ("hugging_face", 0),
        ("ctranslate2", 100),
        pytest.param("hugging_face", 100, marks=pytest.mark.slow),
        pytest.param("ctranslate2", 0, marks=pytest.mark.slow),
    ],
)
def test_added_words_are_transcribed_and_no_other_added_token(
    tmp_path: Path, languages: int, layout: str
):
    shape = replace(
        SMALL, languages=languages, added={" kvcast": False, "<|speaker|>": True}, padding=36
    )
    word = shape.vocab_size - 38
    source = hugging_face(model_of_added_tokens(shape, [word]), shape, tmp_path / "hugging_face")
    if layout == "ctranslate2":
        ctranslate2(source, shape, tmp_path / layout)
    model = kvcast.load(tmp_path / layout, runtime="eager", quantize="none", threads=1)
    assert model.is_multilingual == bool(languages)
    for timestamps in (True, False):
        [segment] = model.transcribe(
            AUDIO, language="en", max_new_tokens=4, temperature=0, timestamps=timestamps
        )
        assert segment.text == " kvcast" * (4 - timestamps)
        assert segment.tokens[timestamps:] == (word,) * (4 - timestamps)


def test_windows_of_another_length_are_refused_in_one_line(tmp_path: Path):
    short = replace(SMALL, source_positions=500)
    folder = hugging_face(random_whisper(short), short, tmp_path / "model")
    load = partial(kvcast.load, runtime="eager", quantize="none")
    assert "this model has windows of 10 s" in one_line(KvcastError, load, folder)
