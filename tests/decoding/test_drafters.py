"""What drafters guess, and that a drafting model's cache follows the text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.letters import VOCAB
from kit.scripted_runtimes import RecomputingRuntime, random_model
from kvcast.decoding.drafters import FormerText, ModelDrafting, PromptLookup
from kvcast.decoding.logits_processors import SuppressTokens
from kvcast.engine.requests import Prompt, compute


def guessed(history, most=4):
    return list(PromptLookup().guess(history, most).tokens)


def test_the_text_goes_on_as_it_did_after_the_longest_end_that_occurred_before():
    assert guessed([1, 2, 3, 9, 8, 2, 3, 7, 1, 2, 3]) == [9, 8, 2, 3]
    assert guessed([5, 1, 2, 6, 7, 1, 2]) == [6, 7, 1, 2]


def test_of_equally_long_matches_the_latest_counts():
    assert guessed([1, 2, 3, 4, 1, 2, 5, 6, 1, 2]) == [5, 6, 1, 2]


def test_a_text_in_a_loop_goes_on_in_it():
    assert guessed([7, 1, 2, 3, 1, 2, 3, 1], most=7) == [2, 3, 1, 2, 3, 1, 2]
    assert guessed([4, 4, 4], most=5) == [4] * 5


@pytest.mark.parametrize("history", [[], [1], [1, 2], [1, 2, 3, 2], [1, 1]])
def test_no_guess_without_two_tokens_that_occurred_before(history):
    assert guessed(history) == []


def test_a_text_that_is_written_anew_goes_on_as_it_did_before():
    former = FormerText()
    former.tokens = [1, 2, 3, 4, 5]
    drafter = former.begin(Prompt(np.array([9, 1])), 20)
    former.tokens = [6, 7]  # for the text after this one
    assert list(drafter.guess([9, 1], 2).tokens) == []
    assert drafter.guess([9, 1, 2], 2).tokens == [3, 4]
    assert list(drafter.guess([9, 1, 2, 8], 2).tokens) == []
    assert drafter.guess([9, 1, 2, 8, 3, 4], 1).tokens == [5]


def slowly(history, most, longest):
    """The definition: of all earlier ends, the longest match, and of equals the latest."""
    best, place = 1, None
    for end in range(1, len(history)):
        length = 0
        while length < min(end, longest) and history[end - 1 - length] == history[-1 - length]:
            length += 1
        if length >= 2 and length >= best:
            best, place = length, end
    if place is None:
        return []
    text = list(history)
    for i in range(most):
        text.append(text[place + i])
    return text[len(history) :]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 20))
def test_a_growing_text_is_matched_as_by_comparing_all_of_it(history, most):
    lookup = PromptLookup()
    for end in range(len(history) + 1):
        guessed = list(lookup.guess(history[:end], most).tokens)
        # With few different tokens there are more places than are compared.
        if end <= PromptLookup._PLACES:
            assert guessed == slowly(history[:end], most, PromptLookup._LONGEST)
        assert len(guessed) in (0, most)


def test_longer_matches_are_guesses_of_another_kind():
    text = list(range(100, 140))
    kinds = [PromptLookup().guess([*text, *text[:n]], 1).kind for n in (2, 3, 4, 8, 16, 30)]
    assert kinds == [2, 2, 3, 4, 5, 5]


class Counted(list):
    """Counts how often it is looked at."""

    looks = 0

    def __getitem__(self, index):
        self.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("different", [1, 2, 40])
def test_each_token_of_a_growing_text_is_looked_at_a_bounded_number_of_times(different):
    text = np.random.default_rng(0).integers(0, different, 6000).tolist()
    lookup, looks, history = PromptLookup(), [0], Counted()
    for token in text:
        history.append(token)
        lookup.guess(history, 1)
        looks.append(history.looks)
    most = 2 * PromptLookup._PLACES * PromptLookup._LONGEST + 8
    assert max(np.diff(looks)) <= most < 6000 / 4


MODEL = random_model(VOCAB, 0, scale=3)


def greedy(history, count, banned=()):
    text = list(history)
    for _ in range(count):
        logits_v = MODEL(tuple(text))[-1].copy()
        logits_v[list(banned)] = -np.inf
        weights_v = np.exp(logits_v - logits_v.max())
        if weights_v.max() / weights_v.sum() < 0.4:
            break
        text.append(int(logits_v.argmax()))
    return text[len(history) :]


def drafting(runtime, longest=64, vocabulary=VOCAB, chunk=3):
    return ModelDrafting(runtime, longest=longest, vocabulary=vocabulary, chunk=chunk)


@pytest.mark.parametrize("banned", [(), tuple(range(0, VOCAB, 2))])
def test_a_model_writes_on_as_long_as_it_is_sure(banned):
    runtime, rng = RecomputingRuntime(MODEL), np.random.default_rng(0)
    prompt = Prompt(np.array([5, 6, 7, 8, 9], np.int64))
    drafter = drafting(runtime, longest=200).begin(
        prompt, 200, [SuppressTokens(banned)] if banned else []
    )
    history, lengths = prompt.tokens.tolist(), []
    for _ in range(40):
        history.append(int(rng.integers(VOCAB)))
        tokens = list(drafter.guess(history, 4).tokens)
        assert tokens == greedy(history, 4, banned)
        lengths.append(len(tokens))
        history += tokens[: rng.integers(5)]
    assert set(lengths) >= {0, 4}
    # The prompt in chunks, then nothing twice but what was cut off.
    assert [call[0] for call in runtime.calls[:2]] == [[5, 6, 7], [8, 9]]
    assert sum(len(call[0]) for call in runtime.calls) < len(history) + 40 * 4


def test_two_texts_take_turns_and_are_read_anew():
    runtime = RecomputingRuntime(MODEL)
    one_way = drafting(runtime)
    prompts = [Prompt(np.array(tokens, np.int64)) for tokens in ([5, 6], [7, 8, 9])]
    drafters = [one_way.begin(prompt, 30) for prompt in prompts]
    for turn in range(3):
        for prompt, drafter in zip(prompts, drafters, strict=True):
            history = [*prompt.tokens.tolist(), *range(turn + 1)]
            assert list(drafter.guess(history, 3).tokens) == greedy(history, 3)
    assert len(runtime.caches) == 1


def test_a_prefix_is_read_like_the_rest_of_a_prompt():
    prefix = compute(RecomputingRuntime(MODEL), Prompt(np.array([5, 6, 7], np.int64)), 2)
    prompt = Prompt(np.empty(0, np.int64), prefix=prefix)
    drafter = drafting(RecomputingRuntime(MODEL)).begin(prompt, 30)
    assert list(drafter.guess([5, 6, 7, 1], 3).tokens) == greedy([5, 6, 7, 1], 3)


def test_what_is_too_long_for_the_smaller_model_has_no_guess():
    prompt = Prompt(np.array([5, 6], np.int64))
    drafter = drafting(RecomputingRuntime(MODEL), longest=5).begin(prompt, 30)
    for written in range(1, 6):
        history = [5, 6, *range(written)]
        room = 5 - len(history) + 1
        assert len(drafter.guess(history, 4).tokens) <= max(0, room)


def test_tokens_beyond_the_common_vocabulary_are_neither_fed_nor_guessed():
    # The tables of two models with the same tokenizer may be padded differently.
    def last_is_likeliest(written):
        return 9 * np.eye(VOCAB, dtype=np.float32)[[VOCAB - 1] * len(written)]

    runtime = RecomputingRuntime(last_is_likeliest)
    prompt = Prompt(np.array([5, 6], np.int64))
    drafter = drafting(runtime, vocabulary=VOCAB - 1).begin(prompt, 30)
    assert VOCAB - 1 not in drafter.guess([5, 6, 7], 3).tokens
    calls = len(runtime.calls)
    assert not drafter.guess([5, 6, 7, VOCAB - 1], 3).tokens
    assert len(runtime.calls) == calls
