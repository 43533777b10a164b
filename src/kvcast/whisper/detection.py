"""Detects the language: in the first 30 seconds, and further where these are doubtful.

Follows faster-whisper's detection over several windows. Knows no file formats and no runtime.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kvcast.engine.callers import Policy
from kvcast.speech.languages import LANGUAGES
from kvcast.speech.params import LanguageParams
from kvcast.speech.sound import Windows
from kvcast.whisper.requests import Features
from kvcast.whisper.segments import WINDOW_FRAMES
from kvcast.whisper.windows import WindowRequests


@dataclass(frozen=True, kw_only=True)
class DetectedLanguage:
    """The language of a recording.

    Attributes:
        language: code of the likeliest language.
        probabilities: of every language that the model knows, by code, likeliest first.
        windows: how many windows were listened to.
        notices: about the recording, for the user, one line each.

    """

    language: str
    probabilities: Mapping[str, float]
    windows: int
    notices: tuple[str, ...] = ()

    @property
    def probability(self) -> float:
        """Of the likeliest language."""
        return self.probabilities[self.language]

    @property
    def name(self) -> str:
        """Its English name."""
        return LANGUAGES[self.language].title()


def detect(
    requests: WindowRequests, recording: Windows, params: LanguageParams
) -> Policy[DetectedLanguage]:
    """Listen to windows of 30 seconds until one leaves no doubt; silent ones are passed over.

    A window leaves no doubt if a language is more probable than the threshold. If none does, the
    probabilities are the mean over the windows, weighted by how much sound they hold.

    Raises:
        UsageError: the model knows English only.

    """
    totals: Counter[str] = Counter()
    weight, windows = 0, 0
    seeks = _audible(recording)[: params.language_detection_segments]
    for windows, seek in enumerate(seeks, 1):
        frames = max(min(WINDOW_FRAMES, recording.content_frames - seek), 1)  # also of no speech
        features_mt = recording.window(seek) if seek else recording.first_window()
        probabilities = yield from requests.languages(Features(features_mt))
        if max(probabilities.values()) > params.language_detection_threshold:
            return _ranked(probabilities, windows, recording.notices)
        totals.update({code: frames * value for code, value in probabilities.items()})
        weight += frames
    mean = {code: total / weight for code, total in totals.items()}
    return _ranked(mean, windows, recording.notices)


def _audible(recording: Windows) -> list[int]:
    """Return the first frames of windows that are not silent; if all are, of the first."""
    seeks = range(0, recording.content_frames, WINDOW_FRAMES)
    return [seek for seek in seeks if not recording.is_silent(seek, seek + WINDOW_FRAMES)] or [0]


def _ranked(
    probabilities: Mapping[str, float], windows: int, notices: tuple[str, ...]
) -> DetectedLanguage:
    likeliest_first = sorted(probabilities, key=lambda code: -probabilities[code])
    return DetectedLanguage(
        language=likeliest_first[0],
        probabilities={code: probabilities[code] for code in likeliest_first},
        windows=windows,
        notices=notices,
    )
