"""Buckets of relative positions: those of transformers, at every distance."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.t5.modeling_t5 import T5Attention

from kvcast.spec.position_encodings import bucket_of

EVERY = np.arange(-5000, 5001)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "max_distances"),
    [
        (32, [128, 20, 17, 1000, 4096]),  # 128: T5, mT5, ByT5
        (8, [16, 128]),
        (4, [3]),
        (16, [64]),
        (64, [256, 129]),
        (128, [512]),
        (12, [100]),
        (20, [77]),
        (320, [800]),
    ],
)
def test_every_distance_falls_into_the_bucket_of_transformers(
    buckets: int, max_distances: list[int], bidirectional: bool
):
    for most in max_distances:
        theirs = T5Attention._relative_position_bucket(
            torch.from_numpy(EVERY), bidirectional, buckets, most
        )
        buckets_of = bucket_of(EVERY, buckets, most, bidirectional=bidirectional)
        assert buckets_of.dtype == np.int64
        np.testing.assert_array_equal(buckets_of, theirs.numpy())


def test_borders_that_are_powers_of_two_are_exact():
    # Of 32 one-directional buckets over 128, the upper half is 16 * 8 ** (i / 16): 16 * 2 ** j at
    # every 16 / 3, and of 32 two-directional ones 8 * 16 ** (i / 8): 8 * 2 ** j at every second.
    buckets_of = bucket_of(-np.array([7, 8, 15, 16, 31, 32, 63, 64]), 32, 128, bidirectional=True)
    assert buckets_of.tolist() == [7, 8, 9, 10, 11, 12, 13, 14]


@settings(deadline=None)
@given(
    st.integers(1, 40).map(lambda n: 4 * n), st.integers(1, 1000), st.booleans(), st.integers(0, 9)
)
def test_buckets_only_grow_with_distance_and_the_last_holds_all_from_the_largest_on(
    buckets: int, spare: int, bidirectional: bool, beyond: int
):
    max_distance = buckets // 2 + spare
    directions = 2 if bidirectional else 1
    buckets_of = bucket_of(-EVERY[EVERY <= 0], buckets, max_distance, bidirectional=bidirectional)
    earlier = bucket_of(EVERY[EVERY <= 0][::-1], buckets, max_distance, bidirectional=bidirectional)
    assert (np.diff(earlier) >= 0).all()
    assert earlier[0] == 0
    assert earlier[max_distance + beyond] == buckets // directions - 1
    expected = earlier[::-1][:-1] + buckets // 2 if bidirectional else 0 * earlier[:-1]
    np.testing.assert_array_equal(buckets_of[:-1], expected)


def test_any_shape_is_kept():
    distances = EVERY[:24].reshape(2, 3, 4)
    buckets_of = bucket_of(distances, 32, 128, bidirectional=True)
    assert buckets_of.shape == distances.shape
