"""Attention becomes times as in openai-whisper's timing.py, whose functions run beside ours."""

import importlib
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvcast.runtimes.alignment import attention_by_token, dtw
from kvcast.runtimes.base import Alignment
from kvcast.whisper.requests import AlignmentRequest, Features

timing = importlib.import_module("whisper.timing")

# Sums of these are exact in fp32, in which theirs are, as in fp64.
WEIGHTS = st.integers(-192, 192).map(lambda n: n / 64)
# Few different values, so that many paths cost the same.
TIED = st.sampled_from([-1.0, 0.0, 1.0])
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 25))


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling theirs would take longer than these matrices."""
    for name in ("dtw_cpu", "backtrace"):
        monkeypatch.setattr(timing, name, getattr(timing, name).py_func)


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
