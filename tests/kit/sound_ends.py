"""openai-whisper's segments, whose times may pass the sound, as kvcast ends them."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

from kvcast.transcripts.segments import Word
from kvcast.whisper.segments import WINDOW_FRAMES, Span, within


def ending_with_sound(
    segments: Sequence[dict[str, Any]], content_frames: int, clips: Sequence[float] = (0.0,)
) -> list[dict[str, Any]]:
    """Segments with text, of clips as `clip_timestamps` has them."""
    frames = [round(100 * bound) for bound in clips]
    frames += [content_frames] * (len(frames) % 2)
    bounds = list(pairwise(frames))[::2]
    ending = []
    for seek, window in groupby(segments, itemgetter("seek")):
        last = next((end for first, end in bounds if first <= seek < end), content_frames)
        end = min(seek + WINDOW_FRAMES, last, content_frames) / 100
        spoken = [segment for segment in window if segment["text"]]
        spans = within([_span(segment) for segment in spoken], end)
        for segment, span in zip(spoken, spans, strict=True):
            times = {"start": span.start, "end": span.end}
            words = [vars(word) for word in span.words or ()]
            ending.append(segment | times | ({"words": words} if "words" in segment else {}))
    return ending


def _span(segment: dict[str, Any]) -> Span:
    words = tuple(Word(**word) for word in segment.get("words", ()))
    return Span(segment["start"], segment["end"], tuple(segment["tokens"]), words)
