"""Times of frames of sound in a container: how much is missing before each.

Containers round times, clocks of recorders drift, a damaged time is of no use, and where
recordings were joined times begin anew. Knows no library.
"""

_GAP = 0.1
"""Seconds: clocks of recorders and of containers are less apart."""

_BACK = 1.0
"""Seconds: where times run back by more, they begin anew."""

_LONGEST_GAP = 3600.0
"""Seconds: where times run ahead by more, they begin anew."""

_EXACT = 0.004
"""Seconds: containers round times to milliseconds, or thirds of them."""

_FIRST_FRAMES = 10
"""The first ones of some codecs come late."""


class FrameClock:
    """Follows the times of frames that are put one behind another."""

    position: float
    """Seconds of sound and of gaps until now."""

    def __init__(self, origin: float | None, *, is_damaged: bool) -> None:
        """Begin.

        Args:
            origin: time at which the recording begins; by default that of its first frame.
            is_damaged: it is known that frames are missing, so small gaps count.

        """
        self.position = 0.0
        self._origin = origin
        self._is_damaged = is_damaged
        self._expected: float | None = None  # time of the next frame
        self._is_exact = True
        self._frames = 0

    @property
    def time(self) -> float:
        """The position, as the container counts."""
        return (self._origin or 0.0) + self.position

    def doubt(self) -> None:
        """Take times for inexact: they are not those of frames."""
        self._is_exact = False

    def gap_before(self, time: float | None, lasts: float, following: float | None) -> float:
        """Return the seconds without sound before a frame, and move behind them and it.

        Args:
            time: of the frame, if it has one.
            lasts: its seconds.
            following: time of the next frame, if there is one that has one.

        """
        gap = 0.0 if time is None else self._gap(time, lasts, following)
        self.position += gap + lasts
        return gap

    def _gap(self, time: float, lasts: float, following: float | None) -> float:
        if self._origin is None:
            self._origin = time
        gap = time - self.time
        is_far = gap >= _GAP or gap <= -_BACK
        if is_far and following is not None and abs(following - time) > abs(following - self.time):
            return 0.0  # the next frame continues, so this time is damaged
        jump = self._jump(time, lasts)
        if not -_BACK < gap <= _LONGEST_GAP:
            self._origin = time - self.position
            return 0.0
        return gap if gap >= _GAP else min(jump, max(gap, 0.0))

    def _jump(self, time: float, lasts: float) -> float:
        """Return the seconds that a frame surely comes too late after the one before it.

        Where times were exact until now, those are whole frames; clocks are less exact.
        """
        expected, self._expected = self._expected, time + lasts
        if expected is None:
            return 0.0
        ahead = time - expected
        self._is_exact &= abs(ahead - max(round(ahead / lasts), 0) * lasts) < _EXACT
        self._frames += 1
        is_sure = self._is_exact and self._frames > _FIRST_FRAMES
        return ahead if (is_sure or self._is_damaged) and ahead > lasts / 2 else 0.0
