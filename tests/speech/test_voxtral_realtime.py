"""Live text of a model whose text advances with its sound is that of each whole utterance."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.models.voxtral_realtime.feature_extraction_voxtral_realtime import (
    VoxtralRealtimeFeatureExtractor,
)

import kvcast
from kit.audio_decoders import VOCAB, random_voxtral_realtime, save_audio_decoder
from kvcast.errors import KvcastError, UsageError
from kvcast.speech.params import LiveParams
from kvcast.speech.recognition import SpeechContext

RATE, PIECE = 16_000, 1280


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_audio_decoder(random_voxtral_realtime(), tmp_path_factory.mktemp("realtime"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return kvcast.load(folder, runtime="native", quantize="none", threads=1)


def noise(seconds: float, seed: int) -> Any:
    samples = np.random.default_rng(seed).normal(0, 0.1, round(RATE * seconds))
    return samples.astype(np.float32)


def listener(blocks_nb: Any) -> Any:
    """Speech is what is loud."""
    return (np.abs(blocks_nb).mean(axis=1) > 0.01).astype(np.float32)


def test_pieces_of_any_length_give_the_text_of_the_whole(model: Any):
    """Both rings turn over: 200 positions of sound against a window of 50, 95 tokens against 30."""
    window = model.streaming_window(LiveParams())
    begin = 0
    for i, (seconds, length) in enumerate(((4.03, 511), (0.7, 20_000), (2.0, PIECE))):
        samples, words, early = noise(seconds, i), [], 0
        assert window.room == 375 * PIECE
        for first in range(0, len(samples), length):
            window.append(samples[first : first + length])
            words += window.transcribe()
            early = len(words)
        words += window.finish_utterance(window.end)
        window.keep_last(0)
        [whole] = model.transcribe(samples)
        assert [token for word in words for token in word.tokens] == list(whole.tokens)
        assert "".join(word.text for word in words).split() == whole.text.split()
        assert early > 0 or seconds < 1
        assert words[0].started == begin / RATE
        ends = [word.spoken for word in words]
        assert ends == sorted(ends)
        assert ends[-1] <= window.end / RATE
        begin = window.end


def test_a_full_window_makes_room(model: Any):
    window = model.streaming_window(LiveParams())
    window.append(noise(1.0, 0))
    assert window.room == 375 * PIECE - RATE
    words = [*window.transcribe(), *window.make_room()]
    [whole] = model.transcribe(noise(1.0, 0))
    assert [token for word in words for token in word.tokens] == list(whole.tokens)
    assert (window.room, window.start) == (375 * PIECE, RATE)


def test_utterances_end_with_pauses(model: Any):
    quiet = np.zeros(RATE, np.float32)
    sound = np.concatenate([quiet, noise(1.5, 1), quiet, noise(1.0, 2), quiet])
    live = model.live(listener, pause=0.3, language="fr")
    updates = [
        update for at in range(0, len(sound), 700) for update in live.feed(sound[at : at + 700])
    ]
    updates += live.finish()
    lines = [update.segment for update in updates if update.segment]
    assert len(lines) == 2
    assert "".join(update.settled for update in updates) == "".join(line.text for line in lines)
    assert all(line.text.strip() for line in lines)
    assert 0.4 < lines[0].start < 1.1
    assert 2.9 < lines[1].start < 3.6
    assert live.language == "fr"


def test_options_and_runtimes_without_use_are_refused(folder: Path, model: Any):
    with pytest.raises(UsageError, match="agreement"):
        model.live(listener, agreement=3)
    eager = kvcast.load(folder, runtime="eager")
    with pytest.raises(UsageError, match="runtime native"):
        eager.live(listener)


SPECIAL = (
    "<unk>",
    "<s>",
    "</s>",
    "[AUDIO]",
    "[BEGIN_AUDIO]",
    "[STREAMING_PAD]",
    "[STREAMING_WORD]",
)
FORMAT = ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]")
FORMAT += ("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[PREFIX]", "[SUFFIX]", "[SYSTEM_PROMPT]")
FORMAT += ("[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "[ARGS]")
FORMAT += ("[CALL_ID]", "[THINK]", "[/THINK]", "[TRANSCRIBE]", "[MIDDLE]", "<pad>")


def tekken(**audio: Any) -> dict[str, Any]:
    """A tokenizer of all the model's tokens, bytes and pairs, with what it tells of sound."""
    special = [*SPECIAL, *FORMAT]
    pairs = [bytes([97 + i // 26, 97 + i % 26]) for i in range(VOCAB - 256 - len(special))]
    texts = [*(bytes([i]) for i in range(256)), *pairs]
    spectrogram = {"num_mel_bins": 32, "window_size": 400, "hop_length": 160}
    return {
        "type": "Tekken",
        "config": {
            "pattern": r" ?\p{L}+|[^\p{L}]",
            "num_vocab_tokens": len(texts),
            "default_vocab_size": VOCAB,
            "default_num_special_tokens": len(special),
            "version": "v13",
        },
        "vocab": [
            {"rank": i, "token_bytes": base64.b64encode(text).decode(), "token_str": None}
            for i, text in enumerate(texts)
        ],
        "special_tokens": [
            {"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(special)
        ],
        "audio": {
            "sampling_rate": RATE,
            "frame_rate": 12.5,
            "audio_encoding_config": spectrogram,
            "transcription_delay_ms": 480,
            "streaming_look_ahead_ms": 2.5,
            "streaming_look_back_ms": 52.5,
            "streaming_n_left_pad_tokens": 32,
            "transcription_format": "streaming",
            **audio,
        },
    }


def test_prompt_and_silence_are_those_of_mistrals_library(folder: Path, tmp_path: Path):
    pytest.importorskip("mistral_common")
    from mistral_common.protocol.transcription.request import StreamingMode, TranscriptionRequest
    from mistral_common.tokens.tokenizers.audio import Audio
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    own = shutil.copytree(folder, tmp_path / "own")
    (own / "tokenizer.json").unlink()
    (own / "tekken.json").write_text(json.dumps(tekken()))
    model = kvcast.load(own, runtime="native", quantize="none", threads=1)
    sound = Audio(audio_array=noise(1.27, 0), sampling_rate=RATE, format="wav")
    request = TranscriptionRequest(
        audio={"data": sound.to_base64("wav"), "format": "wav"},
        streaming=StreamingMode.OFFLINE,
        language=None,
    )
    theirs = MistralTokenizer.from_file(own / "tekken.json").encode_transcription(request)
    [padded] = [audio.audio_array.astype(np.float32) for audio in theirs.audios]
    given = model.recognition.input(padded[32 * PIECE :][: round(1.27 * RATE)])
    assert model.recognition.prompt(given.positions, SpeechContext()) == theirs.tokens
    extractor = VoxtralRealtimeFeatureExtractor(feature_size=32)
    [features] = extractor(padded, sampling_rate=RATE, return_tensors="np")["input_features"]
    np.testing.assert_allclose(given.features_tm, features.T, atol=2e-6)
    assert given.positions == len(padded) // PIECE
    [segment] = model.transcribe(noise(1.27, 0))
    assert len(segment.tokens) == given.positions - len(theirs.tokens)


def test_another_delay_than_the_models_is_one_line(folder: Path, tmp_path: Path):
    own = shutil.copytree(folder, tmp_path / "own")
    (own / "tekken.json").write_text(json.dumps(tekken(transcription_delay_ms=960)))
    with pytest.raises(KvcastError, match="transcription_delay_ms must be 480, not 960") as error:
        kvcast.load(own, runtime="native")
    assert "\n" not in str(error.value)
