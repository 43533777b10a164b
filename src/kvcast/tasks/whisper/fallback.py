"""Decoding a window again, hotter, when the result looks wrong (openai/whisper, transcribe.py).

Knows nothing of recordings or of how a window is decoded.
"""

from dataclasses import dataclass

from kvcast.decoding.whisper import DecodingResult
from kvcast.tasks.params import TranscribeParams


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What counts as failed, and what as silence; None switches a threshold off."""

    compression_ratio: float | None = TranscribeParams.compression_ratio_threshold
    logprob: float | None = TranscribeParams.logprob_threshold
    no_speech: float | None = TranscribeParams.no_speech_threshold

    def rejection(self, result: DecodingResult) -> str | None:
        """Say why a result calls for another attempt; None accepts it."""
        improbable = self._is_improbable(result)
        if improbable and self._has_no_speech(result):
            return None
        reasons = []
        if self._repeats_itself(result):
            reasons.append(
                f"compression_ratio {result.compression_ratio:.2f} > {self.compression_ratio:g}"
            )
        if improbable:
            reasons.append(f"avg_logprob {result.avg_logprob:.2f} < {self.logprob:g}")
        return " and ".join(reasons) or None

    def is_silence(self, result: DecodingResult) -> bool:
        """Tell whether a window is to be skipped."""
        confident = self.logprob is not None and result.avg_logprob > self.logprob
        return self._has_no_speech(result) and not confident

    def _repeats_itself(self, result: DecodingResult) -> bool:
        limit = self.compression_ratio
        return limit is not None and result.compression_ratio > limit

    def _is_improbable(self, result: DecodingResult) -> bool:
        return self.logprob is not None and result.avg_logprob < self.logprob

    def _has_no_speech(self, result: DecodingResult) -> bool:
        return self.no_speech is not None and result.no_speech_prob > self.no_speech
