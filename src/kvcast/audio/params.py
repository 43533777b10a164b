"""Options of voice activity detection: names, types, defaults and meanings.

`kvcast.audio.vad` applies them. Knows no library of numbers, so that the command line can show its
help at once.
"""

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.options import Bounds, Option, Params

VOICE = "voice activity"


@dataclass(frozen=True, kw_only=True)
class VoiceParams(Params):
    """Voice activity: the speech in a recording.

    The defaults are faster-whisper's, not Silero's own, which suit short commands: Whisper reads
    pauses as the ends of sentences, hears a soft first or last sound only if some silence around
    speech stays, and every cut costs it context. So only long silences are worth leaving out.
    """

    vad: Annotated[
        bool,
        Option(
            group=VOICE,
            help="transcribe only what Silero's voice activity detection takes for speech; needs "
            "kvcast[vad]",
        ),
    ] = False
    vad_threshold: Annotated[
        float,
        Option(
            group=VOICE,
            help="probability from which on a moment is speech, which goes on while it stays "
            "above 0.15 less; needs vad, unless live",
            check=Bounds(above=0, most=1),
            metavar="P",
        ),
    ] = 0.5
    min_silence: Annotated[
        float,
        Option(
            group=VOICE,
            help="seconds without speech that are left out; shorter pauses stay; needs vad",
            check=Bounds(least=0),
            metavar="SECONDS",
        ),
    ] = 2.0
    speech_pad: Annotated[
        float,
        Option(
            group=VOICE,
            help="seconds that stay before and after speech; needs vad",
            check=Bounds(least=0),
            metavar="SECONDS",
        ),
    ] = 0.4
    max_speech: Annotated[
        float | None,
        Option(
            group=VOICE,
            help="most seconds of speech in one piece, its padding included; longer ones are cut "
            "at their longest pause; needs vad",
            check=Bounds(least=1),
            metavar="SECONDS",
            default="any length",
        ),
    ] = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_speech is not None and self.max_speech <= 2 * self.speech_pad:
            raise UsageError(
                f"max_speech must be more than twice speech_pad {self.speech_pad:g}, "
                f"not {self.max_speech:g}"
            )
