"""transformers' Whisper as a peer: from the same weights and sound it writes kvcast's text."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import kvcast
from kit.models import own_cache
from kit.published_shapes import HEAD_DIM, PUBLISHED, Shape, hugging_face, random_whisper
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast_bench.models import SpeechModel
from kvcast_bench.peers.table import SPEECH

SMALL = replace(PUBLISHED["large-v3-turbo"], encoder_layers=1, decoder_layers=1, heads=4)
TEXT = " The family had long been settled in the south of England"


def brief_whisper(shape: Shape) -> torch.nn.Module:
    """A random model whose positions say which word comes next, and when the text ends.

    What it writes does not hang on rounding, so two libraries write the same.
    """
    model = random_whisper(shape)
    tokenizer = WhisperTokenizer(shape.tokenizer_json, shape.vocab_size)
    written = [*tokenizer.encode(TEXT), tokenizer.eot]
    generator = torch.Generator().manual_seed(1)
    signs = torch.randint(2, (len(written), shape.heads * HEAD_DIM // 2), generator=generator)
    # Norms take the mean away, so there is none.
    directions = torch.cat([signs, 1 - signs], dim=1) * 2.0 - 1
    decoder = model.model.decoder
    with torch.no_grad():
        decoder.layer_norm.weight.fill_(1)
        decoder.layer_norm.bias.zero_()
        decoder.embed_tokens.weight.zero_()
        decoder.embed_tokens.weight[written] = directions
        decoder.embed_positions.weight[: len(written)] = 50 * directions
        decoder.embed_positions.weight[len(written) :] = 50 * directions[-1]
    return model


@pytest.mark.parametrize("languages", [0, 100])
def test_transformers_writes_kvcasts_text(
    languages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(monkeypatch, tmp_path / "cache")
    shape = replace(SMALL, languages=languages)
    folder = hugging_face(brief_whisper(shape), shape, tmp_path / "model")
    # In bf16, as in its row, sums differ.
    peer = SPEECH["transformers"](
        model=SpeechModel(folder=str(folder), threads=1),
        precision="fp32",
        dtype="fp32",
        kind="float32",
    )
    peer.load()
    ours = kvcast.load(folder, runtime="eager", quantize="none", threads=1)
    assert ours.task == "transcribe"
    rng = np.random.default_rng(0)
    for seconds, beam in (2, 1), (2, 2), (35, 1):
        samples = rng.normal(0, 0.1, seconds * 16000).astype(np.float32)
        said = ours.transcribe(
            samples,
            language="en",
            beam=beam,
            temperature=0.0,
            condition_on_previous_text=False,
            compression_ratio_threshold=None,
            logprob_threshold=None,
            no_speech_threshold=None,
        )
        texts = [segment.text for segment in said]
        assert peer.transcribe(samples, "en", beam) == "".join(texts)
        assert len(texts) == -(-seconds // 30)
        assert all(TEXT.endswith(text) and len(text.split()) > 5 for text in texts)
