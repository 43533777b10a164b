"""Words get the times that openai-whisper's `add_word_timestamps` gives from the same attention."""

import importlib
import inspect
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.openai_whisper import openai_tokenizer, openai_tokenizer_json
from kvcast.runtimes.alignment import attention_by_token, dtw
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast.whisper.word_timestamps import (
    Punctuation,
    Span,
    TokenTimes,
    Window,
    text_tokens,
    with_words,
)

timing = importlib.import_module("whisper.timing")

TOKENIZER = WhisperTokenizer(openai_tokenizer_json(True), 51865)
BEFORE = 4
"""Start of transcript, language, task, no timestamps."""

THEIRS = inspect.signature(timing.add_word_timestamps).parameters
MARKS = Punctuation(THEIRS["prepend_punctuations"].default, THEIRS["append_punctuations"].default)
SPOKEN = st.lists(
    st.sampled_from(
        [" Hello", " world", ",", ".", "!", "?", " (", ")", ' "', '"', "-", " naïve", "ly", "..."]
    ),
    max_size=9,
).map("".join)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dtw_cpu", "backtrace"):
        monkeypatch.setattr(timing, name, getattr(timing, name).py_func)


class Attending(torch.nn.Module):
    """A cross attention with scores of its own; theirs are taken from a hook on it."""

    def __init__(self, scores_hst: np.ndarray) -> None:
        super().__init__()
        self.scores_hst = torch.from_numpy(scores_hst)

    def forward(self) -> tuple[None, torch.Tensor]:
        return None, self.scores_hst[None]


class ScriptedWhisper:
    """What `find_alignment` needs of a model with one layer, all of whose heads are used."""

    device = torch.device("cpu")
    dims = SimpleNamespace(n_text_layer=1)

    def __init__(self, scores_hst: np.ndarray, logits_sv: np.ndarray) -> None:
        self._attention = Attending(scores_hst)
        self._logits = torch.from_numpy(logits_sv)
        self.decoder = SimpleNamespace(blocks=[SimpleNamespace(cross_attn=self._attention)])
        self.alignment_heads = torch.ones(1, len(scores_hst)).to_sparse()

    def __call__(self, mel: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        self._attention()
        return self._logits[None]


def likely(logits_sv: np.ndarray, tokens: list[int]) -> np.ndarray:
    logits = torch.from_numpy(logits_sv)[BEFORE - 1 : -2, : TOKENIZER.eot]
    return logits.softmax(dim=-1)[range(len(tokens)), tokens].numpy()


def watched(dtw: Callable[..., Any], warped: list[np.ndarray]) -> Callable[..., Any]:
    def note(costs_nt: torch.Tensor) -> Any:
        warped.append(-costs_nt.numpy())
        return dtw(costs_nt)

    return note


def both(
    spans: list[Span], *, window: Window, seed: int, language: str, last_speech: float
) -> tuple[list[Span], list[dict[str, Any]]]:
    tokens = text_tokens(spans, TOKENIZER)
    count = BEFORE + len(tokens) + 1
    rng = np.random.default_rng(seed)
    scores_hst = 5 * rng.standard_normal((2, count, window.frames // 2 + 20)).astype(np.float32)
    logits_sv = rng.standard_normal((count, 51865)).astype(np.float32) * 4

    theirs = [
        {"seek": window.seek, "start": s.start, "end": s.end, "tokens": s.tokens} for s in spans
    ]
    warped: list[np.ndarray] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "dtw", watched(timing.dtw, warped))
        timing.add_word_timestamps(
            segments=theirs,
            model=ScriptedWhisper(scores_hst, logits_sv),
            tokenizer=openai_tokenizer(True, language=language, task="transcribe"),
            mel=torch.zeros(80, 3000),
            num_frames=window.frames,
            last_speech_timestamp=last_speech,
        )
    # Two paths can be as good but for rounding, so both have to warp the same weights.
    [weights_nt] = warped
    attention_st = attention_by_token(scores_hst, window.frames // 2)
    np.testing.assert_allclose(attention_st[BEFORE - 1 : -1], weights_nt, atol=1e-5)
    ours = with_words(
        spans,
        TokenTimes(dtw(weights_nt), likely(logits_sv, tokens), weights_nt[:-1].argmax(axis=1)),
        window,
        tokenizer=TOKENIZER,
        language=language,
        punctuation=MARKS,
        last_speech=last_speech,
    )
    return ours, theirs


def assert_ordered(spans: list[Span]) -> None:
    words = [word for span in spans for word in span.words]
    for before, word in pairwise(words):
        assert before.start <= before.end <= word.start <= word.end
    for span in spans:
        for word in span.words:
            assert span.start <= word.start <= word.end <= span.end


def is_ordered(segments: list[dict[str, Any]]) -> bool:
    times = [t for s in segments for w in s["words"] for t in (w["start"], w["end"])]
    within = all(
        s["start"] <= s["words"][0]["start"] and s["words"][-1]["end"] <= s["end"]
        for s in segments
        if s["words"]
    )
    return within and times == sorted(times)


@given(
    spoken=st.lists(SPOKEN, min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 150), min_size=8, max_size=8),
    frames=st.integers(8, 300),
    seek=st.sampled_from([0, 700, 123_456]),
    seed=st.integers(0, 2**32 - 1),
    language=st.sampled_from(["en", "ja"]),
    silent=st.sampled_from([0.0, 0.3, 5.0]),
)
@settings(deadline=None, max_examples=80)
def test_words_and_segments_have_their_times(spoken, cuts, frames, seek, seed, language, silent):
    window = Window(seek, frames)
    edges = [window.start + cut * 0.02 for cut in sorted(cuts)]
    begin = TOKENIZER.timestamp_begin
    spans = [
        Span(edges[2 * i], edges[2 * i + 1], (begin, *TOKENIZER.encode(text), begin + 5))
        for i, text in enumerate(spoken)
    ]
    if not text_tokens(spans, TOKENIZER):
        spans = [Span(edges[0], edges[1], (begin, *TOKENIZER.encode(" Hello"), begin + 5))]
    last_speech = max(0.0, window.start - silent)
    ours, theirs = both(spans, window=window, seed=seed, language=language, last_speech=last_speech)

    assert_ordered(ours)
    ordered = is_ordered(theirs)
    for span, segment in zip(ours, theirs, strict=True):
        assert [word.word for word in span.words] == [word["word"] for word in segment["words"]]
        for word, expected in zip(span.words, segment["words"], strict=True):
            assert word.probability == pytest.approx(expected["probability"], abs=1e-5)
            if ordered:
                assert word.start == pytest.approx(expected["start"], abs=0.0051)
                assert word.end == pytest.approx(expected["end"], abs=0.0051)
        if ordered:
            assert span.start == pytest.approx(segment["start"], abs=0.0051)
            assert span.end == pytest.approx(segment["end"], abs=0.0051)


def timed(text: str, *begins: float, span: tuple[float, float], language: str = "en") -> Span:
    """Words of a text whose tokens begin at these seconds, and end at the last of them."""
    tokens = tuple(TOKENIZER.encode(text))
    assert len(begins) == len(tokens) + 1
    [span] = with_words(
        [Span(*span, tokens)],
        TokenTimes(
            np.array([round(50 * second) for second in begins]),
            np.full(len(tokens), 0.5, np.float32),
            np.zeros(len(tokens), np.int64),
        ),
        Window(0, 3000),
        tokenizer=TOKENIZER,
        language=language,
        punctuation=MARKS,
        last_speech=0.0,
    )
    return span


def test_punctuation_is_merged_into_words():
    span = timed(' Say "Hello".', 0.2, 0.4, 0.6, 0.8, 0.9, span=(0.0, 1.0))
    assert [word.word for word in span.words] == [" Say", ' "Hello".']


def test_a_segment_begins_and_ends_with_its_words():
    span = timed(" Hello world", 0.4, 0.8, 1.1, span=(0.0, 1.5))
    assert (span.start, span.end) == (0.4, 1.1)
    assert [(word.start, word.end) for word in span.words] == [(0.4, 0.8), (0.8, 1.1)]


def test_a_pause_at_the_start_is_no_part_of_the_first_word():
    span = timed(" Hello world again now", 0.0, 9.0, 9.3, 9.6, 9.9, span=(0.0, 10.0))
    assert [word.start for word in span.words] == pytest.approx([8.4, 9.0, 9.3, 9.6])


def test_a_span_without_text_has_no_words():
    assert timed("", 0.0, span=(0.0, 2.0)) == Span(0.0, 2.0, (), ())
