"""Channels of a call are transcribed one by one, and their segments interleaved by time."""

import io

import numpy as np
import pytest
import soundfile

import kvcast
from kit.recordings import Load, Samples
from kvcast.errors import UsageError
from kvcast.transcripts.params import SubtitleParams
from kvcast.transcripts.writers import STREAMED


@pytest.fixture(scope="module")
def call(recordings: dict[str, Samples]) -> Samples:
    """Two speakers, [samples, channels]: the second answers the first."""
    speech = recordings["example"]
    first, second = speech[: 6 * 16_000], speech[6 * 16_000 : 12 * 16_000]
    quiet = np.zeros(6 * 16_000, np.float32)
    return np.stack([np.concatenate([first, quiet]), np.concatenate([quiet, second])], axis=1)


def texts(segments: list[kvcast.Segment], channel: int) -> str:
    return "".join(segment.text for segment in segments if segment.channel == channel)


@pytest.fixture(scope="module")
def alone(load: Load, call: Samples) -> list[str]:
    """The text of each channel, transcribed as a separate recording."""
    return [
        "".join(segment.text for segment in load("demo").transcribe(samples, temperature=0.0))
        for samples in call.T
    ]


@pytest.mark.parametrize("source", ["array", "pipe"])
def test_each_channel_is_transcribed_as_alone(load: Load, call: Samples, alone, source: str):
    model = load("demo")
    file = io.BytesIO()
    soundfile.write(file, call, 16_000, "FLOAT", format="WAV")
    file.seekable = lambda: False  # type: ignore[method-assign]
    file.seek(0)
    transcription = model.transcribe(
        call if source == "array" else file, channels="split", temperature=0.0
    )
    with transcription:
        segments = list(transcription)
        assert transcription.duration == 12.0
        assert transcription.notices == ()
        assert transcription.language == "en"
    assert [segment.id for segment in segments] == list(range(len(segments)))
    assert [s.start for s in segments] == sorted(s.start for s in segments)
    assert all(s.words is None for s in segments)
    assert min(s.start for s in segments if s.channel == 2) > 5.5  # nobody speaks before
    assert min(map(len, alone)) > 20
    assert [texts(segments, channel) for channel in (1, 2)] == alone


def test_notices_name_the_silent_channel_and_the_file_once(load, call, tmp_path):
    path = tmp_path / "call.wav"
    soundfile.write(path, np.stack([call[:, 0], 0 * call[:, 0]], axis=1), 16_000)
    path.write_bytes(path.read_bytes()[:-4_000])
    with load("demo").transcribe(path, channels="split", temperature=0.0) as transcription:
        assert {segment.channel for segment in transcription} == {1}
        cut, silent = transcription.notices
    assert "call.wav is cut short" in cut
    assert "call.wav, channel 2, is silent" in silent


def test_an_engine_refuses_to_split(load: Load, call: Samples):
    with (
        kvcast.Engine(load("demo"), rows=1) as engine,
        pytest.raises(UsageError, match="an engine mixes channels"),
    ):
        engine.submit(call, channels="split").result()


class Spoken:
    """The fields of a segment that formats use."""

    words = None
    has_times = True

    def __init__(self, start: float, end: float, text: str, channel: int | None) -> None:
        self.start, self.end, self.text, self.channel = start, end, text, channel


@pytest.mark.parametrize("form", STREAMED)
def test_every_line_and_cue_has_its_channel_and_times(form: str):
    segments = [Spoken(0, 4, " Hello.", 1), Spoken(2, 3, " Yes?", 2), Spoken(5, 6, " So.", 1)]
    for options in {}, {"max_words_per_line": 1}, {"highlight_words": True}:
        if options and form in {"text", "tsv"}:
            continue
        written = "".join(STREAMED[form](segments, SubtitleParams(**options)))
        for label in "[1] Hello.", "[2] Yes?", "[1] So.":
            assert label in written.replace("<u>", "").replace("</u>", "").replace(
                "{\\u1}", ""
            ).replace("{\\u0}", "")
    if form == "srt":
        assert "00:00:02,000 --> 00:00:03,000" in written


def test_without_channels_there_is_no_label():
    [line] = STREAMED["text"]([Spoken(0, 4, " Hello.", None)], SubtitleParams())
    assert line == "Hello.\n"
