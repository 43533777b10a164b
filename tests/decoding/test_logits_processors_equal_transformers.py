"""Logits processors against repetition change exactly what transformers' processors change."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessor as TransformersProcessor
from transformers import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from kvcast.decoding.logits_processors import LogitsProcessor, NoRepeatNgram, RepetitionPenalty

VOCAB = 12

# Few different tokens, so that sequences repeat themselves.
HISTORIES = st.tuples(st.integers(1, 4), st.integers(0, 12)).flatmap(
    lambda shape: st.lists(
        st.lists(st.integers(0, 4), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


def both(
    ours: LogitsProcessor, theirs: TransformersProcessor, histories: list[list[int]], seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits_rv = generator.normal(0, 4, (len(histories), VOCAB)).astype(np.float32)
    logits_rv[generator.random(logits_rv.shape) < 0.1] = -np.inf  # other filters' work
    generated_rn = np.array(histories, np.int64).reshape(len(histories), -1)
    expected = theirs(torch.from_numpy(generated_rn), torch.from_numpy(logits_rv.copy()))
    ours.apply(logits_rv, generated_rn)
    return logits_rv, expected.numpy()


@given(histories=HISTORIES, penalty=st.floats(0.1, 8), seed=st.integers(0, 99))
def test_repetition_penalty(histories, penalty, seed):
    ours, expected = both(
        RepetitionPenalty(penalty), RepetitionPenaltyLogitsProcessor(penalty), histories, seed
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


@given(histories=HISTORIES, size=st.integers(1, 5), seed=st.integers(0, 99))
def test_no_repeat_ngram(histories, size, seed):
    ours, expected = both(NoRepeatNgram(size), NoRepeatNGramLogitsProcessor(size), histories, seed)
    assert np.array_equal(ours, expected)


@pytest.mark.parametrize(
    ("size", "forbidden"), [(1, {3, 4, 5}), (2, {4, 5}), (3, {4, 5}), (4, set()), (9, set())]
)
def test_what_followed_the_same_words_before_does_not_come_again(size: int, forbidden: set[int]):
    logits_rv = np.zeros((1, VOCAB), np.float32)
    NoRepeatNgram(size).apply(logits_rv, np.array([[4, 3, 4, 3, 5, 4, 3]]))
    assert set(np.flatnonzero(np.isneginf(logits_rv[0]))) == forbidden
