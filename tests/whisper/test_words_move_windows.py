"""With words, windows follow one another and made up text is skipped as in openai-whisper.

Both run over the same scripted results and the same scripted times of tokens.
"""

import importlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import whisper.decoding as openai
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import kvcast.speech.recordings
from kit.openai_whisper import ending_with_sound, openai_tokenizer
from kit.scripted_runtimes import at_once
from kit.scripted_whisper import (
    NumberedWindows,
    ScriptedDecoder,
    ScriptedResult,
    ScriptedWhisper,
    frames,
    scripted_model,
    stands_still,
)
from kvcast.transcripts.segments import Segment
from kvcast.whisper.word_timestamps import TokenTimes

openai_transcribe = importlib.import_module("whisper.transcribe")
timing = importlib.import_module("whisper.timing")

BEGIN = 50363
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


def is_ordered(segments: list[dict[str, Any]]) -> bool:
    times = [t for s in segments for w in s["words"] for t in (w["start"], w["end"])]
    return times == sorted(times) and all(
        s["start"] <= s["words"][0]["start"] and s["words"][-1]["end"] <= s["end"]
        for s in segments
        if s["words"]
    )


def both(script: list[ScriptedResult], seconds: float, **options: Any) -> list[Segment]:
    """Transcribe with both, compare everything, and return the segments."""
    content_frames = round(100 * seconds)
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
            kvcast.speech.recordings, "open_windows", lambda *_: NumberedWindows(content_frames)
        )
        openai_tokenizer(False)
        their_model = PatientWhisper(script)
        given = {"word_timestamps": True, "temperature": 0.0, **options}
        theirs = openai_transcribe.transcribe(their_model, b"", fp16=False, **given)
        if not all(ordered):
            raise UnfitError  # where their words overlap, ours differ, and so may what follows
        our_model = scripted_model(script)
        our_model.scripted = TimingDecoder(script)
        ours = list(our_model.transcribe(b"", **given))

    our_calls, their_calls = (
        [(where, prompt) for where, _, prompt in model.calls]
        for model in (our_model.scripted, their_model)
    )
    assert our_calls == their_calls
    clips = given.get("clip_timestamps", (0.0,))
    spoken = ending_with_sound(theirs["segments"], content_frames, clips)
    for segment, expected in zip(ours, spoken, strict=True):
        assert segment.seek == expected["seek"]
        assert list(segment.tokens) == expected["tokens"]
        assert segment.text == expected["text"]
        assert segment.start == pytest.approx(expected["start"], abs=0.0051)
        assert segment.end == pytest.approx(expected["end"], abs=0.0051)
        assert [(word.word, word.probability) for word in segment.words] == [
            (word["word"], pytest.approx(word["probability"])) for word in expected["words"]
        ]
        for word, other in zip(segment.words, expected["words"], strict=True):
            assert word.start == pytest.approx(other["start"], abs=0.0051)
            assert word.end == pytest.approx(other["end"], abs=0.0051)
    return ours


TEXT = st.sampled_from([220, 50, 314, 13, 11, 340, 262])
STAMP = st.sampled_from([0, 1, 50, 51, 700, 1400, 1500]).map(lambda position: BEGIN + position)
PAIRED = st.lists(
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
HEARD = st.builds(
    ScriptedResult,
    tokens=(
        st.lists(TEXT | STAMP, max_size=8)
        | PAIRED
        | st.tuples(PAIRED, st.lists(TEXT, max_size=3)).map(lambda parts: parts[0] + parts[1])
    ).map(tuple),
    avg_logprob=st.sampled_from([-0.2, -1.5]),
    no_speech_prob=st.sampled_from([0.1, 0.1, 0.9]),
)


@given(
    script=st.lists(HEARD, max_size=5),
    seconds=st.sampled_from([0.5, 4.0, 30.0, 61.5, 100.0]),
    threshold=st.none() | st.sampled_from([0.0, 0.5, 2.0]),
    condition=st.booleans(),
)
@settings(deadline=None, max_examples=80)
def test_whatever_a_model_says(script, seconds, threshold, condition):
    assume(not any(map(stands_still, script)))
    options = {"condition_on_previous_text": condition}
    try:
        both(script, seconds, **options, hallucination_silence_threshold=threshold)
    except UnfitError:
        assume(False)


def test_the_next_window_begins_where_the_last_word_ended():
    unfinished = ScriptedResult(tokens=(BEGIN, 314, 262, BEGIN + 300, BEGIN + 300, 50))
    first, *_ = both([unfinished], 40.0)
    times = scripted_times((314, 262), 1500)
    assert first.end == first.words[-1].end <= times.begins_n[-1] / 50 + 0.01
