"""Options of voice activity detection, which `kvcast.audio.vad` applies."""

from dataclasses import dataclass

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.options import Group, Params

VOICE = Group("voice activity")


@dataclass(frozen=True, kw_only=True)
class VoiceParams(Params):
    """Voice activity: the speech in a recording.

    The defaults are faster-whisper's, not Silero's, which suit short commands: Whisper takes
    pauses for ends of sentences, misses a soft first or last phoneme without some silence around
    speech, and loses context at every cut. So only long silences are worth leaving out.
    """

    vad: bool = VOICE(False)(
        "transcribe only what Silero's voice activity detection takes for speech; needs kvcast[vad]"
    )
    vad_threshold: float = VOICE(0.5, above=0, most=1, metavar="P")(
        "probability from which on a moment is speech, which goes on while it stays "
        "above 0.15 less; needs vad, unless live"
    )
    min_silence: float = VOICE(2.0, least=0, metavar="SECONDS")(
        "seconds without speech that are left out; shorter pauses stay; needs vad"
    )
    speech_pad: float = VOICE(0.4, least=0, metavar="SECONDS")(
        "seconds that stay before and after speech; needs vad"
    )
    max_speech: float | None = VOICE(None, least=1, metavar="SECONDS", shown="any length")(
        "most seconds of speech in one piece, its padding included; longer ones are cut "
        "at their longest pause; needs vad"
    )

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_speech is not None and self.max_speech <= 2 * self.speech_pad:
            raise UsageError(
                f"max_speech must be more than twice speech_pad {self.speech_pad:g}, "
                f"not {self.max_speech:g}"
            )
