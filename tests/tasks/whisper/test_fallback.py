"""Which results are rejected, and with what reason."""

import pytest

from kvcast.decoding.whisper import DecodingResult
from kvcast.tasks.whisper.fallback import Thresholds


def result(
    avg_logprob: float = -0.3,
    compression_ratio: float = 1.5,
    no_speech_prob: float = 0.1,
    temperature: float = 0.0,
) -> DecodingResult:
    return DecodingResult(
        language="en",
        tokens=(1,),
        text="a",
        avg_logprob=avg_logprob,
        no_speech_prob=no_speech_prob,
        temperature=temperature,
        compression_ratio=compression_ratio,
    )


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (result(), None),
        (result(compression_ratio=2.4), None),
        (result(compression_ratio=2.416), "compression_ratio 2.42 > 2.4"),
        (result(avg_logprob=-1.0), None),
        (result(avg_logprob=-1.25), "avg_logprob -1.25 < -1"),
        (
            result(avg_logprob=-1.25, compression_ratio=9),
            "compression_ratio 9.00 > 2.4 and avg_logprob -1.25 < -1",
        ),
        # Improbable and without speech is silence, which no temperature can mend.
        (result(avg_logprob=-1.25, no_speech_prob=0.61), None),
        (result(avg_logprob=-1.25, no_speech_prob=0.61, compression_ratio=9), None),
        (result(avg_logprob=-1.25, no_speech_prob=0.6), "avg_logprob -1.25 < -1"),
        (result(compression_ratio=9, no_speech_prob=0.99), "compression_ratio 9.00 > 2.4"),
    ],
)
def test_a_rejection_says_why(found: DecodingResult, reason: str | None):
    assert Thresholds().rejection(found) == reason


def test_thresholds_can_be_switched_off_each():
    bad = result(avg_logprob=-9, compression_ratio=9, no_speech_prob=0.9)
    assert Thresholds(no_speech=None, logprob=None).rejection(bad) == "compression_ratio 9.00 > 2.4"
    by_probability = Thresholds(no_speech=None, compression_ratio=None)
    assert by_probability.rejection(bad) == "avg_logprob -9.00 < -1"
    assert Thresholds(logprob=None, compression_ratio=None).rejection(bad) is None


@pytest.mark.parametrize(
    ("thresholds", "found", "silent"),
    [
        (Thresholds(), result(no_speech_prob=0.7, avg_logprob=-1.0), True),
        (Thresholds(), result(no_speech_prob=0.7, avg_logprob=-0.99), False),
        (Thresholds(), result(no_speech_prob=0.6, avg_logprob=-2), False),
        (Thresholds(logprob=None), result(no_speech_prob=0.7), True),
        (Thresholds(no_speech=None), result(no_speech_prob=1.0, avg_logprob=-9), False),
    ],
)
def test_silence_is_improbable_text_where_nobody_speaks(
    thresholds: Thresholds, found: DecodingResult, silent: bool
):
    assert thresholds.is_silence(found) == silent
