"""A real model from an audio file to segments: fallback, streaming, languages."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import soxr
from numpy.typing import NDArray

from kit.marks import slow, soak
from kit.recordings import EXAMPLE, Load, Samples, told
from kit.scripted_whisper import scripted_translator
from kvcast.errors import UsageError
from kvcast.runtimes.base import EncoderDecoder
from kvcast.whisper.model import WhisperModel


@pytest.fixture
def model(load: Load) -> WhisperModel:
    return load("demo")


def sampled(model: WhisperModel, samples: Samples, **options: Any) -> list[Any]:
    """No text compresses so badly that it is accepted: all temperatures are tried."""
    return list(
        model.transcribe(
            samples,
            **{"temperature": (0.0, 0.8, 1.0), "compression_ratio_threshold": 0.01} | options,
        )
    )


def test_fallback_tries_every_temperature_with_reasons(model, recordings):
    segments = sampled(model, recordings["005"])
    assert segments
    for segment in segments:
        assert segment.temperature == 1.0
        assert len(segment.fallback) == 2
        for reason in segment.fallback:
            assert reason.startswith("compression_ratio ")
            assert " > 0.01" in reason


def test_an_array_of_another_rate_is_resampled_or_asked_about(model, recordings):
    fast = soxr.resample(recordings["example"][:64_000], 16_000, 48_000)
    taken = model.transcribe(fast, temperature=0.0)
    assert list(taken) == []
    [notice] = taken.notices
    assert "pass sampling_rate for another rate" in notice
    given = model.transcribe(fast, temperature=0.0, sampling_rate=48_000)
    assert "John Dashwood" in "".join(segment.text for segment in given)
    assert given.notices == ()
    silence = model.transcribe(0 * fast, temperature=0.0)
    assert list(silence) == []
    assert "is silent" in " ".join(silence.notices)
    assert len(silence.notices) == 1


@pytest.mark.parametrize("options", [{"best_of": 1}, slow({"best_of": 5})], ids=str)
def test_one_seed_gives_one_transcript(options, model, recordings):
    first = sampled(model, recordings["005"], seed=7, **options)
    assert sampled(model, recordings["005"], seed=7, **options) == first
    assert sampled(model, recordings["005"], seed=8, **options) != first


@pytest.mark.slow
def test_more_samples_are_likelier(model, recordings):
    def likelihood(best_of: int) -> float:
        options: dict[str, Any] = {"temperature": 1.0, "best_of": best_of}
        transcripts = [
            sampled(model, recordings["example"], seed=seed, **options) for seed in range(3)
        ]
        return sum(segments[0].avg_logprob for segments in transcripts)

    assert likelihood(8) > likelihood(1)


@dataclass
class CountingRuntime:
    """The model's own runtime, which counts what it encodes."""

    runtime: EncoderDecoder
    encoded: int = 0

    def encode(self, cache: Any, slots: Sequence[int], *source: NDArray[Any]) -> Any:
        self.encoded += 1
        return self.runtime.encode(cache, slots, *source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtime, name)


def test_segments_come_before_later_windows_are_decoded(model, recordings):
    runtime = CountingRuntime(model.runtime)
    counted = WhisperModel(runtime, model.tokenizer, model.dimensions)
    segments = counted.transcribe(recordings["spoken"], temperature=0.0)
    assert runtime.encoded == 0
    first = next(segments)
    assert runtime.encoded == 1
    later = next(segment for segment in segments if segment.seek > first.seek)
    assert runtime.encoded == 2
    assert later.start >= first.end
    segments.close()
    assert runtime.encoded == 2


def test_a_transcription_is_text_subtitles_and_files_and_begins_anew(model, recordings, tmp_path):
    transcription = model.transcribe(recordings["example"], temperature=0.0, clip_end=4.0)
    assert (
        repr(transcription)
        == "<Transcription: nothing decoded yet; iterate over it, or take its text>"
    )
    text = transcription.text
    assert text
    assert text == "".join(segment.text for segment in transcription).strip()
    assert list(transcription) == list(transcription.segments)
    assert repr(transcription) == f"<Transcription: {len(transcription.segments)} segments>"
    assert transcription.to_srt().startswith("1\n00:00:00,000 --> ")
    assert transcription.to_vtt().startswith("WEBVTT\n")
    assert transcription.to_dict()["text"] == text
    for name in ("talk.srt", "talk.JSON", "talk.txt"):
        transcription.save(tmp_path / name)
    assert (tmp_path / "talk.srt").read_text() == transcription.to_srt()
    assert json.loads((tmp_path / "talk.JSON").read_text()) == transcription.to_dict()
    assert "".join((tmp_path / "talk.txt").read_text().split()) == "".join(text.split())
    with pytest.raises(UsageError, match=r"talk.docx has none of these extensions.*\.srt"):
        transcription.save(tmp_path / "talk.docx")
    with pytest.raises(TypeError, match="unknown"):
        transcription.to_srt(unknown=1)
    assert repr(model) == "<WhisperModel: Whisper, English, NativeEncoderDecoder>"


def test_a_path_and_its_samples_give_the_same(model, recordings):
    given = {"temperature": 0.0, "clip_end": 4.0}
    by_path = list(model.transcribe(EXAMPLE, **given))
    assert by_path == list(model.transcribe(recordings["example"], **given))


def test_a_multilingual_model_detects_the_language_once(recordings):
    scripted = scripted_translator({"transcribe": " hallo"})
    assert scripted.is_multilingual
    assert len(scripted.languages) == 99
    runtime = CountingRuntime(scripted.runtime)
    counted = WhisperModel(runtime, scripted.tokenizer, scripted.dimensions)
    transcription = counted.transcribe(recordings["two windows"], clip_end=0.02, temperature=0.0)
    assert transcription.language == "de"
    assert runtime.encoded == 1
    list(transcription)
    assert runtime.encoded == 2


@pytest.mark.parametrize(("runtime", "quantize"), [("native", "int8"), slow("onnx", "none")])
def test_recordings_in_a_batch_are_transcribed_as_alone(runtime, quantize, load, recordings):
    model = load("demo", runtime=runtime, quantize=quantize)
    several = [recordings[name] for name in ("005", "two windows", "004")]
    together = [
        list(segments) for segments in model.transcribe_all(several, batch=3, temperature=0.0)
    ]
    alone = [list(model.transcribe(recording, batch=1, temperature=0.0)) for recording in several]
    assert told(together) == told(alone)
    assert all(together)


@pytest.mark.parametrize(
    ("runtime", "options"),
    [
        slow("native", {}),
        slow("onnx", {"beam": 5}),
        soak("eager", {}),
        soak("onnx", {"timestamps": False}),
    ],
    ids=str,
)
def test_a_batch_transcribes_chunks_as_one_by_one(runtime, options, load, recordings):
    model = load("demo", runtime=runtime, quantize="none")
    options = {"language": "en", "seed": 3, **options}
    one_by_one, together = (
        list(model.transcribe(recordings["beginning"], batch=batch, **options)) for batch in (1, 2)
    )
    assert told([one_by_one]) == told([together])
    assert len({segment.seek for segment in together}) == 3
