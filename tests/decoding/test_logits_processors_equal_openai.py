"""Each filter masks exactly what openai-whisper's class of that kind masks."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import whisper.decoding as openai
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kit.openai_whisper import openai_tokenizer
from kvcast.decoding.logits_processors import LogitsProcessor, SuppressTokens
from kvcast.whisper.decoding import SuppressBlank, TimestampRules

# A small vocabulary: text, the end, two control tokens, <|notimestamps|>, timestamps.
EOT, NO_TIMESTAMPS, BEGIN, VOCAB = 12, 15, 16, 30
SMALL = SimpleNamespace(eot=EOT, no_timestamps=NO_TIMESTAMPS, timestamp_begin=BEGIN)
PROMPT = [13, 14]

TEXT = st.integers(0, EOT)
TIMESTAMP = st.integers(BEGIN, VOCAB - 1)
HISTORIES = st.tuples(st.integers(1, 4), st.integers(0, 7)).flatmap(
    lambda shape: st.lists(
        st.lists(TEXT | TIMESTAMP, min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


def assert_masks_equal(
    ours: LogitsProcessor,
    theirs: openai.LogitFilter,
    logits_rv: np.ndarray,
    histories: list[list[int]],
    prompt: list[int],
) -> None:
    expected = torch.from_numpy(logits_rv.copy())
    theirs.apply(expected, torch.tensor([prompt + history for history in histories]))
    ours.apply(logits_rv, np.array(histories, np.int64).reshape(len(histories), -1))
    assert np.array_equal(logits_rv, expected.numpy())


def ours(latest: int | None, added: int = 0) -> LogitsProcessor:
    return TimestampRules(
        begin=BEGIN - added,
        end=VOCAB - added,
        eot=EOT - added,
        no_timestamps=NO_TIMESTAMPS - added,
        latest_initial=latest,
    )


def rules(latest: int | None) -> tuple[LogitsProcessor, openai.LogitFilter]:
    return ours(latest), openai.ApplyTimestampRules(SMALL, len(PROMPT), latest)


@st.composite
def logits_after(draw, histories):
    # Text within reach of all timestamps together, and some logits already masked. Eighths keep
    # away from ties that each side's rounding decides.
    logit = st.integers(-32, 32).map(lambda eighths: eighths / 8) | st.just(-np.inf)
    logits_rv = draw(arrays(np.float32, (len(histories), VOCAB), elements=logit))
    logits_rv[:, 0] = draw(st.integers(-32, 48)) / 8
    return logits_rv


LATEST = st.none() | st.integers(0, VOCAB - BEGIN)


@given(histories=HISTORIES, latest=LATEST, data=st.data())
def test_timestamp_rules_after_any_history(histories, latest, data):
    logits_rv = data.draw(logits_after(histories))
    assert_masks_equal(*rules(latest), logits_rv, histories, PROMPT)


@pytest.mark.parametrize("lead", [-0.01, 0.01])
def test_timestamps_win_by_their_total_weight(lead: float):
    logits_rv = np.full((1, VOCAB), -50, np.float32)
    logits_rv[:, BEGIN + 3 :] = 0
    logits_rv[:, 5] = np.log(VOCAB - BEGIN - 3) - lead
    assert_masks_equal(*rules(None), logits_rv, [[BEGIN, 4]], PROMPT)
    assert np.isneginf(logits_rv[0, 5]) == (lead > 0)


@given(histories=HISTORIES, latest=LATEST, data=st.data())
def test_text_after_the_timestamps_is_masked_as_text_before_them(histories, latest, data):
    """Tokens that fine-tuning added are what the first ones are, in another place."""
    added = 4
    logits_rv = data.draw(logits_after(histories))
    moved_rv = np.concatenate([logits_rv[:, added:], logits_rv[:, :added]], axis=1)
    histories_rn = np.array(histories, np.int64).reshape(len(histories), -1)
    ours(latest).apply(logits_rv, histories_rn)
    ours(latest, added).apply(moved_rv, (histories_rn - added) % VOCAB)
    back_rv = np.concatenate([moved_rv[:, -added:], moved_rv[:, :-added]], axis=1)
    assert np.array_equal(back_rv, logits_rv)


@pytest.mark.parametrize("multilingual", [False, True])
@pytest.mark.parametrize("latest", [None, 50])
def test_timestamp_rules_over_a_whole_vocabulary(multilingual: bool, latest: int | None):
    tokenizer = openai_tokenizer(multilingual)
    begin, vocab = tokenizer.timestamp_begin, tokenizer.encoding.n_vocab
    prompt = [*tokenizer.sot_sequence]
    ours = TimestampRules(
        begin=begin,
        end=vocab,
        eot=tokenizer.eot,
        no_timestamps=tokenizer.no_timestamps,
        latest_initial=latest,
    )
    theirs = openai.ApplyTimestampRules(tokenizer, len(prompt), latest)
    generator = np.random.default_rng(0)
    pair = [begin, 7, begin + 20, begin + 20]
    histories = [pair[:count] for count in range(5)]
    for history in (
        *histories,
        *([begin + 1500], [begin, 9, begin + 1500], [begin, 9, 8, tokenizer.eot]),
    ):
        logits_rv = generator.normal(0, 2, (5, vocab)).astype(np.float32)
        logits_rv[:, begin:] += generator.uniform(-6, 6, (5, 1))
        assert_masks_equal(ours, theirs, logits_rv, [history] * 5, prompt)


@pytest.mark.parametrize("history", [[], [50363], [50363, 5]])
def test_blank_is_masked_at_the_start_only(history: list[int]):
    tokenizer = openai_tokenizer(False)
    prompt = [*tokenizer.sot_sequence]
    ours = SuppressBlank((*tokenizer.encode(" "), tokenizer.eot))
    theirs = openai.SuppressBlank(tokenizer, len(prompt))
    logits_rv = np.random.default_rng(0).normal(size=(3, 51864)).astype(np.float32)
    assert_masks_equal(ours, theirs, logits_rv, [history] * 3, prompt)
    assert bool(np.isneginf(logits_rv).any()) == (not history)


@given(tokens=st.lists(st.integers(0, VOCAB - 1), max_size=9), histories=HISTORIES)
def test_suppressed_tokens_are_masked_always(tokens, histories):
    logits_rv = np.random.default_rng(0).normal(size=(len(histories), VOCAB)).astype(np.float32)
    assert_masks_equal(
        SuppressTokens(tokens), openai.SuppressTokens(tokens), logits_rv, histories, PROMPT
    )
