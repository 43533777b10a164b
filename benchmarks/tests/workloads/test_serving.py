"""Texts and clips for many clients: who is asked what, and what is counted."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from kit.dimensions import SMALL
from kvcast.errors import KvcastError, UsageError
from kvcast_bench.clients import ServerAnswer, ServingTurn
from kvcast_bench.turns import BackendResult
from kvcast_bench.workloads.serving import CLIP, GAP, TOKEN, ServedSpeech, ServedTexts
from tiny_models import TINY

RATE = 16_000
TEXTS = ServedTexts(dimensions=TINY, prompt=12, shared=8, new=4, clients=[1, 3], requests=2)


@dataclass
class Fake:
    """Answers every request a second after it came, four tokens half a second apart."""

    tokens: int = 4
    turns: int = 0
    asked: list[Any] = field(default_factory=list)

    def serve_texts(self, prompts: Any, new: int) -> ServingTurn:
        self.asked.append(prompts)
        times = [11.0 + 0.5 * token for token in range(4)]
        answer = ServerAnswer(
            sent=10, times=times, text="a", tokens=self.tokens, prompt_tokens=13, cached_tokens=8
        )
        answers = [answer for own in prompts for _ in own]
        return ServingTurn(seconds=8.0, processor=0.4, answers=answers)

    def serve_clips(self, clips: Any, language: str, beam: int) -> ServingTurn:
        self.asked.append([[len(clip) for clip in own] for own in clips])
        answers = [
            ServerAnswer(sent=0, times=[2.0], text=f"clip{round(abs(clip[0]))}")
            for own in clips
            for clip in own
        ]
        return ServingTurn(seconds=4.0, processor=0.1, answers=answers)


def test_prompts_share_their_beginning_and_nothing_else():
    fake = Fake()
    for _ in range(2):
        TEXTS.run(fake, {"measure": "texts", "clients": 3})
    assert [[len(own) for own in turn] for turn in fake.asked] == [[2, 2, 2]] * 2
    words = [prompt.split() for turn in fake.asked for own in turn for prompt in own]
    assert {len(prompt) for prompt in words} == {12}
    assert len({tuple(prompt[:8]) for prompt in words}) == 1
    assert len({tuple(prompt[8:]) for prompt in words}) == 12


def test_everybody_has_the_same_prompts():
    first, other = Fake(), Fake()
    for fake in (first, other):
        TEXTS.run(fake, {"measure": "texts", "clients": 3})
    assert first.asked == other.asked


def test_throughput_and_waits_of_texts():
    trial = {"measure": "texts", "clients": 3}
    answer = TEXTS.run(Fake(), trial)
    assert answer[TOKEN] == pytest.approx(8.0 / (6 * 4))
    assert answer[GAP] == pytest.approx(0.5)
    facts = TEXTS.facts(trial, "it", [(trial, {"it": BackendResult([answer, answer])})])
    assert facts["tokens_per_second"] == pytest.approx(3.0)
    assert facts["first_p50"] == facts["first_p99"] == 1.0
    assert facts["between_p50"] == facts["between_p99"] == 0.5
    assert facts["clients_share"] == pytest.approx(0.05)
    assert (facts["prompt_tokens"], facts["cached_tokens"]) == (13, 8)


def test_a_server_that_ends_a_text_early_fails():
    with pytest.raises(KvcastError, match=r"gave \[3\] tokens where 4 were asked"):
        TEXTS.run(Fake(tokens=3), {"measure": "texts", "clients": 1})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"shared": 12}, "shared must be below the prompt's 12, not 12"),
        ({"new": 1}, "new must be 2 or more"),
        ({"prompt": 62}, "62 \\+ 4 tokens are more than the 64"),
    ],
)
def test_sizes_that_cannot_be_are_wrong_usage(sizes: dict[str, int], message: str):
    with pytest.raises(UsageError, match=message):
        replace(TEXTS, **sizes)


def audio_parts(*seconds: float) -> np.ndarray:
    """Return parts of these lengths, silent in their last 0.1 s; each begins with its number."""
    parts = []
    for number, length in enumerate(seconds):
        part = np.ones(round(length * RATE), np.float32)
        part[-RATE // 10 :] = 0
        part[: RATE // 10] = number
        parts.append(part)
    return np.concatenate(parts)


def speech(samples: np.ndarray, **more: Any) -> ServedSpeech:
    return ServedSpeech(
        dimensions=SMALL,
        language="en",
        recordings=[samples],
        audio={"name": "talk", "recordings": 1, "seconds": len(samples) / RATE},
        clients=[2],
        requests=2,
        clip=4,
        **more,
    )


TRIAL = {"measure": "clips", "clients": 2}


def test_a_recording_is_cut_where_it_is_quiet():
    fake = Fake()
    speech(audio_parts(3, 3.5, 3)).run(fake, TRIAL)
    lengths = {length for own in fake.asked[0] for length in own}
    assert sum(lengths) == 9.5 * RATE
    # Each cut lies in the tenth of a second that is silent.
    assert sorted(round(length / RATE, 1) for length in lengths) == [2.9, 3.1, 3.5]
    assert max(lengths) <= 4 * RATE


def test_clients_send_all_clips_between_them():
    fake = Fake()
    speech(audio_parts(3, 3, 3)).run(fake, TRIAL)
    (first, second) = fake.asked[0]
    assert len({*first, *second}) == 3


def test_throughput_and_word_error_of_clips():
    workload = speech(audio_parts(3, 3), references=["clip0 clip1"])
    answer = workload.run(Fake(), TRIAL)
    assert answer[CLIP] == 1.0
    facts = workload.facts(TRIAL, "it", [(TRIAL, {"it": BackendResult([answer])})])
    assert facts["speed"] == pytest.approx(12 / 4)
    assert facts["first_p50"] == 2.0
    assert facts["text"] == "clip0 clip0"  # the second clip begins in the first one's silence
    assert facts["word_error"] == 0.5


def test_a_recording_that_is_too_short_is_wrong_usage():
    with pytest.raises(UsageError, match="the recording must have 1 s or more"):
        speech(audio_parts(0.5))
