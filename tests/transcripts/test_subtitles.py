"""Another program reads subtitles back; words are laid out as in openai-whisper."""

import html
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import pysubs2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcast.errors import UsageError
from kvcast.transcripts.params import SubtitleParams
from kvcast.transcripts.segments import Word
from kvcast.transcripts.subtitles import write_ass, write_lrc, write_srt, write_vtt
from whisper import utils

FORMATS = {"srt": write_srt, "vtt": write_vtt}
STEPS = FORMATS | {"ass": write_ass}


@dataclass(frozen=True)
class Spoken:
    """The fields of a segment that subtitles use."""

    start: float
    end: float
    text: str
    words: tuple[Word, ...] | None = None
    channel: int | None = None
    has_times: bool = True


def spoken(start: float, *words: str, pace: float = 0.5) -> Spoken:
    """A segment of words, each of which takes `pace` seconds."""
    timed = tuple(
        Word(start=start + i * pace, end=start + (i + 1) * pace, word=word, probability=1.0)
        for i, word in enumerate(words)
    )
    return Spoken(start, timed[-1].end if timed else start + 1, "".join(words), timed)


def parsed(name: str, segments: Sequence[Spoken], **options: Any) -> list[tuple[int, int, str]]:
    """Start and end in milliseconds and the text of each cue, as pysubs2 reads it."""
    text = "".join(STEPS[name](segments, SubtitleParams(**options)))
    subtitles = pysubs2.SSAFile.from_string(text, format_=name)
    return [(event.start, event.end, shown(name, event)) for event in subtitles]


def shown(name: str, event: pysubs2.SSAEvent) -> str:
    text = event.text.replace(r"\N", "\n")
    # pysubs2 leaves WebVTT's escapes to whoever shows the text.
    return html.unescape(text) if name == "vtt" else text


PLAIN = st.sampled_from(["a", "bc", "def", "Grüße", "long-winded", "東京", "x" * 13])
PACES = st.sampled_from([0.04, 0.5, 2.0])
WORDS = st.builds(lambda space, text: space + text, st.sampled_from([" ", " ", ""]), PLAIN)
GAPS = st.sampled_from([0.0, 1.0, 5.0])
SEGMENTS = st.lists(st.tuples(st.lists(WORDS, min_size=1, max_size=12), GAPS, PACES), max_size=4)
LIMITS = st.sampled_from(
    [
        {"max_line_width": 13},
        {"max_line_width": 20},
        {"max_line_width": 14, "max_line_count": 1},
        {"max_line_width": 30, "max_line_count": 2},
        {"max_words_per_line": 1},
        {"max_words_per_line": 3},
    ]
)


def in_time(drawn: list[tuple[list[str], float, float]]) -> list[Spoken]:
    segments, now = [], 0.0
    for words, gap, pace in drawn:
        segments.append(spoken(now + gap, *words, pace=pace))
        now = segments[-1].end
    return segments


def whispers_own(segments: Sequence[Spoken], **options: Any) -> list[tuple[str, str, str]]:
    result = {"segments": [asdict(segment) for segment in segments]}
    return list(utils.WriteSRT("unused").iterate_result(result, **options))


@given(drawn=SEGMENTS, limits=LIMITS, highlight=st.booleans())
@settings(deadline=None)
def test_words_are_laid_out_as_theirs(drawn, limits, highlight):
    segments = in_time(drawn)
    options = limits | {"highlight_words": highlight}
    text = "".join(write_srt(segments, SubtitleParams(**options)))
    cues = [cue.split("\n", 2) for cue in text.split("\n\n") if cue]
    assert [(times, text) for _, times, text in cues] == [
        (f"{start} --> {end}", text) for start, end, text in whispers_own(segments, **options)
    ]


@pytest.mark.parametrize("name", FORMATS)
@given(
    words=st.lists(st.text(max_size=30), max_size=12),
    width=st.integers(1, 40),
    count=st.none() | st.integers(1, 3),
)
@settings(deadline=None)
def test_limits_are_kept_whatever_is_said(name, words, width, count):
    segments = [spoken(1.0, *words), spoken(9.0, " and", " more")]
    for _, _, text in parsed(name, segments, max_line_width=width, max_line_count=count):
        lines = text.split("\n")
        assert max(map(len, lines)) <= width
        assert count is None or len(lines) <= count


@given(
    drawn=st.lists(
        st.tuples(
            st.lists(WORDS, min_size=1, max_size=6), GAPS, st.sampled_from([0.0, 0.001, 0.01, 0.5])
        ),
        max_size=5,
    ),
    limits=LIMITS | st.just({}),
    highlight=st.booleans(),
)
@settings(deadline=None)
def test_a_cue_lasts_long_enough_and_ends_before_the_next(drawn, limits, highlight):
    segments = in_time(drawn)
    cues = parsed("srt", segments, **limits, highlight_words=highlight)
    assert all(end - start >= 20 for start, end, _ in cues)
    assert all(before[1] <= after[0] for before, after in pairwise(cues))


@pytest.mark.parametrize("name", FORMATS)
def test_words_that_last_no_time_share_that_of_their_segment(name):
    times = [(1.0, 1.0), (1.0, 1.4), (1.5, 1.5), (1.5, 1.5)]
    words = [Word(start=a, end=b, word=" a", probability=1.0) for a, b in times]
    cues = parsed(name, [Spoken(0.9, 1.5, " a a a a", tuple(words))], max_words_per_line=1)
    assert [times for *times, _ in cues] == [
        *([980, 1000], [1000, 1400], [1460, 1480], [1480, 1500])
    ]


@given(drawn=SEGMENTS)
@settings(deadline=None)
def test_each_word_is_underlined_while_it_is_spoken(drawn):
    segments = in_time(drawn)
    text = "".join(write_vtt(segments, SubtitleParams(highlight_words=True)))
    assert re.findall("<u>(.*?)</u>", text) == [
        word.word.strip() for segment in segments for word in segment.words
    ]


EVIL = st.lists(
    st.sampled_from(
        [
            *("-->", "--->", "--", ">", "\n", "\n\n", "\r\n", "\x00", "\x1b[31m", "\x0b", "\x0c"),
            *("\x1c", "\x85", "\u2028", "\u2029", "1", "00:00:01,000 --> 00:00:02,000", "WEBVTT"),
            *("00:01.000 00:02.000", "NOTE", " a", "&lt;", "&", "<", "<b>", "STYLE", "{b}"),
        ]
    ),
    max_size=8,
).map("".join)


@pytest.mark.parametrize("name", FORMATS)
@given(texts=st.lists(EVIL, max_size=4), options=LIMITS | st.just({}))
@settings(deadline=None)
def test_no_text_becomes_a_cue_or_a_control_character(name, texts, options):
    segments = [spoken(2 * i, f" s{i}", text, " e") for i, text in enumerate(texts)]
    text = "".join(FORMATS[name](segments, SubtitleParams(**options)))
    starts = {round(1000 * word.start) for segment in segments for word in segment.words}
    cues = parsed(name, segments, **options)
    assert all(start in starts or "max_line_width" in options for start, _, _ in cues)
    assert text.count("-->") == len(cues)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", text)
    if not options:
        assert len(cues) == len(segments)


@pytest.mark.parametrize("name", FORMATS)
def test_text_reads_back_as_it_was(name):
    said = " AT&T <3 &lt; a -> b 100%"
    assert parsed(name, [Spoken(1.0, 2.5, said)]) == [(1000, 2500, said.strip())]


def test_a_segment_whose_words_are_unknown_is_laid_out_by_its_length():
    cues = parsed("srt", [Spoken(0.0, 4.0, " ab cde", ())], max_words_per_line=1)
    assert [text for _, _, text in cues] == ["ab", "cde"]
    assert cues[0][0] == 0
    assert cues[0][1] == cues[1][0]
    assert cues[1][1] == 4000


def test_a_word_wider_than_a_line_is_broken_and_shares_its_time():
    segment = spoken(0.0, " abcdefgh", " i", pace=1.0)
    cues = parsed("srt", [segment], max_line_width=4, max_line_count=1)
    assert cues == [(0, 500, "abcd"), (500, 1000, "efgh"), (1000, 2000, "i")]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_line_count": 2}, "max_line_count needs max_line_width"),
        ({"max_line_width": 9, "max_words_per_line": 2}, "exclude each other"),
        ({"max_line_width": 0}, "max_line_width must be 1 or more"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        SubtitleParams(**options)


SAID = st.lists(
    st.tuples(st.sampled_from(["a", "some", "Words", "eleven,", "end.", "Why?", "Mr.", "x" * 30])),
    min_size=1,
    max_size=40,
).map(lambda words: [f" {word}" for (word,) in words])


@given(words=SAID, pace=st.sampled_from([0.1, 0.4, 1.5]), width=st.sampled_from([None, 35, 60]))
@settings(deadline=None)
def test_cues_by_sentence_fit_and_no_word_dangles(words, pace, width):
    half = len(words) // 2
    segments = in_time([(words[:half] or [" Yes."], 0.0, pace), (words[half:], 0.0, pace)])
    cues = parsed("srt", segments, cues="sentence", max_line_width=width)
    said = "".join(segment.text for segment in segments).split()
    assert " ".join(text for *_, text in cues).split() == said
    for _, _, text in cues:
        lines = text.split("\n")
        assert max(map(len, lines)) <= (width or 42)
        assert len(lines) <= 2 or len(text.split()) < 4
        alone = len(text.split()) == 1 and len(cues) > 1
        assert not alone or text[-1] in ".?" or text == cues[-1][2] or max(map(len, said)) == 30


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        (
            " Mr. Dashwood had one son. By his present lady, three daughters. Yes. He was happy.",
            [
                "Mr. Dashwood had one son.",
                "By his present lady, three daughters. Yes.",
                "He was happy.",
            ],
        ),
        (
            " The family of Dashwood had long been settled in Sussex, where their estate was large "
            "and their residence was at Norland Park",
            [
                "The family of Dashwood had\nlong been settled in Sussex,",
                "where their estate was large and\ntheir residence was at Norland Park",
            ],
        ),
        (" J. R. R. Tolkien wrote it. e.g. this", ["J. R. R. Tolkien wrote it. e.g. this"]),
        (" 「はい。」 そうです。", ["「はい。」 そうです。"]),
    ],
)
def test_sentences_are_cues(said: str, texts: list[str]):
    segment = spoken(0.0, *[f" {word}" for word in said.split()], pace=0.3)
    assert [text for *_, text in parsed("srt", [segment], cues="sentence")] == texts


def test_a_pause_ends_a_cue():
    segments = [spoken(0.0, " This", " is", " where"), spoken(9.0, " it", " goes", " on.")]
    cues = parsed("vtt", segments, cues="sentence")
    assert [text for *_, text in cues] == ["This is where", "it goes on."]


@given(texts=st.lists(EVIL, max_size=4), options=LIMITS | st.just({}))
@settings(deadline=None)
def test_no_text_becomes_a_line_of_ass_or_lrc(texts, options):
    segments = [spoken(2 * i, f" s{i}", text, " e") for i, text in enumerate(texts)]
    params = SubtitleParams(**options)
    count = "".join(write_srt(segments, params)).count(" --> ")
    ass = "".join(write_ass(segments, params))
    assert ass.count("\nDialogue: ") == count == len(pysubs2.SSAFile.from_string(ass))
    for line in "".join(write_lrc(segments, params)).splitlines():
        assert re.match(r"\[\d\d:\d\d\.\d\d\](?!\[\w+:)", line)


@pytest.mark.parametrize("said", ["{\\b1}not bold", r"a\Nb \h c", "plain {x}"])
def test_text_like_ass_markup_is_escaped(said: str):
    text = "".join(write_ass([Spoken(3600 * 11 + 1.234, 3600 * 11 + 2.5, said)]))
    [event] = pysubs2.SSAFile.from_string(text)
    assert event.plaintext.translate({0x2060: "", 0xFF5B: "{", 0xFF5D: "}"}) == said
    assert (event.start, event.end) == (39_601_230, 39_602_500)


def test_lrc_shows_nothing_in_pauses():
    times = [(0.5, 1.5, " one"), (2.0, 3.0, " [ti: two]"), (6000.0, 6001.0, " x")]
    segments = [Spoken(*each) for each in times]
    assert "".join(write_lrc(segments)).split("\n") == [
        *("[00:00.50]one", "[00:02.00]\u2060[ti: two]", "[00:03.00]", "[100:00.00]x"),
        *("[100:01.00]", ""),
    ]
