"""Seeking, skipping, prompting and falling back are those of openai-whisper's `transcribe`.

Both run over the same scripted results, whatever a model might say, so every call of the decoder
can be compared: which frames, which prompt, which options.
"""

import importlib
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import kvcast.speech.recordings
from kit.openai_whisper import ending_with_sound, openai_tokenizer
from kit.scripted_whisper import (
    NumberedWindows,
    ScriptedResult,
    ScriptedWhisper,
    frames,
    scripted_model,
    stands_still,
    tokenizer,
)
from kvcast.transcripts.segments import Segment

openai_transcribe = importlib.import_module("whisper.transcribe")

BEGIN = 50363
SPACE = 220


def both(script: list[ScriptedResult], seconds: float, **options: Any) -> list[Segment]:
    """Transcribe with both, compare everything, and return the segments."""
    content_frames = round(100 * seconds)
    with pytest.MonkeyPatch.context() as patch:
        mel = torch.from_numpy(frames(content_frames))
        padded = torch.nn.functional.pad(mel, (0, 3000))
        patch.setattr(openai_transcribe, "log_mel_spectrogram", lambda *_, **__: padded)
        patch.setattr(
            kvcast.speech.recordings, "open_windows", lambda *_: NumberedWindows(content_frames)
        )
        openai_tokenizer(False)
        their_model = ScriptedWhisper(script)
        given = renamed(options)
        theirs = openai_transcribe.transcribe(their_model, b"", fp16=False, **given)
        our_model = scripted_model(script)
        ours = list(our_model.transcribe(b"", **options))

    assert [shared(call) for call in our_model.scripted.calls] == [
        shared_of_openai(call) for call in their_model.calls
    ]
    clips = given["clip_timestamps"]
    spoken = ending_with_sound(theirs["segments"], content_frames, clips)
    for segment, expected in zip(ours, spoken, strict=True):
        assert list(segment.tokens) == expected["tokens"]
        for name in (
            *("seek", "start", "end", "text", "temperature"),
            *("avg_logprob", "compression_ratio", "no_speech_prob"),
        ):
            assert getattr(segment, name) == expected[name]
    assert [segment.id for segment in ours] == list(range(len(ours)))
    return ours


def renamed(options: dict[str, Any]) -> dict[str, Any]:
    theirs = {"best_of": 5, **options}
    start, end = theirs.pop("clip_start", 0.0), theirs.pop("clip_end", None)
    theirs.setdefault("clip_timestamps", [start] if end is None else [start, end])
    theirs["without_timestamps"] = not theirs.pop("timestamps", True)
    theirs["sample_len"] = theirs.pop("max_new_tokens", None)
    theirs["beam_size"] = theirs.pop("beam", None)
    return theirs


ALIKE = ("task", "language", "temperature", "patience", "length_penalty", "suppress_tokens")


def shared(call: Any) -> tuple[Any, ...]:
    where, options, prompt = call
    alike = [getattr(options, name) for name in (*ALIKE, "max_initial_timestamp")]
    ours = options.beam, options.best_of, options.max_new_tokens, options.timestamps
    return where, prompt, *alike, *ours


def shared_of_openai(call: Any) -> tuple[Any, ...]:
    where, options, prompt = call
    alike = [getattr(options, name) for name in (*ALIKE, "max_initial_timestamp")]
    beam, best_of = options.beam_size or 1, options.best_of or 1
    return where, prompt, *alike, beam, best_of, options.sample_len, not options.without_timestamps


TOKEN = st.one_of(
    st.sampled_from([SPACE, 50, 51, 314]),
    st.sampled_from([0, 1, 50, 51, 700, 1400, 1500]).map(lambda position: BEGIN + position),
)
PAIRED = st.lists(
    st.tuples(st.integers(0, 700), st.integers(0, 700), st.sampled_from([SPACE, 50, 314]))
).map(
    lambda spoken: [
        token for start, end, text in spoken for token in (BEGIN + start, text, BEGIN + start + end)
    ]
)
HEARD = st.builds(
    ScriptedResult,
    tokens=(st.lists(TOKEN, max_size=8) | PAIRED).map(tuple),
    avg_logprob=st.sampled_from([-0.2, -1.0, -1.5]),
    compression_ratio=st.sampled_from([1.0, 2.4, 3.1]),
    no_speech_prob=st.sampled_from([0.1, 0.6, 0.9]),
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 0.7, (0.0, 0.4, 0.8), (0.2, 1.0), (0.0, 0.5)]),
        "condition_on_previous_text": st.booleans(),
        "initial_prompt": st.sampled_from(["", "Elinor, Marianne", " many words " * 120]),
        "no_speech_threshold": st.none() | st.sampled_from([0.0, 0.6, 1.0]),
        "logprob_threshold": st.none() | st.sampled_from([-1.0, 0.0]),
        "compression_ratio_threshold": st.none() | st.sampled_from([2.4, 0.5]),
        "clip_start": st.sampled_from([0.0, 1.234, 29.99, 70.0]),
        "timestamps": st.booleans(),
        "best_of": st.integers(1, 5),
        "max_new_tokens": st.integers(1, 224),
        "length_penalty": st.floats(0, 1),
        "suppress_tokens": st.sampled_from(["", "-1", "11,13"]),
    },
)


@given(
    script=st.lists(HEARD, max_size=8),
    seconds=st.sampled_from([0.01, 4.0, 29.99, 30.0, 30.01, 61.5, 100.0]),
    options=OPTIONS,
    beam=st.sampled_from([{}, {"beam": 3}, {"beam": 5, "patience": 2.0}]),
    clip=st.none() | st.floats(0.01, 80),
)
@settings(deadline=None, max_examples=150)
@example([ScriptedResult(tokens=())], 4.0, {}, {}, None)
def test_whatever_a_model_says(script, seconds, options, beam, clip):
    assume(not any(map(stands_still, script)))
    if clip is not None:
        options["clip_end"] = min(options.get("clip_start", 0.0) + clip, seconds)
        assume(options["clip_end"] > options.get("clip_start", 0.0))
    both(script, seconds, **options, **beam)


@given(
    script=st.lists(HEARD, max_size=8),
    seconds=st.sampled_from([29.99, 61.5, 100.0]),
    clips=st.lists(st.floats(0, 99), min_size=1, max_size=6, unique=True).map(sorted),
    options=OPTIONS,
)
def test_several_clips(script, seconds, clips, options):
    assume(not any(map(stands_still, script)))
    # Clips past the end are none here; of openai-whisper they are windows without sound.
    clips = [min(clip, seconds) for clip in clips if clip < seconds - 0.02]
    frames_of = [round(100 * clip) for clip in clips]
    assume(clips)
    assume(len(set(frames_of)) == len(frames_of))
    options.pop("clip_start", None)
    both(script, seconds, clip_timestamps=clips, **options)


def test_silence_is_skipped_and_the_prompt_survives_it():
    silence = ScriptedResult(tokens=(50,), no_speech_prob=0.9, avg_logprob=-2)
    segments = both([silence], 40.0, temperature=0.0, initial_prompt="Elinor")
    assert [s.seek for s in segments] == [3000]


def test_a_doubtful_window_does_not_prompt_the_next():
    doubtful = [ScriptedResult(tokens=(50,), compression_ratio=3.0)] * 2
    segments = both([*doubtful], 70.0, temperature=(0.0, 0.4, 0.8))
    assert [s.temperature for s in segments] == [0.8, 0.0, 0.0]


def test_special_tokens_are_no_text():
    eot = tokenizer().eot
    [segment] = both([ScriptedResult(tokens=(50, eot + 1, 51))], 4.0, temperature=0.0)
    assert segment.text == tokenizer().decode([50, 51])
