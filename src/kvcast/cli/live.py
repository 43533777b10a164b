"""`kvcast transcribe --live -`: audio from standard input, text as it is confirmed.

A thread reads, so that audio which arrives meanwhile is decoded in one piece.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Protocol, Self

from typing_extensions import override

from kvcast.cli import console
from kvcast.cli.arguments import Heading, add_options, whole_number
from kvcast.cli.opening import STANDARD_INPUT, shown
from kvcast.errors import InputOutputError, UsageError
from kvcast.options import Params
from kvcast.speech.params import LIVE, LiveParams, TranscribeParams
from kvcast.transcripts.params import FOLDERS, SUBTITLES, FolderParams, SubtitleParams

if TYPE_CHECKING:
    from kvcast.speech.live import LiveSegment, LiveTranscription, Update

LIVE_FORMAT = "kvcast.live"
LIVE_VERSION = 1

SAMPLE_RATE = 16_000  # of raw PCM, if nothing else is said
_PIECE = 1 << 16  # as much as a pipe holds
_MOST_PILED_UP = 1 << 22  # bytes: two minutes of 16-bit audio at 16 kHz
_LATE = 10.0  # backlog of audio, in seconds, from which the user gets a warning

_BEHIND = (
    f"audio arrives faster than this machine decodes it: text is confirmed more than {_LATE:.0f} s "
    "late; a smaller model keeps up, or a larger --step"
)


def add_arguments(group: Heading) -> None:
    group.add_argument(
        "--live",
        action="store_true",
        help="transcribe audio while it arrives on standard input: raw PCM (16-bit little endian, "
        "one channel) or WAV",
    )
    group.add_argument(
        "--sample-rate",
        type=whole_number(1_000, 768_000),
        metavar="HZ",
        help=f"samples per second of raw PCM (default: {SAMPLE_RATE})",
    )
    shared = {option.name for option in TranscribeParams.declared()}
    add_options({LIVE: group}, LiveParams, leave_out=shared)


def check(args: argparse.Namespace) -> None:
    """Raise UsageError for options that make no sense live, or only live."""
    if not args.live:
        given = _given(args, LiveParams, LIVE)
        given += ["--sample-rate"] if args.sample_rate is not None else []
        if given:
            raise UsageError(f"{given[0]} needs --live")
        return
    if args.audio != [STANDARD_INPUT]:
        raise UsageError("--live reads standard input alone: give - and no file")
    if args.format not in {None, "text", "json"}:
        raise UsageError(f"--live prints text or JSON, not {args.format}")
    if args.output_dir is not None:
        raise UsageError("--live prints its text and saves none: drop --output-dir")
    if args.ray is not None:
        raise UsageError("--live runs on one machine: drop --ray")
    if folders := _given(args, FolderParams, FOLDERS):
        raise UsageError(f"--live reads no folder: drop {folders[0]}")
    if subtitles := _given(args, SubtitleParams, SUBTITLES):
        raise UsageError(f"--live prints no subtitles: drop {subtitles[0]}")


def _given(args: argparse.Namespace, params: type[Params], group: str) -> list[str]:
    """Return the flags of a group's options that were changed."""
    return [
        option.flags[0]
        for option in params.declared()
        if option.option.group == group
        and getattr(args, option.name) not in (option.default, None, [])
    ]


class Intake:
    """Reads a stream in a separate thread; pauses while too much of it is not yet taken."""

    def __init__(
        self, read: Callable[[int], bytes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin to read; `read` returns bytes as soon as there are some, none at the end."""
        self._read = read
        self._clock = clock
        # Reentrant, because a signal's handler calls `stop` in the thread that takes.
        self._changed = threading.Condition(threading.RLock())
        self._waiting: list[tuple[bytes, float]] = []
        self.was_stopped = False
        self._has_ended = False
        self._error: OSError | None = None
        # A daemon: a read that nobody ends does not keep the program from ending.
        threading.Thread(target=self._run, daemon=True, name="kvcast-intake").start()

    def take(self) -> list[tuple[bytes, float]]:
        """Return all waiting bytes, with the times of their arrival; none when it is over.

        Raises InputOutputError if the stream cannot be read, once all samples before were returned.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._has_ended or self.was_stopped)
            taken, self._waiting = self._waiting, []
            self._changed.notify_all()
        if not taken and self._error is not None:
            raise InputOutputError(f"standard input cannot be read: {self._error.strerror}")
        return taken

    def stop(self) -> None:
        """Read no more; samples that were read can still be taken."""
        with self._changed:
            self.was_stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while (data := self._read(_PIECE)) and not self.was_stopped:
                with self._changed:
                    self._waiting.append((data, self._clock()))
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self.was_stopped or not self._is_full)
        except OSError as error:
            self._error = error
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    @property
    def _is_full(self) -> bool:
        return sum(len(data) for data, _ in self._waiting) > _MOST_PILED_UP


class Screen(Protocol):
    def show(self, updates: "Sequence[Update]") -> None:
        """Show an update."""


class TextScreen(Screen):
    """Confirmed text, a line per utterance, for files and pipes."""

    def __init__(self) -> None:
        self._at_start = True

    @override
    def show(self, updates: "Sequence[Update]") -> None:
        for update in updates:
            text = update.settled.lstrip() if self._at_start else update.settled
            self._at_start = update.segment is not None or (self._at_start and not text)
            if update.segment is not None:
                text += "\n"
            if text:
                console.emit(text)


class JsonScreen(Screen):
    @override
    def show(self, updates: "Sequence[Update]") -> None:
        for update in updates:
            if update.segment is not None:
                console.emit(json.dumps(document(update.segment), ensure_ascii=False) + "\n")


class Terminal(Screen, AbstractContextManager["Terminal"]):
    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._line = ""

    @override
    def show(self, updates: "Sequence[Update]") -> None:
        from rich.text import Text

        interim = ""
        for update in updates:
            self._line += update.settled
            interim = update.interim
            if update.segment is not None:
                self._live.update("", refresh=True)
                self._console.print(Text(console.printable(self._line.strip())))
                self._line = ""
        confirmed = self._line.lstrip()
        grey = interim if confirmed else interim.lstrip()
        self._live.update(
            Text.assemble(console.printable(confirmed), (console.printable(grey), "bright_black")),
            refresh=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    @override
    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._line.strip():  # cut short: confirmed text stays
            console.emit(console.printable(self._line.strip()) + "\n")


def screen(*, as_json: bool) -> AbstractContextManager[Screen]:
    if as_json:
        return nullcontext(JsonScreen())
    return Terminal() if console.draws() else nullcontext(TextScreen())


def document(segment: "LiveSegment") -> dict[str, object]:
    return {
        "format": LIVE_FORMAT,
        "version": LIVE_VERSION,
        "id": segment.id,
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "delay": round(segment.delay, 3),
    }


def standard_input() -> Callable[[int], bytes]:
    """Return a reader of standard input; its buffer's lock would be in the way at exit."""
    descriptor = sys.stdin.fileno()
    return lambda most: os.read(descriptor, most)


def transcribe(
    live: "LiveTranscription", intake: Intake, *, sample_rate: int, as_json: bool, quiet: bool
) -> None:
    """Transcribe incoming audio until it ends or Ctrl-C is pressed; a second Ctrl-C interrupts."""
    from kvcast.speech.live import AudioStream

    if not quiet:
        for notice in live.notices:
            console.say(notice, about=shown(STANDARD_INPUT))
    warned = quiet
    audio = AudioStream(sample_rate)
    failure: InputOutputError | None = None
    with screen(as_json=as_json) as place, _stopped_by_interrupt(intake):
        try:
            for count, pieces in enumerate(iter(intake.take, [])):
                before = live.duration
                for data, at in pieces:
                    live.take(audio.feed(data), at)
                if count and not warned and live.duration - before > _LATE:
                    warned = True
                    console.say(_BEHIND, about=shown(STANDARD_INPUT))
                place.show(live.update())
            if live.duration or not intake.was_stopped:  # who stops at once has no empty input
                live.take(audio.finish())
        except console.OutputStreamError:
            raise
        except InputOutputError as error:
            failure = error
        place.show(live.finish())
    if failure is not None:
        raise failure
    if not quiet:
        for notice in audio.notices:
            console.say(notice, about=shown(STANDARD_INPUT))
        console.say(_summary(live), about=shown(STANDARD_INPUT))


def _summary(live: "LiveTranscription") -> str:
    delays = live.delays
    if not delays.count:
        return f"{live.duration:.1f} s of audio, no words"
    half, most = delays.quantile(0.5), delays.quantile(0.95)
    return (
        f"{live.duration:.1f} s of audio, {delays.count} words; delay until a word is confirmed: "
        f"median {half:.1f} s, 95% within {most:.1f} s, longest {delays.longest:.1f} s"
    )


@contextmanager
def _stopped_by_interrupt(intake: Intake) -> Iterator[None]:
    """Make the first Ctrl-C end the stream, further ones interrupt; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as handlers are called
        signal.signal(signal.SIGINT, before)
        intake.stop()

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
