"""Windows of one or more recordings, decoded together over one cache.

Passages come and go: when one ends, the next takes its place while the others go on. Recordings
are served in the order in which they were added. Knows no sound and no segments.
"""

from abc import ABC, abstractmethod
from threading import RLock
from typing import Any, Protocol

from kvcast.whisper.decoding import Job, WindowDecoder


class Series(Protocol):
    """Jobs of which each follows from the result of the one before."""

    @property
    def over(self) -> bool:
        """Whether there is no more to be done."""

    def next(self) -> Job:
        """Return what is to be done next, if it is not over."""

    def take(self, result: Any) -> None:
        """Take what came of it."""


class Recording(ABC):
    """What gives passages."""

    @abstractmethod
    def passage(self) -> Series | None:
        """Return the next passage; None if there is none, or none that should be begun yet."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Take an error that concerns this recording alone."""


class Batch:
    """Passages under way, as many as fit. Recordings may be taken by several threads."""

    def __init__(self, decoder: WindowDecoder, size: int) -> None:
        """Prepare to decode `size` passages at once with a decoder for as many windows."""
        self.decoder = decoder
        self.size = size
        self._lock = RLock()
        self._recordings: list[Recording] = []
        self._waiting: list[tuple[Recording, Series]] = []
        self._under_way: dict[Job, tuple[Recording, Series]] = {}

    def add(self, recording: Recording) -> None:
        """Let a recording take part, after those that were added before."""
        with self._lock:
            self._recordings.append(recording)

    def begin(self, recording: Recording, passage: Series) -> None:
        """Let a passage have the next row that is free, before all that are not begun."""
        with self._lock:
            self._go_on(recording, passage)

    def remove(self, recording: Recording) -> None:
        """Stop a recording; nothing happens if it does not take part."""
        with self._lock:
            self._recordings = [one for one in self._recordings if one is not recording]
            self._waiting = [pair for pair in self._waiting if pair[0] is not recording]
            for job in [job for job, (one, _) in self._under_way.items() if one is recording]:
                del self._under_way[job]
                self.decoder.cancel(job)

    def step(self) -> None:
        """Fill what is free, and take everything a token further."""
        with self._lock:
            self._step()

    def in_turn(self) -> list[Recording]:
        """Return the recordings, in the order in which they are asked for a passage."""
        return list(self._recordings)

    @property
    def under_way(self) -> list[Recording]:
        """The recordings of the passages that are decoded now."""
        return [recording for recording, _ in self._under_way.values()]

    def _step(self) -> None:
        waiting, self._waiting = self._waiting, []
        for recording, passage in waiting:
            if recording in self._recordings:  # and has not failed meanwhile
                self._go_on(recording, passage)
        while len(self._under_way) < self.size and self._begin():
            pass
        for job, result in self.decoder.step():
            recording, passage = self._under_way.pop(job)
            passage.take(result)
            if not passage.over:
                # The next window is read when somebody asks for more.
                self._waiting.append((recording, passage))

    def _begin(self) -> bool:
        """Begin a passage of the first recording that has one; tell whether there was one."""
        for recording in self.in_turn():
            try:
                passage = recording.passage()
            except Exception as error:
                self.remove(recording)
                recording.fail(error)
                return True
            if passage is not None:
                self._go_on(recording, passage)
                return True
        return False

    def _go_on(self, recording: Recording, passage: Series) -> None:
        try:
            job = passage.next()
            self.decoder.submit(job)
        except Exception as error:
            self.remove(recording)
            recording.fail(error)
        else:
            self._under_way[job] = recording, passage
