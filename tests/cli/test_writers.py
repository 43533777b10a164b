import io
import json
import math
import os
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.fakes import SEGMENTS, schema, segment
from kvcast.audio.timeline import Part
from kvcast.transcripts.params import SubtitleParams
from kvcast.transcripts.segments import Segment, Word
from kvcast.transcripts.writers import STREAMED, TranscriptDocument, render

SCHEMA = schema("transcript")
TRANSCRIPT = TranscriptDocument(
    source="talk.wav",
    model="demo",
    runtime="onnx",
    task="transcribe",
    language="en",
    duration=3661.25,
    notices=("quiet in here",),
    segments=SEGMENTS,
)
times = st.floats(min_value=0, max_value=400_000)
# What would break a cue or a row is written otherwise: see tests/transcripts/test_subtitles.py.
plain = st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="&<-")
pieces = st.text(plain, max_size=5) | st.sampled_from(["-->", " ", "->"])
texts = st.lists(pieces, max_size=5).map("".join)
LASTING = st.floats(0.022, 4000)
"""Seconds that a cue can be seen."""


def in_order(said: list[tuple[float, float, str]]) -> list[Segment]:
    segments, now = [], 0.0
    for pause, lasting, text in said:
        start, now = now + pause, now + pause + lasting
        segments.append(segment(id=0, start=start, end=now, text=text))
    return segments


spoken = st.lists(st.tuples(st.just(0.0) | LASTING, LASTING, texts), max_size=4).map(in_order)


def whispers_own(name: str, segments: list[Segment]) -> str:
    from whisper import utils

    writers = {
        "text": utils.WriteTXT,
        "srt": utils.WriteSRT,
        "vtt": utils.WriteVTT,
        "tsv": utils.WriteTSV,
    }
    written = io.StringIO()
    result = {"segments": [{"start": s.start, "end": s.end, "text": s.text} for s in segments]}
    writers[name]("unused").write_result(result, file=written)
    return written.getvalue()


@pytest.mark.parametrize("name", ["text", "srt", "vtt", "tsv"])
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # not about time
@given(segments=spoken)
def test_streamed_formats_equal_whispers_writers(name: str, segments: list[Segment]):
    assert "".join(STREAMED[name](segments, SubtitleParams())) == whispers_own(name, segments)


@pytest.mark.parametrize("name", STREAMED)
def test_a_segment_is_written_before_the_next_is_asked_for(name: str):
    def only_one_ready():
        yield SEGMENTS[0]
        raise AssertionError("asked for a segment that is not there yet")

    written = STREAMED[name](only_one_ready(), SubtitleParams())
    assert any("Hello there," in piece for piece in written)


def test_a_row_of_tsv_stays_a_row():
    spoken = (replace(SEGMENTS[0], text=" two\nlines\tand\x00 more\u2028"),)
    written = render("tsv", replace(TRANSCRIPT, segments=spoken))
    assert written == "start\tend\ttext\n0\t2500\ttwo lines and  more\n"


def test_json_is_one_line_that_the_published_schema_accepts():
    text = render("json", TRANSCRIPT)
    document = json.loads(text)
    jsonschema.validate(document, SCHEMA)
    assert text.count("\n") == 1
    assert "東京" in text
    assert document["text"] == 'Hello there, Grüße aus 東京 --> \t"quoted".'
    assert document["segments"][1]["start"] == 2.5
    assert document["notices"] == ["quiet in here"]
    assert document["skipped"] is None


def test_the_schema_names_exactly_the_fields_that_are_written():
    document = TRANSCRIPT.to_dict()
    assert list(document) == list(SCHEMA["properties"]) == SCHEMA["required"]
    segment = SCHEMA["$defs"]["segment"]
    assert list(document["segments"][0]) == list(segment["properties"]) == segment["required"]


def test_words_are_written_where_there_are_any():
    word = Word(start=0.5, end=1.25, word=" Hello", probability=0.75)
    spoken = (replace(SEGMENTS[0], words=(word,)), SEGMENTS[1])
    document = json.loads(render("json", replace(TRANSCRIPT, segments=spoken)))
    jsonschema.validate(document, SCHEMA)
    first, second = document["segments"]
    assert first["words"] == [{"start": 0.5, "end": 1.25, "word": " Hello", "probability": 0.75}]
    assert list(first["words"][0]) == SCHEMA["$defs"]["word"]["required"]
    assert second["words"] is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_become_null(value: float):
    segments = (replace(SEGMENTS[0], avg_logprob=value, compression_ratio=value),)
    document = json.loads(render("json", replace(TRANSCRIPT, segments=segments)))
    jsonschema.validate(document, SCHEMA)
    assert document["segments"][0]["avg_logprob"] is None


def test_a_source_name_of_foreign_bytes_survives_json():
    name = os.fsdecode(b"caf\xe9.wav")
    written = render("json", replace(TRANSCRIPT, source=name)).encode(
        "utf-8", errors="backslashreplace"
    )
    assert os.fsencode(json.loads(written.decode("utf-8"))["source"]) == b"caf\xe9.wav"


def test_no_segments_give_valid_transcripts():
    silent = replace(TRANSCRIPT, segments=())
    assert render("text", silent) == render("srt", silent) == ""
    assert render("vtt", silent) == "WEBVTT\n\n"
    jsonschema.validate(json.loads(render("json", silent)), SCHEMA)


def test_json_has_the_skipped_parts():
    skipped = (Part(0, 8000), Part(160_000, 176_000))
    document = json.loads(render("json", replace(TRANSCRIPT, skipped=skipped)))
    jsonschema.validate(document, SCHEMA)
    assert document["skipped"] == [{"start": 0, "end": 0.5}, {"start": 10, "end": 11}]
    document = json.loads(render("json", replace(TRANSCRIPT, skipped=())))
    jsonschema.validate(document, SCHEMA)
    assert document["skipped"] == []
