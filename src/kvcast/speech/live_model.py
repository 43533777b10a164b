"""What models that transcribe share: sound that is still arriving, heard through a window.

Knows no model: which window hears, and how often it is worth a hypothesis, a subclass says.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from kvcast.engine.callers import Policy
from kvcast.options import keywords_of
from kvcast.speech.params import LiveParams

if TYPE_CHECKING:
    from kvcast.audio.vad import Listener
    from kvcast.speech.live import LiveTranscription
    from kvcast.speech.live_window import LiveWindow

Answer: TypeAlias = Callable[[Policy[Any]], Any]
"""Runs a policy about a window to its end, and returns its result."""


class LiveModel(ABC):
    """A model that may hear sound while it arrives."""

    @keywords_of(LiveParams)
    def live(
        self, listener: "Listener | None" = None, *, params: LiveParams
    ) -> "LiveTranscription":
        """Turn sound into text while it arrives.

        Args:
            listener: gives probabilities of speech; Silero's voice activity detection if it is
                installed, or else loudness, with a notice.
            params: given as keywords.

        Returns:
            A transcription to feed with sound: `feed` and `finish` return its updates.

        Raises:
            UsageError: for options that cannot be served, and of a model that hears whole excerpts
                alone.

        """
        from kvcast.audio.vad import Endpoints
        from kvcast.speech.live import LiveTranscription
        from kvcast.speech.voice import live_listener

        window = self.streaming_window(params)
        listener, notices = (listener, ()) if listener is not None else live_listener()
        endpoints = Endpoints(listener, threshold=params.vad_threshold, pause=params.pause)
        return LiveTranscription(window, endpoints, notices=(*notices, *window.notices))

    @abstractmethod
    def streaming_window(self, params: LiveParams, answer: Answer | None = None) -> "LiveWindow":
        """Return a window over a stream of sound.

        Args:
            params: options.
            answer: lets an engine answer what is asked of the model, where that is asked in
                policies; by default the window has rows of its own.

        Raises:
            UsageError: for options that cannot be served, and if the model hears whole excerpts
                alone.

        """
