"""Policies of live transcription: which words of a hypothesis are settled.

`AlignAtt` settles what the model attends to well before the end of the sound, `LocalAgreement` what
several hypotheses begin with. Knows no model, and no sound but its length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from typing import Protocol

from typing_extensions import override

from kvcast.whisper.agreement import Unit, agreed
from kvcast.whisper.token_times import FRAMES_PER_SECOND

_FRESH = 2 * FRAMES_PER_SECOND
"""Words this near to the sound's end do not settle by agreement: later sound may change them."""

_UNSURE = 0.5
"""Less probable words do not settle while they lie within `_UNSURE_FOR` of the sound's end."""

_UNSURE_FOR = 5 * FRAMES_PER_SECOND

_SURE = 0.9
"""Words of this probability are hardly ever heard in another way later."""

_WAITS = (
    (0.5, 3 * FRAMES_PER_SECOND // 2),
    (0.25, 3 * FRAMES_PER_SECOND),
    (0.0, 5 * FRAMES_PER_SECOND),
)
"""From which probability on, how long words wait on which two hypotheses agree."""

AGREEMENT = 2
"""Hypotheses that must agree where attention tells nothing, as Macháček et al. found best."""


class SettlingPolicy(Protocol):
    """Decides which words of hypotheses stand, whatever sound is still to come."""

    @property
    def compared(self) -> int:
        """How many successive hypotheses it compares, 1 or more."""

    def settled(self, hypotheses: Sequence[Sequence[Unit]], length: int) -> int:
        """Return how many words at the beginning of the last hypothesis stand.

        Args:
            hypotheses: as many as are compared, of ever more sound; all follow the settled words.
                Only the last one's places count from the window's beginning.
            length: of the window's sound, in steps of 20 ms.

        """


@dataclass(frozen=True)
class LocalAgreement(SettlingPolicy):
    """Words that successive hypotheses begin with, and that some sound follows.

    LocalAgreement-n of Macháček, Dabre and Bojar, "Turning Whisper into Real-Time Transcription
    System" (arXiv:2307.14743).
    """

    hypotheses: int

    @property
    @override
    def compared(self) -> int:
        return self.hypotheses

    @override
    def settled(self, hypotheses: Sequence[Sequence[Unit]], length: int) -> int:
        def stands(unit: Unit) -> bool:
            place = unit.place
            if place is None:
                return False
            after = _FRESH if place.probability >= _UNSURE else _UNSURE_FOR
            return length - place.end >= after

        agreed_on = hypotheses[-1][: agreed(hypotheses)]
        return sum(1 for _ in takewhile(stands, agreed_on))


@dataclass(frozen=True)
class AlignAtt(SettlingPolicy):
    """Words that attend to sound before the last moments, if the model is sure of them.

    Papi, Turchi and Negri, "AlignAtt: Using Attention-based Audio-Translation Alignments as a Guide
    for Simultaneous Speech Translation" (arXiv:2305.11408). Small models hear improbable words in
    another way when more sound follows. So these wait until a sure word follows, or until two
    hypotheses agree on them and some time has passed, the more the less probable they are.

    Attributes:
        margin: the last moments, in steps of 20 ms.

    """

    margin: int

    @property
    @override
    def compared(self) -> int:
        return 2

    @override
    def settled(self, hypotheses: Sequence[Sequence[Unit]], length: int) -> int:
        latest = hypotheses[-1]
        alike = agreed(hypotheses)
        count = 0
        for unit, following in zip_longest(latest, latest[1:]):
            if unit.place is None or not unit.tokens:
                break
            past = length - unit.place.attended
            followed = past >= 2 * self.margin and self._is_sure(following, length)
            waits = next(frames for least, frames in _WAITS if unit.place.probability >= least)
            agreed_on = count < alike and past >= max(waits, self.margin)
            if not (followed or agreed_on or self._is_sure(unit, length)):
                break
            count += 1
        return count

    def _is_sure(self, unit: Unit | None, length: int) -> bool:
        """Tell whether a word is probable and attends to sound before the last moments."""
        if unit is None or unit.place is None or not unit.tokens:
            return False
        place = unit.place
        return place.probability >= _SURE and length - place.attended >= self.margin
