"""Canary, Cohere's Transcribe and Parakeet: texts, words with times, options, engines, the server.

Weights are random: texts say nothing, but they are those that transformers writes.
"""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
import torch

import kvcast
from kit.random_conformers import BLANK, END, KINDS, MELS, random_conformer, save_conformer
from kvcast.audio.mel import normalised_log_mel
from kvcast.cli import main
from kvcast.errors import UsageError
from kvcast.speech.conformer import TransducerRequest
from kvcast.speech.params import TranscribeParams
from kvcast.speech.recognition import LogMelFeatures, SpeechContext
from server.serving import serving

RATE = 16_000
ATTENDING, TRANSDUCING = ("canary", "cohere_asr"), ("parakeet_ctc", "parakeet_rnnt", "parakeet_tdt")
SPOKEN: dict[str, Any] = {"language": "de"}


@pytest.fixture(scope="module", params=[*ATTENDING, *TRANSDUCING])
def kind(request: Any) -> str:
    return request.param


@pytest.fixture(scope="module")
def theirs(kind: str) -> Any:
    return random_conformer(kind, seed=3)


@pytest.fixture(scope="module")
def folder(theirs: Any, tmp_path_factory: Any) -> Path:
    return save_conformer(theirs, tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return kvcast.load(folder, runtime="native", quantize="none", threads=1)


def sound(seconds: float, seed: int = 0) -> Any:
    samples = np.random.default_rng(seed).normal(0, 0.1, round(RATE * seconds))
    return samples.astype(np.float32)


def told(kind: str) -> dict[str, Any]:
    return SPOKEN if kind in ATTENDING else {}


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
def test_tokens_are_those_that_transformers_generates(kind: str, theirs: Any, model: Any):
    clip = sound(1.3)
    noise = 1e-5 if kind == "cohere_asr" else 0.0
    features = torch.from_numpy(normalised_log_mel(clip, MELS, noise))[None]
    segments = list(model.transcribe(clip, **told(kind)))
    tokens = [token for segment in segments for token in segment.tokens]
    if kind in ATTENDING:
        before = model.recognition.prompt(0, SpeechContext(**SPOKEN))
        prompt = torch.tensor([before])
        [sequence] = theirs.generate(features, decoder_input_ids=prompt, max_length=64).tolist()
        expected = sequence[len(before) :]
        expected = expected[: expected.index(END)] if END in expected else expected
    else:
        generated = theirs.generate(
            features, **({} if kind == "parakeet_ctc" else {"decoder_start_token_id": BLANK})
        )
        [sequence] = getattr(generated, "sequences", generated).tolist()
        if kind == "parakeet_ctc":
            sequence = [t for i, t in enumerate(sequence) if i == 0 or sequence[i - 1] != t]
        expected = [token for token in sequence if token != BLANK]
    assert tokens == expected
    assert tokens


def test_a_batch_and_an_engine_give_what_each_gives_alone(kind: str, model: Any):
    clips = [sound(1.3), sound(0.4, 1), sound(2.0, 2)]
    alone = [list(model.transcribe(clip, **told(kind))) for clip in clips]
    together = model.transcribe_all(clips, batch=2, **told(kind))
    assert [list(each) for each in together] == alone
    with kvcast.Engine(model, rows=2) as engine:
        jobs = [engine.submit(clip, **told(kind)) for clip in clips]
        assert [list(job.result().segments) for job in jobs] == alone


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
def test_a_position_has_at_most_so_many_tokens(durations: tuple[int, ...]):
    """As in NeMo's greedy search; transformers' never leaves one whose tokens span none."""
    sizes = SimpleNamespace(
        tokens=3, blank=2, prediction_layers=1, durations=durations, most_symbols=4
    )
    request = TransducerRequest(LogMelFeatures(np.zeros((5, 8), np.float32), 5), sizes)
    logits = np.array([[1, 0, 0, *(3.0 - each for each in durations)]], np.float32)
    while request.advance(logits).rows:
        assert len(request.emissions) < 20
    assert [each.first for each in request.emissions] == sorted([*range(5)] * 4)[:-1]


@pytest.mark.parametrize("kind", TRANSDUCING, indirect=True)
def test_words_have_the_times_of_their_tokens(model: Any):
    segments = list(model.transcribe(sound(2.0), word_timestamps=True))
    words = [word for segment in segments for word in segment.words]
    assert all(0 <= word.start <= word.end <= 2.0 and 0 < word.probability <= 1 for word in words)
    assert all(before.start <= word.start for before, word in pairwise(words))
    assert "".join(segment.text for segment in segments) == "".join(word.word for word in words)
    plain = list(model.transcribe(sound(2.0)))
    assert [(s.start, s.end, s.text) for s in plain] == [(s.start, s.end, s.text) for s in segments]
    assert all(segment.words is None for segment in plain)


REFUSED = [
    ("canary", {"word_timestamps": True}, "no word times"),
    ("canary", {"language": "la"}, "does not know Latin"),
    ("cohere_asr", {}, "cannot detect the language"),
    ("cohere_asr", {"language": "de", "task": "translate"}, "does not translate"),
    ("parakeet_tdt", {"beam": 3}, "beam is not supported"),
    ("parakeet_tdt", {"temperature": 0.5}, "temperature must be 0"),
    ("parakeet_tdt", {"task": "translate"}, "does not translate"),
    ("parakeet_ctc", {"max_new_tokens": 4}, "max_new_tokens is not supported"),
]


@pytest.mark.parametrize(("kind", "options", "reason"), REFUSED, indirect=["kind"])
def test_what_a_model_does_not_take_is_refused(model: Any, options: Any, reason: str):
    with pytest.raises(UsageError, match=reason) as error:
        model.transcribe(sound(0.5), **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["canary"], indirect=True)
def test_a_canary_translates_and_hears_english_unless_it_is_told(model: Any):
    def prompts(**options: Any) -> list[int]:
        chunks = model.chunk_options(TranscribeParams(**options))
        return model.recognition.prompt(5, chunks.context)[-6:-4]

    english, german = prompts()[0], prompts(language="de")[0]
    assert english != german
    assert prompts() == [english, english]
    assert prompts(language="de") == [german, german]
    assert prompts(language="de", task="translate") == [german, english]


@pytest.mark.parametrize("kind", ["canary", "parakeet_tdt"], indirect=True)
def test_int8_writes_subtitles_of_a_folder_and_answers_the_server(
    model: Any, folder: Path, tmp_path: Path, capsys: Any
):
    sounds, texts = tmp_path / "sounds", tmp_path / "texts"
    sounds.mkdir()
    for name, seconds in (("a.wav", 1.0), ("b.wav", 2.0)):
        soundfile.write(sounds / name, sound(seconds), RATE)
    given = ["--model", str(folder), "--runtime", "native", "--quantize", "int8"]
    assert main(["transcribe", str(sounds), "-o", str(texts), "-f", "srt", *given]) == 0
    assert {path.name for path in texts.glob("*.srt")} == {"a.srt", "b.srt"}
    assert "-->" in (texts / "b.srt").read_text()
    capsys.readouterr()
    with serving({"asr": model}) as server:
        response = httpx.post(
            f"{server.url}/v1/audio/transcriptions",
            files={"file": ("a.wav", (sounds / "a.wav").read_bytes())},
            data={"model": "asr", "temperature": "0", "response_format": "verbose_json"},
            timeout=60,
        )
    assert response.status_code == 200, response.text
    expected = "".join(segment.text for segment in model.transcribe(sounds / "a.wav"))
    assert response.json()["text"] == expected.strip()


def test_every_kind_of_model_is_tried():
    assert {kind.split("-")[0] for kind in KINDS} == {*ATTENDING, *TRANSDUCING}
