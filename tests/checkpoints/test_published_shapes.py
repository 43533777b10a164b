"""Models with the proportions of published ones read the same from every layout."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kit.openai_whisper import openai_tokenizer
from kit.published_shapes import PUBLISHED, Shape, ctranslate2, hugging_face, random_whisper
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.source import open_checkpoint
from kvcast.whisper.tokenizer import WhisperTokenizer

FINE_TUNED = replace(
    PUBLISHED["distil-large-v3"],
    encoder_layers=1,
    decoder_layers=1,
    added={" kvcast": False, "<|speaker|>": True},
    padding=36,
)
ENGLISH_FINE_TUNED = replace(FINE_TUNED, n_mels=80, languages=0)
SHAPES = {**PUBLISHED, "fine-tuned": FINE_TUNED, "fine-tuned.en": ENGLISH_FINE_TUNED}
QUICK = ("fine-tuned", "fine-tuned.en")


def tokenizer_of(checkpoint: Checkpoint) -> WhisperTokenizer:
    return WhisperTokenizer(checkpoint.text["tokenizer.json"], checkpoint.dimensions.vocab_size)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in SHAPES]
)
def test_both_layouts_give_the_same_model(name: str, tmp_path: Path):
    shape: Shape = SHAPES[name]
    model = random_whisper(shape)
    folder = hugging_face(model, shape, tmp_path / "sharded", max_shard_size="8MB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    sharded = open_checkpoint(folder)
    converted = open_checkpoint(ctranslate2(folder, shape, tmp_path / "ctranslate2"))
    sizes = sharded.dimensions
    # The converter knows the alignment heads of OpenAI's models; a random model's folder has none.
    assert replace(converted.dimensions, alignment_heads=sizes.alignment_heads) == sizes
    assert (sizes.n_mels, sizes.vocab_size) == (shape.n_mels, shape.vocab_size)
    assert (sizes.encoder_layers, sizes.decoder_layers) == (
        shape.encoder_layers,
        shape.decoder_layers,
    )
    assert set(sharded.tensors) == set(converted.tensors)
    for tensor in sharded.tensors:
        np.testing.assert_array_equal(sharded.tensors[tensor], converted.tensors[tensor])
    head = model.proj_out.weight.detach().numpy()
    np.testing.assert_array_equal(sharded.tensors["decoder.embedding.weight"], head)
    for checkpoint in (sharded, converted):
        assert_ids_are_openais(tokenizer_of(checkpoint), shape)


def assert_ids_are_openais(ours: WhisperTokenizer, shape: Shape) -> None:
    theirs = openai_tokenizer(bool(shape.languages), num_languages=shape.languages or 99)
    assert ours.is_multilingual == bool(shape.languages)
    for name in (
        *("eot", "sot", "sot_lm", "sot_prev", "transcribe", "translate"),
        *("no_speech", "no_timestamps", "timestamp_begin", "non_speech_tokens"),
    ):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.timestamp_end == theirs.timestamp_begin + 1501 == theirs.encoding.n_vocab
    if shape.languages:
        assert ours.language_tokens == tuple(sorted(theirs.all_language_tokens))
        assert len(ours.languages) == shape.languages
        assert ("yue" in ours.languages) == (shape.languages == 100)
    assert ours.encode(" naïve 東京") == theirs.encode(" naïve 東京")
    named = theirs.encoding.n_vocab
    added = list(shape.added.values())
    texts = [token for token, special in enumerate(added, start=named) if not special]
    assert [token for token in range(named, shape.vocab_size) if ours.is_text(token)] == texts
    rest = set(range(named, shape.vocab_size)) - set(texts)
    assert ours.unused_tokens == tuple(sorted(rest))
    for token in texts:
        assert ours.decode([token]) == list(shape.added)[token - named]
