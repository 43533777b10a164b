"""A notice for a transcript of low average log-probability, as of a language the model lacks."""

from kvcast.transcripts.segments import Segment

_IMPROBABLE = -1.0
"""Average log-probability per token below which a notice reports the transcript.

Whisper tiny.en and base, over espeak-ng's voices of 4 languages at 120 to 220 words a minute and
read speech: in the spoken language -0.14 to -0.57, with noise at 5 dB down to -0.83, and base's
German and French down to -0.98; another language as English -2.7 to -4.7, but where base translates
(Spanish) or the text repeats itself, -0.7 to -0.9, which is not told.
"""


class Plausibility:
    """The mean log-probability of a recording's tokens so far.

    `advice`: what may be wrong with an improbable text; None if its probability tells nothing.
    """

    def __init__(self, advice: str | None) -> None:
        self._advice = advice
        self._logprob, self._tokens = 0.0, 0

    def add(self, segment: Segment) -> None:
        tokens = len(segment.tokens)
        self._logprob += segment.avg_logprob * tokens
        self._tokens += tokens

    @property
    def notices(self) -> tuple[str, ...]:
        if self._advice is None or not self._tokens:
            return ()
        mean = self._logprob / self._tokens
        if not mean < _IMPROBABLE:
            return ()
        return (f"the text is improbable (avg_logprob {mean:.2f}): {self._advice}",)
