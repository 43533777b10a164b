"""A transcript of low average log-probability, as of a language the model lacks, has a notice."""

import json

import numpy as np
import pytest
import soundfile

import kvcast
from kit.recordings import EXAMPLE, GERMAN
from kvcast.cli import main
from kvcast.speech.plausibility import Plausibility
from kvcast.transcripts.segments import Segment

ADVICE = "is it the right model?"


def segment(avg_logprob: float, tokens: int) -> Segment:
    return Segment(
        id=0,
        seek=0,
        start=0.0,
        end=1.0,
        text=" a",
        tokens=tuple(range(tokens)),
        language="en",
        temperature=0.0,
        avg_logprob=avg_logprob,
        compression_ratio=1.0,
        no_speech_prob=0.0,
        fallback=(),
    )


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([], False),
        ([(-3.0, 0)], False),
        ([(-0.98, 10)], False),
        ([(-1.5, 10)], True),
        ([(-0.2, 90), (-3.0, 10)], False),  # one strange window among many
        ([(-0.2, 10), (-3.0, 90)], True),
        ([(float("nan"), 10)], False),
    ],
)
def test_the_mean_over_all_tokens_decides(parts: list[tuple[float, int]], told: bool):
    for advice in ADVICE, None:
        plausibility = Plausibility(advice)
        for logprob, tokens in parts:
            plausibility.add(segment(logprob, tokens))
        assert len(plausibility.notices) == (told and advice is not None)
        assert all(notice.endswith(ADVICE) for notice in plausibility.notices)


def test_german_is_told_of_a_model_that_knows_english_only(load, recordings):
    model = load("demo", runtime="native")
    with model.transcribe(recordings["german"][: 10 * 16_000], best_of=1) as transcription:
        next(transcription)
        assert transcription.notices == ()  # of a part of it nothing is said yet
        for _ in transcription:
            pass
        [notice] = transcription.notices
    assert notice.startswith("the text is improbable (avg_logprob -")
    assert "knows English only" in notice
    assert "demo-base or openai/whisper-base" in notice


def test_german_is_told_if_another_language_was_given(load, recordings):
    model = load("demo-base", runtime="native")
    german = recordings["german"][: 10 * 16_000]
    [notice] = model.transcribe(german, language="fi", best_of=1).transcript.notices
    assert "is 'fi' the language spoken? without language it is detected" in notice
    assert model.transcribe(german, language="de").transcript.notices == ()


@pytest.mark.parametrize("name", ["demo", "demo-base"])
def test_english_is_not_told_of(load, recordings, name):
    model = load(name, runtime="native")
    for recording in "example", "001", "005":
        assert model.transcribe(recordings[recording]).transcript.notices == ()


def test_the_command_tells_it_and_keeps_it_in_json(tmp_path, capsys):
    given = ["transcribe", str(GERMAN), "--model", "demo", "--clip-timestamps", "0,6"]
    given += ["--best-of", "1", "--json"]
    assert main(given) == 0
    printed = capsys.readouterr()
    [notice] = json.loads(printed.out)["notices"]
    assert f"kvcast: {GERMAN}: {notice}\n" in printed.err
    assert main([*given, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["transcribe", str(EXAMPLE), "--model", "demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notices"] == []


def test_sound_that_is_taken_for_no_speech_is_told_beside_a_text_and_silence_is_not():
    samples, rate = soundfile.read(EXAMPLE, dtype="float32")
    spoken = np.concatenate([samples[: 8 * rate], np.zeros(22 * rate, np.float32)])
    hiss = 0.05 * np.random.default_rng(0).standard_normal(20 * rate).astype(np.float32)
    model = kvcast.load("demo", threads=1)
    transcription = model.transcribe(np.concatenate([spoken, hiss]))
    assert "John Dashwood" in transcription.text
    [notice] = transcription.notices
    assert notice.startswith("from 30.00 s 20 s were taken for no speech: ")
    assert model.transcribe(np.concatenate([spoken, 0 * hiss])).transcript.notices == ()
