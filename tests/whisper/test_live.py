"""Live transcription without a model: every word settles once, at bounded cost."""

import random
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.marks import slow, soak
from kit.scripted_whisper import ScriptedRecognizer, Word, listener, seconds, sound, speech
from kvcast.audio.vad import Endpoints
from kvcast.errors import UsageError
from kvcast.speech.live import Delays, LiveTranscription, Update
from kvcast.whisper.local_agreement import AlignAtt, LocalAgreement, StreamingPolicy
from kvcast.whisper.streaming import LONGEST, StreamingWindow

RATE = 16_000
LOCAL_AGREEMENT, ALIGN_ATT = LocalAgreement(2), AlignAtt(25)


class Clock:
    """Stands still until told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(
    hearing: ScriptedRecognizer,
    *,
    step: float = 1.0,
    conditions: bool = True,
    policy: StreamingPolicy = LOCAL_AGREEMENT,
) -> tuple[LiveTranscription, StreamingWindow, Clock]:
    window = StreamingWindow(hearing, prompt=(), conditions=conditions, policy=policy, step=step)
    clock = Clock()
    endpoints = Endpoints(listener(hearing.words), threshold=0.5, pause=0.6)
    return LiveTranscription(window, endpoints, clock=clock), window, clock


def length(words: Sequence[Word]) -> int:
    return words[-1].end + RATE


def feed_all(
    hearing: ScriptedRecognizer, chunks: Sequence[int], **options: Any
) -> tuple[LiveTranscription, list[Update]]:
    """Feed all audio in pieces of these lengths, over and over, in real time."""
    live, window, clock = opened(hearing, **options)
    updates: list[Update] = []
    at, number, total = 0, 0, length(hearing.words)
    while at < total:
        end = min(at + chunks[number % len(chunks)], total)
        clock.now = seconds(end)
        updates += live.feed(sound(at, end))
        assert window.end - window.start <= LONGEST
        at, number = end, number + 1
    updates += live.finish()
    assert live.duration == seconds(total)
    return live, updates


def fed(hearing: ScriptedRecognizer, chunks: Sequence[int], **options: Any) -> list[Update]:
    return feed_all(hearing, chunks, **options)[1]


def check(updates: Sequence[Update], words: Sequence[Word]) -> None:
    """Compare the settled words with the spoken ones."""
    segments = [update.segment for update in updates if update.segment is not None]
    confirmed = "".join(update.settled for update in updates)
    assert confirmed == "".join(word.text for word in words)
    assert "".join(segment.text for segment in segments) == confirmed
    assert [segment.id for segment in segments] == list(range(len(segments)))
    times = [time for segment in segments for time in (segment.start, segment.end)]
    assert times == sorted(times)
    assert all(segment.start < segment.end for segment in segments)
    tokens = [token for segment in segments for token in segment.tokens]
    assert tokens == list(range(len(words)))
    line = ""
    for update in updates:  # a line is what was confirmed in it
        line += update.settled
        if update.segment is not None:
            assert update.segment.text == line
            line = ""
    assert line == ""


@given(
    chunks=st.lists(st.integers(1, 3 * RATE), min_size=1, max_size=8).filter(
        lambda chunks: sum(chunks) > 2000 * len(chunks)
    ),
    step=st.floats(0.2, 5.0),
    pause_every=st.sampled_from([3, 25, 1000]),
    segment_every=st.sampled_from([2, 8, 30]),
    failures=st.sets(st.integers(1, 60)),
    breaks=st.sets(st.integers(1, 60)),
    policy=st.one_of(st.builds(LocalAgreement, st.integers(2, 5)), st.just(ALIGN_ATT)),
    seed=st.integers(0, 100),
)
@example(  # a hypothesis breaks off before a segment whose first word is confirmed
    chunks=[1, 1, 1, 12061, 13780, 4928],
    step=0.875,
    pause_every=25,
    segment_every=30,
    failures=set(),
    breaks={1, 2, 45},
    policy=ALIGN_ATT,
    seed=20,
)
@example(  # the fresh start breaks off, and what follows the confirmed words runs in circles
    chunks=[886, 9188, 870],
    step=3.4605698276513586,
    pause_every=1000,
    segment_every=2,
    failures={12, 14},
    breaks={7, 13},
    policy=LOCAL_AGREEMENT,
    seed=0,
)
@settings(max_examples=25, deadline=None)
def test_every_word_is_settled_once_whatever_the_pieces(
    chunks, step, pause_every, segment_every, failures, breaks, policy, seed
):
    words = speech(150, seed=seed, pause_every=pause_every, segment_every=segment_every)
    hearing = ScriptedRecognizer(words, failures=frozenset(failures), breaks=frozenset(breaks))
    check(fed(hearing, chunks, step=step, policy=policy), words)


def test_queued_audio_is_decoded_at_once():
    words = speech(400, segment_every=6)
    slow = ScriptedRecognizer(words)
    check(fed(slow, [20 * RATE]), words)
    prompt = ScriptedRecognizer(words)
    check(fed(prompt, [RATE // 10]), words)
    assert slow.decoded < prompt.decoded / 2


@pytest.mark.parametrize("jitter", [0, 10])
def test_a_speaker_who_never_ends_a_sentence_is_cut_between_words(jitter: int):
    words = speech(600, pause_every=10_000, segment_every=10_000)
    hearing = ScriptedRecognizer(words, jitter=jitter)
    updates = fed(hearing, [RATE // 2])
    check(updates, words)
    ends = [update.segment.end for update in updates if update.segment is not None]
    assert np.diff([0, *ends]).max() < 75


def test_a_hypothesis_of_circles_settles_nothing_and_loses_nothing():
    words = speech(120)
    hearing = ScriptedRecognizer(words, failures=frozenset(range(5, 25)))
    updates = fed(hearing, [RATE // 2])
    check(updates, words)
    assert hearing.thorough


def test_a_hypothesis_that_ends_early_is_followed_by_another():
    words = speech(200, pause_every=20, segment_every=5)
    hearing = ScriptedRecognizer(words, breaks=frozenset(range(1000)))
    check(fed(hearing, [30 * RATE]), words)


def test_text_that_shall_not_condition_is_no_prompt():
    words = speech(300, segment_every=6)
    hearing = ScriptedRecognizer(words)
    check(fed(hearing, [RATE], conditions=False), words)
    assert set(hearing.prompts) == {0}
    hearing = ScriptedRecognizer(words)
    fed(hearing, [RATE])
    assert max(hearing.prompts) == hearing.room


def test_silence_costs_nothing():
    words = speech(10)
    hearing = ScriptedRecognizer(words)
    live, window, _ = opened(hearing)
    live.feed(sound(0, words[-1].end + RATE))
    decoded = hearing.decoded
    for second in range(600):
        start = words[-1].end + (1 + second) * RATE
        assert live.feed(sound(start, start + RATE)) == []
        assert window.end - window.start <= RATE // 2
    assert live.finish() == []
    assert hearing.decoded == decoded


def test_nothing_at_all():
    live, _, _ = opened(ScriptedRecognizer(speech(1)))
    assert live.feed(np.zeros(0, np.float32)) == []
    assert live.finish() == []
    assert (live.duration, live.delays.count, live.delays.quantile(0.5)) == (0, 0, 0)


def test_invalid_audio_is_refused():
    live, _, _ = opened(ScriptedRecognizer(speech(1)))
    with pytest.raises(UsageError, match="must be"):
        live.feed(np.zeros((2, 5, 1), np.float32))


def test_floats_that_are_integers_are_so_from_then_on():
    hearing = ScriptedRecognizer(speech(1))
    live, _, _ = opened(hearing)
    for loudness in 0.5, 3000.0, 20.0:
        live.take(np.full(512, loudness, np.float32))
    np.testing.assert_allclose([block[0] for block in live._taken], [0.5, 3000 / 2**15, 20 / 2**15])
    assert "16-bit" in " ".join(live.notices)


def test_integers_are_scaled():
    live, window, _ = opened(ScriptedRecognizer(speech(1)))
    live.feed(np.full(512, -(2**15), np.int16))
    assert window.end == 512


@pytest.mark.parametrize("agreement", [2, 3, 5])
def test_a_word_settles_when_enough_hypotheses_agree(agreement: int):
    """A hypothesis every 1 s, in no time: at the earliest 2 s after the word."""
    words = speech(200, pause_every=10_000)
    hearing = ScriptedRecognizer(words, late=0)
    live, _ = feed_all(hearing, [RATE // 10], policy=LocalAgreement(agreement))
    assert live.delays.count == len(words)
    least = max(2, agreement - 1)
    assert least <= live.delays.quantile(0.5) <= least + 1
    assert live.delays.quantile(0.95) <= live.delays.longest <= least + 1.3


def test_an_improbable_word_settles_later():
    words = speech(12, pause_every=10_000)
    hearing = ScriptedRecognizer(words, unsure=frozenset({3}))
    live, _, clock = opened(hearing)
    at_words: dict[str, float] = {}
    for at in range(0, length(words), RATE // 10):
        clock.now = seconds(at + RATE // 10)
        for update in live.feed(sound(at, at + RATE // 10)):
            at_words |= {f" {word}": clock.now for word in update.settled.split()}
    delays = [at_words[word.text] - seconds(word.end) for word in words if word.text in at_words]
    assert all(2 <= delay + 0.1 <= 3.3 for delay in delays[:3])
    # A pause settles it before 5 s have passed.
    assert delays[3] > 3.3


@pytest.mark.parametrize("piece", [RATE // 2, RATE])
def test_a_hypothesis_is_made_for_every_step_of_pieces_that_are_no_whole_blocks(piece: int):
    words = speech(100, pause_every=10_000)
    hearing = ScriptedRecognizer(words)
    fed(hearing, [piece])
    assert hearing.decoded >= 0.95 * seconds(words[-1].end)


def test_respelled_words_are_neither_repeated_nor_lost():
    words = speech(150, segment_every=6)
    check(fed(ScriptedRecognizer(words, respells=True), [RATE // 2]), words)


def test_a_slow_machine_shows_in_the_delay():
    words = speech(100)
    delays = []
    for pace in 1.0, 3.0:
        live, _, clock = opened(ScriptedRecognizer(words))
        for at in range(0, length(words), RATE):
            live.take(sound(at, at + RATE), at=seconds(at + RATE))
            clock.now = pace * seconds(at + RATE)
            live.update()
        live.finish()
        delays.append(live.delays.quantile(0.5))
    assert delays[1] > delays[0] + 10


def test_delays_are_counted_in_little_memory():
    delays = Delays()
    rng = random.Random(0)
    values = sorted(rng.uniform(0, 10) for _ in range(2000))
    for value in values:
        delays.add(value)
    assert delays.quantile(0.5) == pytest.approx(values[1000], abs=0.06)
    assert delays.quantile(1.0) == delays.longest == values[-1]
    delays.add(1000.0)
    assert delays.quantile(0.5) == pytest.approx(values[1000], abs=0.06)


@pytest.mark.parametrize("minutes", [slow(8), soak(30)])
@pytest.mark.parametrize(("pause_every", "segment_every"), [(25, 8), (10_000, 10_000)])
def test_minutes_take_the_memory_and_the_work_of_one(minutes, pause_every, segment_every):
    words = speech(188 * minutes, pause_every=pause_every, segment_every=segment_every)
    assert length(words) > minutes * 60 * RATE
    hearing = ScriptedRecognizer(words)
    live, window, clock = opened(hearing)
    held: list[int] = []
    work: list[int] = []
    confirmed: list[str] = []
    tracemalloc.start()
    for at in range(0, length(words), RATE // 4):
        if at % (60 * RATE) == 0:
            held.append(tracemalloc.get_traced_memory()[0])
            work.append(hearing.samples)
        clock.now = seconds(at + RATE // 4)
        heard = live.feed(sound(at, min(at + RATE // 4, length(words))))
        confirmed += [update.settled for update in heard]
        assert window.end - window.start <= LONGEST
    tracemalloc.stop()
    confirmed += [update.settled for update in live.finish()]
    assert "".join(confirmed) == "".join(word.text for word in words)
    # The test's own lists grow: the words that were settled, and what the prompts were.
    assert held[-1] - held[minutes // 5] < 1_000_000
    by_minute = np.diff(work)
    assert by_minute.max() <= 70 * LONGEST  # a window for every second, and a few for cuts
    assert by_minute[minutes // 2 :].mean() < 1.2 * by_minute[1 : minutes // 2].mean()
    assert hearing.decoded < 1.2 * seconds(length(words))
    assert live.delays.count == len(words)


def test_probable_words_settle_when_attention_has_passed_them():
    """Every 1 s a hypothesis, and a margin of 0.5 s."""
    words = speech(200, pause_every=10_000)
    live, _ = feed_all(ScriptedRecognizer(words, late=0), [RATE // 10], policy=ALIGN_ATT)
    assert live.delays.count == len(words)
    assert live.delays.quantile(0.5) <= 1.15
    assert live.delays.longest <= 1.75
