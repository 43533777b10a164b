"""Seeking, skipping, prompting, falling back and words are those of openai-whisper's `transcribe`.

Both run over the same scripted results and scripted times of tokens, whatever a model might say, so
every call of the decoder can be compared: which frames, which prompt, which options.
"""

import importlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import whisper.decoding as openai
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import kvcast.whisper.model
from kit.openai_whisper import ending_with_audio, is_ordered, openai_tokenizer, renamed_options
from kit.scripted_runtimes import at_once
from kit.scripted_whisper import (
    NumberedWindows,
    ScriptedDecoder,
    ScriptedResult,
    ScriptedWhisper,
    frames,
    scripted_model,
    stands_still,
    tokenizer,
)
from kvcast.transcripts.segments import Segment
from kvcast.whisper.word_timestamps import TokenTimes

openai_transcribe = importlib.import_module("whisper.transcribe")
timing = importlib.import_module("whisper.timing")

BEGIN = 50363
SPACE = 220
MOST_WINDOWS = 60
"""Words may lead on by little more than nothing; such scripts are not followed to their ends."""


class UnfitError(Exception):
    """A script that is not to be compared."""


def scripted_times(tokens: Sequence[int], encoded: int) -> TokenTimes:
    """Times that follow from the tokens alone: some crowded, some improbable."""
    rng = np.random.default_rng([encoded, *tokens])
    first, last = sorted(rng.integers(0, encoded, 2)) if encoded > 1 else (0, 0)
    begins_n = np.sort(rng.integers(first, last + 1, len(tokens) + 1))
    certain = rng.choice([0.05, 0.9])
    return TokenTimes(begins_n, np.full(len(tokens), certain, np.float32), begins_n[:-1])


def their_alignment(
    model: Any, tokenizer: Any, text_tokens: list[int], mel: Any, num_frames: int
) -> list[Any]:
    """In the place of `find_alignment`."""
    if not text_tokens:
        return []
    times = scripted_times(text_tokens, num_frames // 2)
    words, word_tokens = tokenizer.split_to_word_tokens([*text_tokens, tokenizer.eot])
    edges = np.pad(np.cumsum([len(tokens) for tokens in word_tokens[:-1]]), (1, 0))
    seconds = times.begins_n[edges] / 50
    return [
        timing.WordTiming(word, tokens, start, end, float(times.probabilities_n[edge:after].mean()))
        for word, tokens, (start, end), (edge, after) in zip(
            words, word_tokens, pairwise(seconds), pairwise(edges), strict=False
        )
    ]


class TimingDecoder(ScriptedDecoder):
    """Also says when tokens begin."""

    def decode(self, *given: Any, **options: Any) -> Any:
        if len(self.calls) > MOST_WINDOWS:
            raise UnfitError
        return super().decode(*given, **options)

    def align(self, window: Any, text: Sequence[int], *, frames: int, **_: Any) -> Any:
        if len(self.calls) > MOST_WINDOWS:
            raise UnfitError
        return at_once(scripted_times(text, frames).padded(len(text)))


class PatientWhisper(ScriptedWhisper):
    """Follows no script that does not end."""

    def decode(self, mel: torch.Tensor, options: openai.DecodingOptions) -> openai.DecodingResult:
        if len(self.calls) > MOST_WINDOWS:
            raise UnfitError
        return super().decode(mel, options)


def both(script: list[ScriptedResult], seconds: float, **options: Any) -> list[Segment]:
    """Transcribe with both, compare everything, and return the segments."""
    content_frames, timed = round(100 * seconds), options.get("word_timestamps", False)
    ordered = []

    def watched(*, segments: list[dict[str, Any]], **given: Any) -> None:
        timing.add_word_timestamps(segments=segments, **given)
        ordered.append(is_ordered(segments))

    with pytest.MonkeyPatch.context() as patch:
        mel = torch.from_numpy(frames(content_frames))
        padded = torch.nn.functional.pad(mel, (0, 3000))
        patch.setattr(openai_transcribe, "log_mel_spectrogram", lambda *_, **__: padded)
        patch.setattr(openai_transcribe, "add_word_timestamps", watched)
        patch.setattr(timing, "find_alignment", their_alignment)
        patch.setattr(
            kvcast.whisper.model, "open_windows", lambda *_: NumberedWindows(content_frames)
        )
        openai_tokenizer(False)
        their_model = PatientWhisper(script) if timed else ScriptedWhisper(script)
        given = renamed_options({"best_of": 5, **options})
        theirs = openai_transcribe.transcribe(their_model, b"", fp16=False, **given)
        if not all(ordered):
            raise UnfitError  # where their words overlap, ours differ, and so may what follows
        our_model = scripted_model(script)
        if timed:
            our_model.scripted = TimingDecoder(script)
        ours = list(our_model.transcribe(b"", **options))

    assert [shared(call) for call in our_model.scripted.calls] == [
        shared_of_openai(call) for call in their_model.calls
    ]
    spoken = ending_with_audio(theirs["segments"], content_frames, given["clip_timestamps"])
    for segment, expected in zip(ours, spoken, strict=True):
        assert list(segment.tokens) == expected["tokens"]
        for name in ("seek", "text", "temperature", *QUALITIES):
            assert getattr(segment, name) == expected[name]
        others = zip(segment.words or (), expected.get("words", ()), strict=True)
        for part, other in ((segment, expected), *others):
            near = {"abs": 0.0051 if timed else 0, "rel": 0}
            assert part.start == pytest.approx(other["start"], **near)
            assert part.end == pytest.approx(other["end"], **near)
        if timed:
            assert [(word.word, word.probability) for word in segment.words] == [
                (word["word"], pytest.approx(word["probability"])) for word in expected["words"]
            ]
    assert [segment.id for segment in ours] == list(range(len(ours)))
    return ours


QUALITIES = ("avg_logprob", "compression_ratio", "no_speech_prob")
ALIKE = (
    *("task", "language", "temperature", "patience"),
    *("length_penalty", "suppress_tokens", "max_initial_timestamp"),
)


def shared(call: Any) -> tuple[Any, ...]:
    where, options, prompt = call
    alike = [getattr(options, name) for name in ALIKE]
    ours = options.beam, options.best_of, options.max_new_tokens, options.timestamps
    return where, prompt, *alike, *ours


def shared_of_openai(call: Any) -> tuple[Any, ...]:
    where, options, prompt = call
    alike = [getattr(options, name) for name in ALIKE]
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


TEXT = st.sampled_from([220, 50, 314, 13, 11, 340, 262])
STAMP = st.sampled_from([0, 1, 50, 51, 700, 1400, 1500]).map(lambda position: BEGIN + position)
PAIRED_WORDS = st.lists(
    st.tuples(st.integers(0, 700), st.integers(1, 700), st.lists(TEXT, min_size=1, max_size=9)),
    min_size=1,
    max_size=4,
).map(
    lambda spoken: [
        token
        for start, length, text in spoken
        for token in (BEGIN + start, *text, BEGIN + start + length)
    ]
)
HEARD_WORDS = st.builds(
    ScriptedResult,
    tokens=(
        st.lists(TEXT | STAMP, max_size=8)
        | PAIRED_WORDS
        | st.tuples(PAIRED_WORDS, st.lists(TEXT, max_size=3)).map(lambda parts: parts[0] + parts[1])
    ).map(tuple),
    avg_logprob=st.sampled_from([-0.2, -1.5]),
    no_speech_prob=st.sampled_from([0.1, 0.1, 0.9]),
)


@given(
    script=st.lists(HEARD_WORDS, max_size=5),
    seconds=st.sampled_from([0.5, 4.0, 30.0, 61.5, 100.0]),
    threshold=st.none() | st.sampled_from([0.0, 0.5, 2.0]),
    condition=st.booleans(),
)
@settings(deadline=None, max_examples=80)
def test_words_whatever_a_model_says(script, seconds, threshold, condition):
    assume(not any(map(stands_still, script)))
    options = {"condition_on_previous_text": condition, "word_timestamps": True, "temperature": 0.0}
    try:
        both(script, seconds, **options, hallucination_silence_threshold=threshold)
    except UnfitError:
        assume(False)


def test_the_next_window_begins_where_the_last_word_ended():
    unfinished = ScriptedResult(tokens=(BEGIN, 314, 262, BEGIN + 300, BEGIN + 300, 50))
    first, *_ = both([unfinished], 40.0, word_timestamps=True, temperature=0.0)
    times = scripted_times((314, 262), 1500)
    assert first.end == first.words[-1].end <= times.begins_n[-1] / 50 + 0.01
