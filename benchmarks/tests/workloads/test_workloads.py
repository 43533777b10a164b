"""What a turn of each workload asks of a backend, with ones that follow a script."""

from dataclasses import replace

import numpy as np
import pytest

from kit.dimensions import SMALL
from kvcast.errors import KvcastError, UsageError
from kvcast_bench.backend import Ticks
from kvcast_bench.workload import random_tokens
from kvcast_bench.workloads import causal
from kvcast_bench.workloads.causal import Causal
from kvcast_bench.workloads.seq2seq import Seq2seq
from kvcast_bench.workloads.speech import SpeechWorkload
from scripted_backend import Scripted
from tiny_models import TINY, TINY_T5

CAUSAL = Causal(dimensions=TINY, prompt=5, new=3, batch=[2], positions=[9])
SEQ2SEQ = Seq2seq(dimensions=TINY_T5, source=5, target=4, batch=[2], beam=[3])


def test_recordings_are_transcribed_with_each_beam():
    speech = SpeechWorkload(
        dimensions=SMALL,
        language="de",
        recordings=[np.zeros(7, np.float32), np.zeros(9, np.float32)],
        audio={"name": "x", "recordings": 2, "seconds": 1.0},
        beam=[1, 5],
    )
    scripted = Scripted()
    answers = [speech.run(scripted, trial) for trial in speech.trials()]
    assert scripted.asked == [(7, "de", 1), (9, "de", 1), (7, "de", 5), (9, "de", 5)]
    assert [answer["texts"] for answer in answers] == [[" one two"] * 2] * 2
    assert all(answer["transcribe"] > 0 for answer in answers)


def test_a_position_beyond_the_decoder_is_wrong_usage():
    with pytest.raises(UsageError, match="position must be below 32"):
        SpeechWorkload(dimensions=SMALL, language="en", recordings=[], audio={}, position=32)


def test_a_continued_text_answers_with_times_and_tokens():
    answer = CAUSAL.run(Scripted(), CAUSAL.trials()[0])
    assert answer["tokens"] == random_tokens(2, 5, TINY.vocab_size)[0][:4]
    assert answer["first"] > 0
    assert answer["step"] > 0


@pytest.mark.parametrize(
    ("workload", "faults", "message"),
    [
        (CAUSAL, {"missing": 1}, r"gave \[3, 3\] tokens where 2 x 4 were asked"),
        (CAUSAL, {"unticked": 2}, "took 2 steps to 4 tokens"),
        (SEQ2SEQ, {"missing": 1}, r"gave \[0, 0\] tokens where 2 x 1 were asked"),
    ],
)
def test_who_does_less_than_was_asked_fails(workload, faults: dict[str, int], message: str):
    with pytest.raises(KvcastError, match=message):
        workload.run(Scripted(**faults), workload.trials()[0])


class Clocked(Scripted):
    def generate(self, prompts, new, ticks):
        ticks.began = 1.0
        ticks.times[:] = [3.0, 4.0, 5.0, *(9.0 for _ in range(new - 3))]
        return [prompt[:1] * new for prompt in prompts]


def test_over_a_text_the_mean_counts_and_at_a_position_the_median(monkeypatch: pytest.MonkeyPatch):
    text, repeated, _ = CAUSAL.trials()
    for trial in (text, repeated):
        assert CAUSAL.run(Clocked(), trial) | {"tokens": 0} == {"first": 2, "step": 2, "tokens": 0}
    monkeypatch.setattr(causal, "STEPS_AT_POSITION", 3)
    _, _, far = CAUSAL.trials()
    assert CAUSAL.run(Clocked(), far)["step"] == 1


def test_a_repeated_prompt_says_its_first_eighth_again_and_again():
    asked = []

    class Asked(Clocked):
        def generate(self, prompts, new, ticks):
            asked.extend(prompts)
            return super().generate(prompts, new, ticks)

    CAUSAL.run(Asked(), CAUSAL.trials()[1] | {"prompt": 20})
    [prompt] = asked
    assert len(prompt) == 20
    assert prompt[3:] == prompt[:-3]
    assert len(set(prompt)) == 3


def test_a_target_is_asked_for_once_with_one_token_and_once_with_all():
    scripted = Scripted()
    answer = SEQ2SEQ.run(scripted, SEQ2SEQ.trials()[0])
    assert scripted.asked == [(3, 1), (3, 1), (3, 4)]
    assert answer["tokens"] == random_tokens(2, 5, TINY_T5.vocab_size)[0][:4]
    assert answer["step"] == (answer["whole"] - answer["first"]) / 3


def test_a_trial_that_is_asked_for_twice_is_done_once():
    both = replace(SEQ2SEQ, batch=[1], beam=[1, 2], lengths=[5, 9])
    trials = [(trial["rows"], trial["beams"], trial["source"]) for trial in both.trials()]
    assert trials == [(1, 1, 5), (1, 2, 5), (1, 1, 9)]


def test_random_tokens_are_the_same_for_everybody_and_for_any_number_of_rows():
    single, three = random_tokens(1, 8, 100), random_tokens(3, 8, 100)
    assert single == three[:1]
    assert len({tuple(row) for row in three}) == 3
    assert random_tokens(1, 4, 100)[0] == single[0][:4]
    assert max(max(row) for row in random_tokens(3, 8, 5)) < 5


def test_ticks_run_from_when_they_are_made():
    ticks = Ticks()
    ticks.tick()
    assert ticks.times[0] >= ticks.began


def test_rows_that_are_not_in_step_tick_when_the_last_has_its_token():
    ticks = Ticks()
    for texts, count in ([[1, 2], []], 0), ([[1, 2], [3]], 1), ([[1, 2], [3, 4]], 2):
        ticks.reach(texts)
        assert len(ticks.times) == count
