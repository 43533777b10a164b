"""Attention becomes times of words as in openai-whisper's timing.py."""

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
from hypothesis.extra.numpy import arrays

from kit.openai_whisper import interpreted, is_ordered, openai_tokenizer, openai_tokenizer_json
from kvcast.runtimes.alignment import attention_by_token, dtw
from kvcast.runtimes.base import Alignment
from kvcast.whisper.requests import AlignmentRequest, Features
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

# Sums of these are exact in fp32, in which theirs are, as in fp64.
WEIGHTS = st.integers(-192, 192).map(lambda n: n / 64)
# Few different values, so that many paths cost the same.
TIED = st.sampled_from([-1.0, 0.0, 1.0])
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 25))


_interpreted = pytest.fixture(autouse=True)(interpreted)
"""Compiling theirs would take longer than these matrices."""


def their_dtw(weights_nt: np.ndarray) -> list[int]:
    rows, frames = timing.dtw(-torch.from_numpy(weights_nt))
    jumps = np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)
    return frames[jumps].tolist()


def their_attention(scores_hst: np.ndarray, frames: int) -> np.ndarray:
    """The lines of `find_alignment` between its model and its dtw."""
    weights = torch.from_numpy(scores_hst)[:, :, :frames].softmax(dim=-1)
    std, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    return timing.median_filter((weights - mean) / std, 7).mean(axis=0).numpy()


def random_scores(heads: int, tokens: int, frames: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 4 * rng.standard_normal((heads, tokens, frames)).astype(np.float32)


@given(weights_nt=arrays(np.float32, SHAPES, elements=WEIGHTS | TIED))
@settings(deadline=None)
def test_each_row_begins_where_their_path_enters_it(weights_nt):
    assert dtw(weights_nt).tolist() == their_dtw(weights_nt)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(224, 1500), (30, 1500), (224, 100)])
def test_whole_windows_take_their_path(shape):
    weights_nt = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    assert dtw(weights_nt).tolist() == their_dtw(weights_nt)


@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_no_other_monotonic_path_has_a_greater_sum(shape, seed):
    """The definition, in fp64: the best sum that can end at each cell."""
    rows, frames = shape
    weights_nt = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    best = np.full((rows + 1, frames + 1), -np.inf)
    best[0, 0] = 0
    for row in range(rows):
        for frame in range(frames):
            before = max(best[row, frame], best[row, frame + 1], best[row + 1, frame])
            best[row + 1, frame + 1] = before + weights_nt[row, frame]
    begins = [*dtw(weights_nt).tolist(), frames - 1]
    total = 0.0
    for row, (begin, end) in enumerate(pairwise(begins)):
        # A path may leave a row at the frame at which it enters the next, or at the one before.
        sums = np.cumsum(weights_nt[row, begin : end + 1], dtype=np.float64)
        is_last = row == rows - 1
        total += sums[-1] if is_last or len(sums) == 1 else max(sums[-1], sums[-2])
    assert total == pytest.approx(best[rows, frames], abs=1e-4)


@given(
    heads=st.integers(1, 3),
    tokens=st.integers(2, 40),
    frames=st.integers(2, 60),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None)
def test_attention_is_normalised_smoothed_and_averaged_as_theirs(heads, tokens, frames, seed):
    scores_hst = random_scores(heads, tokens, 60, seed)
    # Where all tokens attend almost alike, the division makes rounding errors larger.
    np.testing.assert_allclose(
        attention_by_token(scores_hst, frames), their_attention(scores_hst, frames), atol=1e-3
    )


def test_frames_to_which_all_tokens_attend_alike_count_nothing():
    scores_hst = np.zeros((2, 4, 9), np.float32)
    assert not attention_by_token(scores_hst, 9).any()


@pytest.mark.parametrize("frames", [0, 1])
def test_a_recording_of_a_frame_is_aligned_to_it(frames):
    attention_st = attention_by_token(random_scores(2, 6, 9, 1), frames)
    assert dtw(attention_st[1:-1]).tolist() == [0, 0, 0, 0]


def test_scores_without_a_number_end_in_some_times():
    """A broken model's: the search must not run for ever."""
    begins = dtw(np.full((3, 5), np.nan, np.float32))
    assert len(begins) == 3


def test_the_text_begins_after_the_prompt():
    """Tokens: two of the prompt, three of the text and the end, each at frames of its own."""
    scores_hst = np.full((1, 6, 12), -9.0, np.float32)
    for row, (first, end) in enumerate([(0, 1), (0, 3), (3, 7), (7, 9), (9, 12), (11, 12)]):
        scores_hst[0, row, first:end] = 9.0
    runtime: Any = SimpleNamespace(
        align=lambda *_: Alignment(scores_hst, np.array([0.5, 0.6, 0.7], np.float32)),
        attention_by_token=attention_by_token,
        dtw=dtw,
    )
    window = Features(np.zeros((1, 1), np.float32))
    request = AlignmentRequest(
        window, [8, 9], [1, 2, 3], frames=12, eot=7, among_v=np.zeros(12, np.float32)
    )
    assert request.read_at_once(runtime, None, 0)
    assert request.begins_n.shape == (4,)
    assert request.begins_n[0] == 0
    assert (np.diff(request.begins_n) > 0).all()


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


def test_punctuation_is_merged_and_a_segment_begins_and_ends_with_its_words():
    span = timed(' Say "Hello".', 0.4, 0.6, 0.8, 1.0, 1.1, span=(0.0, 1.5))
    assert (span.start, span.end) == (0.4, 1.1)
    words = [(word.start, word.end, word.word) for word in span.words]
    assert words == [(0.4, 0.6, " Say"), (0.6, 1.1, ' "Hello".')]
    assert timed("", 0.0, span=(0.0, 2.0)) == Span(0.0, 2.0, (), ())


def test_a_pause_at_the_start_is_no_part_of_the_first_word():
    span = timed(" Hello world again now", 0.0, 9.0, 9.3, 9.6, 9.9, span=(0.0, 10.0))
    assert [word.start for word in span.words] == pytest.approx([8.4, 9.0, 9.3, 9.6])
