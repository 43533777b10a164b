"""Drafts change no text, and are asked for only where they pay."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from kit.letters import VOCAB
from kit.scripted_runtimes import RecomputingRuntime, random_model
from kvcast.decoding.drafters import Guess
from kvcast.decoding.speculative_decoding import MOST, Ledger, Speculation
from kvcast.engine.requests import Drafts
from text.test_text_scheduler import outcome, prompts, request, scheduler_for

MODEL = random_model(VOCAB, 0)
CHOICES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 4},
    {"temperature": 0.8, "top_k": 5, "repetition_penalty": 1.5},
    {"stop": ("ab", "e"), "min_new_tokens": 3},
    {"temperature": 1.2, "ends": (0, 3, 4)},
]


class Scripted(Drafts):
    """Proposes the text that will be written, with mistakes; `fed` and `kept` are what came of it.

    A number of the script below 0 is a mistake, others are right; then it begins anew.
    """

    def __init__(self, text: list[int], script: list[list[bool]]) -> None:
        self._text = text
        self._script = script
        self._written = self._turn = 0
        self.calls: list[tuple[int, int]] = []

    @override
    def propose(self, most: int) -> list[int]:
        self._turn += 1
        right = self._script[self._turn % len(self._script)][:most]
        rest = [*self._text[self._written :], *[0] * len(right)]
        return [
            token if is_right else (token + 1) % VOCAB
            for token, is_right in zip(rest, right, strict=False)
        ]

    @override
    def chose(self, token: int) -> None:
        assert token == self._text[self._written]
        self._written += 1

    @override
    def called(self, fed: int, kept: int, seconds: float, drafted: int) -> None:
        assert 1 <= kept <= 1 + drafted <= fed
        self.calls.append((fed, kept))


def written(requests: list[Any], rows: int) -> tuple[list[Any], RecomputingRuntime]:
    runtime = RecomputingRuntime(MODEL)
    for _ in scheduler_for(runtime, requests, rows, chunk=3).run(requests):
        pass
    return [outcome(sampled) for sampled in requests], runtime


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    script=st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=4),
    choice=st.sampled_from(CHOICES),
    rows=st.integers(1, 3),
)
def test_drafts_change_no_text_however_wrong_they_are(script, choice, rows):
    def begin() -> list[Any]:
        each = enumerate(prompts(4, seed=2))
        return [request(prompt, max_new_tokens=4 + 3 * i, stream=i, **choice) for i, prompt in each]

    expected, _ = written(begin(), rows)
    drafted = begin()
    for drafting, (tokens, *_) in zip(drafted, expected, strict=True):
        drafting.drafts = Scripted(tokens, script)
    assert written(drafted, rows)[0] == expected


def test_right_drafts_save_calls_and_wrong_ones_are_taken_off():
    def begin() -> Any:
        return request([5, 6, 7], max_new_tokens=13, ends=())

    [[tokens, *_]], plain = written([begin()], 1)
    right, wrong, half = begin(), begin(), begin()
    for drafting, script in (
        (right, [True] * 3),
        (wrong, [False] * 3),
        (half, [True, False, True]),
    ):
        drafting.drafts = Scripted(tokens, [script])
    runtimes = [written([drafting], 1)[1] for drafting in (right, wrong, half)]
    assert [len(runtime.calls) for runtime in (plain, *runtimes)] == [13, 4, 13, 7]
    # The prompt holds three positions, and each step leaves one of four that it fed.
    assert runtimes[1].cuts[:9] == [(0, length) for length in range(4, 13)]
    assert not runtimes[0].cuts
    assert half.drafts.calls == [(4, 2)] * 5 + [(2, 2)]


def test_no_more_is_fed_than_the_text_has_room_for():
    drafting = request([5, 6], max_new_tokens=5, ends=())
    [[tokens, *_]], _ = written([request([5, 6], max_new_tokens=5, ends=())], 1)
    drafting.drafts = Scripted(tokens, [[True] * 20])
    _, runtime = written([drafting], 1)
    assert runtime.caches == [(1, 2 + 5 - 1)]
    assert drafting.drafts.calls == [(4, 4)]


class Free:
    """Guesses from a script, by the length of the text."""

    is_free = True

    def __init__(self, guesses: Any) -> None:
        self._guesses = guesses
        self.asked = 0

    def guess(self, history: Any, most: int) -> Guess:
        self.asked += 1
        return Guess(self._guesses(list(history))[:most])


class Costly(Free):
    is_free = False


def simulate(drafter: Any, text: list[int], seconds: Any, room: int = MOST) -> tuple[float, float]:
    """Write a text; return the seconds that it takes, and those without drafts."""
    speculation = Speculation(drafter, Ledger(), [])
    speculation.chose(text[0])
    at, took = 1, 0.0
    while at < len(text):
        drafted = list(speculation.propose(min(room, len(text) - at - 1)))
        kept = 0
        for token in [*drafted, None]:
            speculation.chose(text[at + kept])
            kept += 1
            if at + kept == len(text) or text[at + kept - 1] != token:
                break
        fed = 1 + len(drafted)
        speculation.called(fed, kept, seconds(fed), len(drafted))
        took += seconds(fed)
        at += kept
    return took, (len(text) - 1) * seconds(1)


def cheap(fed: int) -> float:
    return 10.0 * (0.9 + 0.1 * fed)


RANDOM = np.random.default_rng(0).integers(0, 50, 400).tolist()


def test_drafts_that_are_right_are_checked_many_at_a_time():
    took, plain = simulate(Free(lambda history: RANDOM[len(history) :]), RANDOM, cheap)
    assert plain / took > 4


def test_what_the_first_call_of_a_size_prepares_is_not_taken_for_its_price():
    sizes: set[int] = set()

    def seconds(fed: int) -> float:
        first = fed not in sizes
        sizes.add(fed)
        return cheap(fed) + 20.0 * first

    text = RANDOM[:200]
    took, _ = simulate(Free(lambda history: text[len(history) :]), text, seconds)
    assert took < 0.45 * 10 * len(text)


@pytest.mark.parametrize("kind", [Free, Costly])
def test_drafts_that_are_wrong_cost_next_to_nothing(kind):
    took, plain = simulate(kind(lambda _: [99] * MOST), RANDOM, cheap)
    assert took / plain < 1.04


@pytest.mark.parametrize("right", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("slope", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("kind", [Free, Costly])
def test_drafts_that_are_sometimes_right_never_cost_more_than_they_may(kind, slope, right):
    rng = np.random.default_rng(1)

    def guesses(history: list[int]) -> list[int]:
        rest = RANDOM[len(history) :]
        return [token if rng.random() < right else 99 for token in rest[:MOST]]

    def seconds(fed: int) -> float:
        return 10.0 * (1 + slope * (fed - 1))

    took, plain = simulate(kind(guesses), RANDOM, seconds)
    assert took / plain < 1.05
    if slope == 0.02 and right >= 0.5:
        assert took / plain < 0.8


def test_drafting_begins_when_the_text_begins_to_repeat_itself():
    text = [*RANDOM[:200], *[1, 2, 3, 4, 5] * 40]
    drafter = Free(lambda history: text[len(history) :] if len(history) > 200 else [99] * MOST)
    took, _ = simulate(drafter, text, cheap)
    assert took < 0.65 * 10 * len(text)


def test_what_was_given_up_is_tried_again():
    text = RANDOM * 2
    drafter = Costly(lambda history: text[len(history) :] if len(history) > 400 else [99] * MOST)
    took, plain = simulate(drafter, text, cheap)
    assert took < 0.75 * plain


def test_a_drafter_that_is_not_free_is_not_asked_where_it_does_not_pay():
    drafter = Costly(lambda _: [99] * MOST)
    simulate(drafter, RANDOM, lambda fed: 10.0 * fed)
    assert drafter.asked < len(RANDOM) / 10


def test_a_call_that_could_lose_more_than_is_allowed_is_not_made():
    ledger = Ledger()
    for _ in range(10):
        ledger.called(1, 1, 1.0)
    ledger.called(6, 6, 2.0)
    for _ in range(99):
        ledger.compared(0, right=True)
    assert ledger.affordable(0, MOST) > 5
    poor = Ledger()
    poor.called(1, 1, 1.0)
    for _ in range(99):
        poor.compared(0, right=True)
    assert poor.affordable(0, MOST) == 0


def test_prompts_are_not_read_for_drafting_again_before_that_has_paid():
    ledger = Ledger()
    assert ledger.can_begin()
    ledger.began(5.0)
    assert not ledger.can_begin()
    for _ in range(10):
        ledger.called(1, 1, 1.0)
    assert not ledger.can_begin()
    ledger.called(8, 8, 2.0)
    assert ledger.can_begin()
