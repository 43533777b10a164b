"""Windows decoded in a batch are, recording by recording, those decoded one by one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.scripted_runtimes import ScriptedRuntime
from kit.scripted_whisper import NumberedWindows, place, tokenizer
from kvcast.engine.callers import Policy
from kvcast.engine.requests import OVER, Continuations, Prompt, Request
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import InputOutputError, UsageError
from kvcast.runtimes.base import Float32
from kvcast.speech.params import TranscribeParams
from kvcast.speech.recordings import ChunkWindow, cut_first_chunk, quiet_frame
from kvcast.speech.transcription import Transcription
from kvcast.transcripts.segments import Segment
from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.long_form import QuietEnd, WhisperPlan
from kvcast.whisper.requests import Features
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast.whisper.word_timestamps import Window

BEGIN = 50363


class PacedRequest(Request):
    """Takes so many steps."""

    def __init__(self, window: Features, steps: int) -> None:
        super().__init__(Prompt(np.zeros(1, np.int64), input=window), capacity=steps)
        self.left = steps

    def advance(self, logits_rv: Float32) -> Continuations:
        self.left -= 1
        return Continuations([0], [0], [0]) if self.left else OVER


def result(*tokens: int, **changes: Any) -> DecodingResult:
    usual = {"avg_logprob": 0.0, "no_speech_prob": 0.0, "temperature": 0.0}
    options = usual | {"compression_ratio": 1.0} | changes
    return DecodingResult(language="en", tokens=tokens, text="", **options)


@dataclass
class PacedDecoder:
    """A window's text and number of steps follow from its place."""

    most: int
    tokenizer: WhisperTokenizer = field(default_factory=tokenizer)

    def __post_init__(self) -> None:
        runtime = ScriptedRuntime(lambda *_: np.zeros(1, np.float32))
        self.scheduler = Scheduler(runtime, rows=self.most, capacity=448, inputs=self.most)

    def decode(
        self, window: Features, options: DecodingOptions, **_: Any
    ) -> Policy[DecodingResult]:
        first, length = place(window.features_mt)
        yield PacedRequest(window, 1 + first * 7 // 100 % 5)
        doubtful = first % 3 == 0 and options.temperature == 0
        tokens = (BEGIN, 1000 + first % 1000, BEGIN + 50, BEGIN + 50, 50 + length % 100)
        avg_logprob = -2.0 if doubtful else -0.1
        return result(*tokens, avg_logprob=avg_logprob, temperature=options.temperature)


ATTEMPTS = [DecodingOptions(temperature=t) for t in (0.0, 0.4)]


def together(
    recordings: Sequence[Any], batch: int | None, decoder: PacedDecoder
) -> list[Transcription]:
    return [
        transcription(decoder, lambda recording=recording: recording, batch, index)
        for index, recording in enumerate(recordings)
    ]


def transcription(
    decoder: PacedDecoder, opening: Callable[[], Any], batch: int | None, priority: int
) -> Transcription:
    params = TranscribeParams(batch=batch)
    plan = WhisperPlan(decoder, ATTEMPTS, params)
    return Transcription(decoder.scheduler, opening, plan, params=params, priority=priority)


def alone(content_frames: int, batch: int | None = 1) -> list[Segment]:
    [segments] = together([NumberedWindows(content_frames)], batch, PacedDecoder(batch or 1))
    return list(segments)


@given(lengths=st.lists(st.integers(1, 20_000), min_size=1, max_size=5), batch=st.integers(1, 5))
@settings(max_examples=40)
def test_each_recording_is_transcribed_as_alone(lengths: list[int], batch: int):
    recordings = [NumberedWindows(length) for length in lengths]
    decoder = PacedDecoder(batch)
    transcripts = [list(segments) for segments in together(recordings, batch, decoder)]
    assert transcripts == [alone(length) for length in lengths]
    assert decoder.scheduler.busy == []
    assert all(recording.closed for recording in recordings)
    for segments in transcripts:
        assert [segment.id for segment in segments] == list(range(len(segments)))
        starts = [segment.start for segment in segments]
        assert starts == sorted(starts)


def test_without_a_batch_recordings_follow_one_another():
    decoder = PacedDecoder(1)
    recordings = [NumberedWindows(4000), NumberedWindows(5000)]
    first, second = together(recordings, None, decoder)
    assert list(first) == alone(4000, None)
    assert list(second) == alone(5000, None)
    in_turn, batched = ({s.seek for s in alone(4000, batch)} for batch in (None, 1))
    assert in_turn != batched


def test_recordings_may_be_taken_in_any_order_and_by_turns():
    first, second = together([NumberedWindows(9000), NumberedWindows(7000)], 3, PacedDecoder(3))
    taken = [next(second), next(first), next(second)]
    assert [*taken[::2], *second] == alone(7000)
    assert [taken[1], *first] == alone(9000)


class Damaged(NumberedWindows):
    """Cannot be read behind its first minute."""

    def window(self, seek: int, end: int | None = None) -> Float32:
        if seek > 6000:
            raise InputOutputError("damaged")
        return super().window(seek, end)


@pytest.mark.parametrize("batch", [None, 1, 4])
def test_an_error_of_one_recording_is_its_own(batch: int | None):
    damaged = Damaged(15_000)
    decoder = PacedDecoder(batch or 1)
    recordings = [NumberedWindows(8000), damaged, NumberedWindows(9000)]
    first, second, third = together(recordings, batch, decoder)
    assert list(first) == alone(8000, batch)
    with pytest.raises(InputOutputError, match="damaged"):
        list(second)
    assert list(third) == alone(9000, batch)
    assert damaged.closed


def test_segments_before_an_error_are_yielded():
    [damaged] = together([Damaged(15_000)], None, PacedDecoder(1))
    segments: list[Segment] = []
    with pytest.raises(InputOutputError):
        segments.extend(iter(damaged))
    assert segments[-1].seek > 5000
    assert list(damaged) == segments


def test_one_that_cannot_be_opened_fails_when_it_is_taken():
    def missing() -> Any:
        raise InputOutputError("no such file")

    decoder = PacedDecoder(2)
    unopened = transcription(decoder, missing, 2, 0)
    other = transcription(decoder, lambda: NumberedWindows(400), 2, 1)
    assert list(other) == alone(400)
    with pytest.raises(InputOutputError, match="no such file"):
        next(unopened)


def test_one_that_is_closed_leaves_its_place_to_others():
    decoder = PacedDecoder(2)
    recording = NumberedWindows(30_000)
    first, second = together([recording, NumberedWindows(5000)], 2, decoder)
    taken = next(first)
    first.close()
    assert recording.closed
    assert decoder.scheduler.busy == []
    assert list(first) == [taken]
    assert list(second) == alone(5000)


def test_no_more_is_read_ahead_than_a_batch_needs():
    opened: list[int] = []

    class Counted(NumberedWindows):
        def window(self, seek: int, end: int | None = None) -> Float32:
            opened.append(seek)
            return super().window(seek, end)

    first, second = together([Counted(10**6), NumberedWindows(5000)], 2, PacedDecoder(2))
    assert list(second) == alone(5000)  # although nobody takes the first
    assert len(opened) == 8
    next(first)


@pytest.mark.parametrize("batch", [0, -1, 257, 1.5])
def test_an_impossible_batch_is_refused_in_one_line(batch: Any):
    with pytest.raises(UsageError, match="batch must be") as error:
        TranscribeParams(batch=batch)
    assert "\n" not in str(error.value)


@dataclass
class Recording:
    """A recording without silence; places that are negative are pauses."""

    audio_mt: np.ndarray

    def window(self, seek: int, end: int | None = None) -> Float32:
        found_mt = np.zeros((2, 3000), np.float32)
        part_mt = self.audio_mt[:, seek : seek + 3000 if end is None else min(end, seek + 3000)]
        found_mt[:, : part_mt.shape[1]] = part_mt
        return found_mt

    def is_silent(self, seek: int, end: int) -> bool:
        return False


def chunks(
    recording: Recording, clip: tuple[int, int], joints: Sequence[int] = ()
) -> list[ChunkWindow]:
    cut, (seek, end) = [], clip
    while seek < end:
        cut.append(cut_first_chunk(recording, (seek, end), joints))
        seek = cut[-1].end
    return cut


@given(
    clip=st.tuples(st.integers(0, 4000), st.integers(1, 12_000)),
    pauses=st.lists(st.integers(0, 15_000), max_size=8),
)
def test_chunks_have_no_gaps_and_fill_windows(clip: tuple[int, int], pauses: list[int]):
    start, end = clip[0], clip[0] + clip[1]
    audio_mt = np.ones((2, 16_000), np.float32)
    for pause in pauses:
        audio_mt[:, pause : pause + 40] = -1
    cut = chunks(Recording(audio_mt), (start, end))
    assert [chunk.first for chunk in cut] == [start, *(chunk.end for chunk in cut[:-1])]
    assert cut[-1].end == end
    for chunk in cut:
        assert 0 < chunk.end - chunk.first <= 2800
        assert chunk in cut[-2:] or chunk.end - chunk.first >= 1400
        assert len(cut) == 1 or chunk.end - chunk.first >= 800
        np.testing.assert_array_equal(
            chunk.window(chunk.first)[:, : chunk.end - chunk.first],
            audio_mt[:, chunk.first : chunk.end],
        )
        assert not chunk.window(chunk.first)[:, chunk.end - chunk.first :].any()
        later = chunk.window(chunk.end - 1, chunk.end)
        np.testing.assert_array_equal(later[:, 0], audio_mt[:, chunk.end - 1])
        assert not later[:, 1:].any()


def test_a_recording_is_cut_first_where_something_was_left_out():
    class PausesAnywhere(Recording):
        def window(self, seek: int, end: int | None = None) -> Float32:
            window_mt = np.ones((2, 3000), np.float32)
            window_mt[:, 2600:2640] = -1  # of every window, so quiet places are elsewhere
            return window_mt

    cut = chunks(PausesAnywhere(np.empty(0)), (0, 9000), joints=(500, 2050, 2250, 5010, 8500))
    assert [chunk.end for chunk in cut] == [2250, 5010, *(chunk.end for chunk in cut[2:])]
    assert all(chunk.end not in (500, 2050, 8500) for chunk in cut)
    assert not cut[0].window_mt[:, 2250:].any()


def test_a_window_is_cut_in_its_last_pause():
    window_mt = np.ones((4, 3000), np.float32)
    for pause in (500, 2100, 2600, 2850):
        window_mt[:, pause : pause + 50] = -1
    assert 2600 <= quiet_frame(window_mt, 1800, 2800) < 2650
    assert 2100 <= quiet_frame(window_mt, 1800, 2500) < 2150
    window_mt[:, 2600:2650] = 0.5  # quieter than words, and far louder than a pause
    assert 2100 <= quiet_frame(window_mt, 1800, 2800) < 2150


def test_a_text_that_has_ended_ends_with_its_chunk():
    ending, window = QuietEnd(BEGIN), Window(4000, 2500)
    cut = (BEGIN, 50, BEGIN + 40, BEGIN + 40, 51)
    assert ending.tokens(result(*cut), window) == (*cut, BEGIN + 1250)
    assert ending.tokens(result(*cut, complete=False), window) == cut
    assert ending.tokens(result(*cut[:3]), window) == cut[:3]
    assert ending.tokens(result(*cut[:4]), window) == cut[:3]
    assert ending.tokens(result(50, 51), window) == (50, 51)
    assert ending.tokens(result(), window) == ()


def test_segments_that_begin_in_a_chunk_are_finished_in_it():
    options = QuietEnd(BEGIN).options(DecodingOptions(), Window(4000, 2500))
    assert options.latest_start == 24
    eot = tokenizer().eot
    *_, rule = options.filters(tokenizer())
    latest, after = BEGIN + 1200, BEGIN + 1201
    ends = [(latest, latest), (after, after), (51, latest), (51, 52)]
    generated_rn = np.array([(BEGIN, 50, *end) for end in ends])
    logits_rv = np.zeros((4, 51864), np.float32)
    rule.apply(logits_rv, generated_rn)
    assert np.isneginf(logits_rv[:, eot]).tolist() == [True, False, False, False]
    assert np.isneginf(logits_rv).sum() == 1
    rule.apply(silent_rv := np.zeros((1, 51864), np.float32), np.array([[BEGIN]]))
    assert not silent_rv.any()
