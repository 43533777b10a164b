"""The streaming window: at most 30 s of audio, its confirmed words, and the current hypothesis.

Every hypothesis decodes the whole window, so that a word that was confirmed wrong does not mislead
later ones; only the words after the confirmed ones are new, so these never change or repeat. Audio
leaves with its words, at a boundary of segments, or else between two confirmed words.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.speech.live import ConfirmedWord
from kvcast.whisper.local_agreement import Place, StreamingPolicy, Unit, continued
from kvcast.whisper.tokenizer import SECONDS_PER_TIMESTAMP

STEP = 1.0  # seconds of new audio that are worth a hypothesis
LONGEST = 30 * SAMPLE_RATE  # samples of the encoder's window
_LONG = 15 * SAMPLE_RATE  # audio leaves with finished segments; as Macháček et al.
_LEAST_CUT = 1 * SAMPLE_RATE  # left on either side of a cut between words
_AFTER = 3 * SAMPLE_RATE // 10  # with less silence after it the last word is unreliable
_DOUBT = 25  # timestamps that the end of a word may be off by
_STAMP = round(SECONDS_PER_TIMESTAMP * SAMPLE_RATE)  # samples from one timestamp to the next


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A hypothesis: the text of the streaming window, as of one decoding."""

    units: Sequence[Unit]
    doubtful: bool = False  # looks like a failure, so that it confirms no word
    conditions_next: bool = True


class Recognizer(Protocol):
    """The model as a streaming window uses it."""

    @property
    def language(self) -> str:
        """Code of the language: the given one, or the last detected."""

    @property
    def room(self) -> int:
        """Most tokens of text and timestamps that a window can have."""

    def keep_language(self) -> None:
        """Stop detecting the language: words in it are confirmed."""

    def encoder_input(self, samples: NDArray[np.float32]) -> Any:
        """Return the decoder's input for up to 30 s of audio."""

    def decode(
        self, window: Any, *, prompt: Sequence[int], forced: Sequence[Unit], thoroughly: bool
    ) -> Hypothesis:
        """Decode the text after `forced`; `thoroughly` retries if it looks like a failure."""

    def places(self, window: Any, units: Sequence[Unit]) -> Sequence[Place]:
        """Return the place of each of these units, which are in order."""


class StreamingWindow:
    """A window that moves along the audio; see `LiveWindow`."""

    def __init__(
        self,
        recognizer: Recognizer,
        *,
        prompt: Sequence[int],
        conditions: bool,
        policy: StreamingPolicy,
        step: float = STEP,
        notices: tuple[str, ...] = (),
    ) -> None:
        self.step, self.notices = step, notices
        self.start = self.decoded_to = 0
        self._recognizer = recognizer
        self._prompt = list(prompt)
        self._conditions = conditions
        self._samples = np.empty(LONGEST, np.float32)
        self._length = 0
        self._confirmed: list[Unit] = []
        self._policy = policy
        self._unconfirmed: list[Unit]
        # Earlier hypotheses, as if they followed the confirmed words.
        self._former: list[list[Unit]]
        self._forget_hypotheses()
        self._proven = False  # whether a hypothesis covers all audio

    @property
    def end(self) -> int:
        return self.start + self._length

    @property
    def room(self) -> int:
        return 0 if self._crowded else LONGEST - self._length

    @property
    def language(self) -> str:
        return self._recognizer.language

    @property
    def unconfirmed(self) -> str:
        return "".join(unit.text for unit in self._unconfirmed)

    def append(self, samples: NDArray[np.float32]) -> None:
        self._samples[self._length : self._length + len(samples)] = samples
        self._length += len(samples)

    def keep_last(self, samples: int) -> None:
        self._drop(max(0, self._length - samples))
        self.decoded_to = max(self.decoded_to, self.start)

    def skip(self, samples: NDArray[np.float32], kept: int) -> None:
        over = max(0, len(samples) - kept)
        if over:
            self._drop(self._length)
            self.start += over
        self.append(samples[over:])
        self.keep_last(kept)

    def transcribe(self) -> list[ConfirmedWord]:
        hypothesis = self._hypothesis(thoroughly=False)
        if hypothesis.doubtful:
            return []
        hypotheses = [*self._former, self._unconfirmed, hypothesis.units]
        compared = hypotheses[-self._policy.compared :]
        count = self._policy.confirmed(compared, self._length // _STAMP)
        confirmed = self._confirm(hypothesis.units[:count])
        *self._former, self._unconfirmed = [list(units[count:]) for units in hypotheses[1:]]
        if self._length > _LONG:
            self._cut_after_segment()
        return confirmed

    def finish_utterance(self, speech_end: int) -> list[ConfirmedWord]:
        confirmed: list[ConfirmedWord] = []
        conditions_next = True
        while True:
            units: Sequence[Unit] = self._unconfirmed
            is_old = not self._proven or self.decoded_to < min(speech_end + _AFTER, self.end)
            if is_old or self._stops_within_confirmed(units):
                hypothesis = self._hypothesis(thoroughly=True)
                units, conditions_next = hypothesis.units, hypothesis.conditions_next
            confirmed_to = self._confirmed_to
            confirmed += self._confirm(units)
            self._forget_hypotheses()
            unfinished = units[-1].stamps[0] if units and units[-1].opens_nothing else 0
            rest = speech_end - (self.start + unfinished * _STAMP)
            if unfinished * _STAMP < _AFTER or unfinished < confirmed_to or rest < _AFTER:
                break
            # As in OpenAI's transcribe, a segment that begins without a word is not decoded yet.
            self._cut(len(self._confirmed), unfinished)
            self._proven = False
        self._forget(self._confirmed)
        if not conditions_next:
            self._prompt.clear()
        self._confirmed, self._proven = [], False
        return confirmed

    def _stops_within_confirmed(self, units: Sequence[Unit]) -> bool:
        """Return whether a hypothesis ended at a segment whose first words may be confirmed."""
        end = self._confirmed_end
        if end is None or not units or not units[-1].opens_nothing:
            return False
        return units[-1].stamps[0] <= end + _DOUBT

    def make_room(self) -> list[ConfirmedWord]:
        confirmed = self.transcribe()
        if self.room < _LEAST_CUT and not self._cut_after_segment():
            self._cut_between_words()
        if self.room >= _LEAST_CUT:
            return confirmed
        # As in OpenAI's transcribe, a full window is confirmed up to its last finished segment.
        if not self._proven:
            self._unconfirmed = list(self._hypothesis(thoroughly=True).units)
        if (last := self._last_boundary()) is not None:
            end, *own = self._unconfirmed[last].stamps
            confirmed += self._confirm([*self._unconfirmed[:last], Unit((end,), (), "")])
            self._unconfirmed = self._unconfirmed[last:]
            self._unconfirmed[0] = replace(self._unconfirmed[0], stamps=tuple(own))
            self._cut(len(self._confirmed), end)
        else:
            confirmed += self.finish_utterance(self.end)
            self.keep_last(0)
        return confirmed

    def _last_boundary(self) -> int | None:
        """Return the place of the last unconfirmed word before which to cut; None if there is none.

        Words in the window's last second may be misrecognized.
        """
        first = max(_AFTER // _STAMP, self._confirmed_to)
        sure = range(first, (self._length - _LEAST_CUT) // _STAMP)
        places = [
            place
            for place, unit in enumerate(self._unconfirmed)
            if unit.begins_segment and unit.stamps[0] in sure
        ]
        return places[-1] if places else None

    @property
    def _confirmed_to(self) -> int:
        """Timestamp before which all confirmed words end, if known."""
        return max(0, (self._confirmed_end or 0) - _DOUBT)

    @property
    def _confirmed_end(self) -> int | None:
        """Timestamp, in doubt, at which the last confirmed word ends; None if unknown."""
        ends = [unit.place.end for unit in self._confirmed if unit.place is not None]
        return ends[-1] if ends else None

    @property
    def _crowded(self) -> bool:
        """Whether the confirmed words leave the decoder little room for more."""
        tokens = sum(len(unit.stamps) + len(unit.tokens) for unit in self._confirmed)
        return tokens > self._recognizer.room // 2

    def _hypothesis(self, *, thoroughly: bool) -> Hypothesis:
        window = self._recognizer.encoder_input(self._samples[: self._length])
        self.decoded_to = self.end
        hypothesis = self._decode(window, forced=(), thoroughly=thoroughly)
        if thoroughly or not hypothesis.doubtful:
            count = continued(self._confirmed, hypothesis.units)
            if count is None or (thoroughly and self._adds_nothing(hypothesis.units[count:])):
                # It differs, or may have stopped before the end of the confirmed words.
                hypothesis = self._decode(window, forced=self._confirmed, thoroughly=thoroughly)
            else:
                hypothesis = replace(hypothesis, units=hypothesis.units[count:])
        self._proven = thoroughly or not hypothesis.doubtful
        return hypothesis

    def _adds_nothing(self, units: Sequence[Unit]) -> bool:
        return bool(self._confirmed) and not any(unit.tokens for unit in units)

    def _decode(self, window: Any, *, forced: Sequence[Unit], thoroughly: bool) -> Hypothesis:
        """Decode the text after the known units, with places if the policy uses them."""
        hypothesis = self._recognizer.decode(
            window, prompt=self._prompt, forced=forced, thoroughly=thoroughly
        )
        is_failure = hypothesis.doubtful and not thoroughly  # none of its words is confirmed
        if is_failure or not any(unit.tokens for unit in hypothesis.units):
            return hypothesis
        places = self._recognizer.places(window, [*forced, *hypothesis.units])[len(forced) :]
        placed = zip(hypothesis.units, places, strict=True)
        return replace(hypothesis, units=[replace(unit, place=place) for unit, place in placed])

    def _confirm(self, units: Sequence[Unit]) -> list[ConfirmedWord]:
        confirmed = list(map(self._as_confirmed, units))
        if any(word.text for word in confirmed):
            self._recognizer.keep_language()
        self._confirmed += units
        return confirmed

    def _as_confirmed(self, unit: Unit) -> ConfirmedWord:
        # The model may put an end after the last audio.
        at = [min(self.start + stamp * _STAMP, self.end) for stamp in unit.stamps]
        times = [samples / SAMPLE_RATE for samples in at]
        ended = times[0] if unit.begins_segment or not unit.tokens else None
        started = times[-1] if times and unit.tokens else None
        end = None if unit.place is None else self.start + unit.place.end * _STAMP
        return ConfirmedWord(
            text=unit.text,
            tokens=unit.tokens,
            ended=ended,
            started=started,
            spoken=None if end is None else end / SAMPLE_RATE,
        )

    def _cut_after_segment(self) -> bool:
        begins = [
            i for i, unit in enumerate(self._confirmed) if unit.begins_segment and unit.tokens
        ]
        if not begins:
            return False
        stamp = self._confirmed[begins[-1]].stamps[0]
        if stamp * _STAMP < _LEAST_CUT:
            return False
        self._cut(begins[-1], stamp)
        return True

    def _cut_between_words(self) -> None:
        """Drop about half of the confirmed words, if there are any."""
        half = len(self._confirmed) // 2
        if not half:
            return
        place = self._confirmed[half - 1].place
        if place and _LEAST_CUT <= place.end * _STAMP <= self._length - _LEAST_CUT:
            self._cut(half, place.end)

    def _cut(self, count: int, stamp: int) -> None:
        """Drop the first confirmed words, and the audio before a timestamp."""
        self._forget(self._confirmed[:count])
        confirmed = [unit.later(stamp) for unit in self._confirmed[count:]]
        if confirmed:  # the window now begins with its first word
            confirmed[0] = replace(confirmed[0], stamps=confirmed[0].stamps[-1:] or (0,))
        self._confirmed = confirmed
        self._unconfirmed = [unit.later(stamp) for unit in self._unconfirmed]
        self._drop(stamp * _STAMP)

    def _drop(self, samples: int) -> None:
        samples = min(samples, self._length)
        self._samples[: self._length - samples] = self._samples[samples : self._length].copy()
        self._length -= samples
        self.start += samples

    def _forget_hypotheses(self) -> None:
        self._unconfirmed = []
        self._former = [[] for _ in range(self._policy.compared - 2)]

    def _forget(self, units: Sequence[Unit]) -> None:
        """Append words that leave to the prompt, and keep as much of its end as is ever used."""
        if not self._conditions:
            self._prompt.clear()
            return
        self._prompt += [token for unit in units for token in unit.tokens]
        del self._prompt[: -self._recognizer.room]
