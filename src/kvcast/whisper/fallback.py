"""Decoding a window again, hotter, when the result looks wrong (openai/whisper, transcribe.py).

A text that was stopped because it only repeats itself has failed, too. A threshold of None is
switched off. Knows no recordings and no decoding.
"""

from kvcast.speech.params import TranscribeParams
from kvcast.whisper.decoding import DecodingResult


def rejection(result: DecodingResult, params: TranscribeParams) -> str | None:
    """Return why a result calls for another attempt; None accepts it."""
    improbable = _is_improbable(result, params)
    if improbable and _has_no_speech(result, params):
        return None
    reasons = [] if result.repetition is None else [result.repetition]
    limit = params.compression_ratio_threshold
    if limit is not None and result.compression_ratio > limit:
        reasons.append(f"compression_ratio {result.compression_ratio:.2f} > {limit:g}")
    if improbable:
        reasons.append(f"avg_logprob {result.avg_logprob:.2f} < {params.logprob_threshold:g}")
    return " and ".join(reasons) or None


def is_silence(result: DecodingResult, params: TranscribeParams) -> bool:
    """Tell whether a window is to be skipped."""
    limit = params.logprob_threshold
    confident = limit is not None and result.avg_logprob > limit
    return _has_no_speech(result, params) and not confident


def _is_improbable(result: DecodingResult, params: TranscribeParams) -> bool:
    limit = params.logprob_threshold
    return limit is not None and result.avg_logprob < limit


def _has_no_speech(result: DecodingResult, params: TranscribeParams) -> bool:
    limit = params.no_speech_threshold
    return limit is not None and result.no_speech_prob > limit
