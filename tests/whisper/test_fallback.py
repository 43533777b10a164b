"""Which results are rejected, and with what reason."""

import pytest

from kvcast.speech.params import TranscribeParams
from kvcast.whisper.decoding import DecodingResult
from kvcast.whisper.long_form import rejection


def result(
    avg_logprob: float = -0.3,
    compression_ratio: float = 1.5,
    no_speech_prob: float = 0.1,
    temperature: float = 0.0,
    repetition: str | None = None,
) -> DecodingResult:
    return DecodingResult(
        language="en",
        tokens=(1,),
        text="a",
        avg_logprob=avg_logprob,
        no_speech_prob=no_speech_prob,
        temperature=temperature,
        compression_ratio=compression_ratio,
        repetition=repetition,
    )


@pytest.mark.parametrize(
    ("decoded", "reason"),
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
        (result(repetition='repeats " a" 60 times'), 'repeats " a" 60 times'),
        (
            result(repetition='repeats " a" 60 times', compression_ratio=9),
            'repeats " a" 60 times and compression_ratio 9.00 > 2.4',
        ),
    ],
)
def test_a_rejection_says_why(decoded: DecodingResult, reason: str | None):
    assert rejection(decoded, TranscribeParams()) == reason
