"""Files that were joined of several, as `cat` does, are read to their ends."""

import sys
from unittest.mock import Mock

import numpy as np
import pytest
import soxr

from audio.media_files import BY_PYAV, write_by_pyav
from audio.test_decode import decoded, likeness, without_xing_frame
from kvcast.audio import bitstreams, repair
from kvcast.audio import formats as joined_files
from kvcast.audio.formats import parts
from kvcast.audio.reader import FileSection

SECONDS = 3
BY_LIBSNDFILE = ["wav", "rf64", "w64", "aiff", "au", "caf", "flac", "ogg", "opus", "mp3"]
CONTAINERS = ["m4a", "mov", "mkv", "webm", "aac", "ts", "mpg", "wma", "flv", "wv", "tta"]


@pytest.fixture
def both(speech):
    return speech[: SECONDS * 16_000], speech[160_000 : 160_000 + SECONDS * 16_000]


def joined(path, pieces):
    path.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    return path


def assert_both(samples, both, slack=0.15):
    first, second = both
    assert len(samples) == pytest.approx(len(first) + len(second), abs=slack * 2 * 16_000)
    for part, start in (first, 0), (second, len(samples) // 2):
        assert likeness(samples[start : start + len(samples) // 2], part) > 0.7


@pytest.mark.parametrize("extension", [*BY_LIBSNDFILE, *CONTAINERS])
def test_both_parts_are_decoded(encode, both, tmp_path, extension):
    rate = 48_000 if BY_PYAV.get(extension, ("", ""))[0] in {"mpeg", "asf"} else 16_000
    pieces = [
        encode(f"{name}.{extension}", soxr.resample(part, 16_000, rate), rate)
        for name, part in zip("ab", both, strict=True)
    ]
    samples, notices = decoded(joined(tmp_path / f"both.{extension}", pieces))
    assert_both(samples, both)
    assert notices == ()


@pytest.mark.parametrize(
    ("rates", "channels"), [((16_000, 44_100), (1, 2)), ((44_100, 16_000), (2, 1))]
)
@pytest.mark.parametrize("extension", ["mp3", "flac", "wav", "ogg", "aac", "ts"])
def test_parts_may_differ_in_rate_and_channels(encode, both, tmp_path, rates, channels, extension):
    pieces = []
    for name, part, rate, count in zip("ab", both, rates, channels, strict=True):
        stored = np.stack([soxr.resample(part, 16_000, rate)] * count, axis=1)
        piece = encode(f"{name}.{extension}", stored, rate)
        pieces.append(without_xing_frame(piece) if extension == "mp3" else piece)
    samples, notices = decoded(joined(tmp_path / f"both.{extension}", pieces))
    assert_both(samples, both)
    assert notices == ()


MIXED = """wav-flac wav-mp3 wav-m4a mp3-wav mp3-m4a mp3-webm flac-mp3 ogg-mp3 flac-ogg flac-webm
ogg-flac aiff-mp3"""


@pytest.mark.parametrize("extensions", MIXED.split())
def test_parts_may_differ_in_format(encode, both, tmp_path, extensions):
    pieces = [encode(f"{e}.{e}", part) for e, part in zip(extensions.split("-"), both, strict=True)]
    samples, notices = decoded(joined(tmp_path / "both", pieces))
    assert_both(samples, both)
    assert notices == ()


@pytest.mark.parametrize("extensions", [("m4a", "wav"), ("ogg", "m2a")])
def test_an_unread_part_is_a_notice(encode, both, tmp_path, extensions):
    pieces = [encode(f"{e}.{e}", part) for e, part in zip(extensions, both, strict=True)]
    samples, [notice] = decoded(joined(tmp_path / "both", pieces))
    assert len(samples) == pytest.approx(len(both[0]), abs=3_000)
    assert "not read to its end" in notice or "cut short" in notice


def test_an_unreadable_part_is_a_notice_and_the_others_are_read(encode, both, tmp_path):
    good, bad = encode("a.flac", both[0]), tmp_path / "bad.flac"
    bad.write_bytes(good.read_bytes()[:60])
    samples, [notice] = decoded(joined(tmp_path / "all.flac", [good, bad, good]))
    assert len(samples) == 2 * len(both[0])
    assert "all.flac, part 2 of 3," in notice
    assert "this part is left out" in notice


HEADER = b"fLaC\x00\x00\x00\x22"
FRAMES, PAGES = b"\xff\xfb\x90\x64" + b"\xff" * 9_000, (b"OggS" + bytes(22) + b"\xff" * 256) * 300
ELEMENTS = b"\x1a\x45\xdf\xa3" + b"\xec\x00" * 9_000
# What is looked at, and by which function of which module, in files that were made to take time.
MADE_UP = {
    "flacs": (HEADER * 3_000, joined_files, "_after_beginning", {"MOST_PARTS": 50}),
    "marks": (HEADER + b"TTA1" * 5_000, joined_files, "_after_beginning", {"_MOST_MARKS": 50}),
    "frames": (FRAMES, bitstreams, "mpeg_frame", {"_MOST_TRIES": 50}),
    "pages": (PAGES, bitstreams, "_page", {"_MOST_DAMAGED": 50}),
    "elements": (ELEMENTS, repair, "_is_good", {"_NEAR": 10, "_MOST_VOIDS": 5}),
}


@pytest.mark.parametrize("name", MADE_UP)
def test_files_that_were_made_to_take_time_take_little_work(tmp_path, monkeypatch, name):
    content, module, function, limits = MADE_UP[name]
    called = Mock(wraps=getattr(module, function))
    monkeypatch.setattr(module, function, called)
    for limit, value in limits.items():
        monkeypatch.setattr(module, limit, value)
    (tmp_path / "made up").write_bytes(content)
    with (tmp_path / "made up").open("rb") as file:
        assert len(parts(file)) <= 51
        bitstreams.read_pages(FileSection(file))
        repair.void_patches(FileSection(file))
    assert 0 < called.call_count < 120


def test_faults_of_many_parts_are_counted(encode, both, tmp_path):
    good, bad = encode("a.flac", both[0]), HEADER + bytes(60)
    (tmp_path / "many.flac").write_bytes(good.read_bytes() + bad * 1_200)
    samples, notices = decoded(tmp_path / "many.flac")
    assert len(samples) == len(both[0])
    assert "has more than 1000 parts" in notices[0]
    assert "more such faults" in notices[-1]
    assert len(notices) == 21


def test_tags_of_mp3s_belong_to_their_parts(encode, both, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "kvcast.audio.media", raising=False)
    before, behind = b"ID3\x03\x00\x00\x00\x00\x20\x00" + bytes(4096), b"TAG" + bytes(125)
    pieces = [encode(f"{name}.mp3", part) for name, part in zip("ab", both, strict=True)]
    content = b"".join(before + piece.read_bytes() + behind for piece in pieces)
    (tmp_path / "both.mp3").write_bytes(content)
    samples, notices = decoded(tmp_path / "both.mp3")
    assert_both(samples, both)
    assert notices == ()


def test_a_stream_with_tags_between_its_segments_is_one_part(encode, speech, tmp_path):
    write_by_pyav(tmp_path / "a.aac", speech[:48_000], 16_000)
    tag = b"ID3\x04\x00\x00\x00\x00\x00\x0aPRIV" + bytes(6)
    segment = tag + (tmp_path / "a.aac").read_bytes()
    (tmp_path / "b.aac").write_bytes(segment * 3)
    with (tmp_path / "b.aac").open("rb") as file:
        assert len(parts(file)) == 1
    samples, _ = decoded(tmp_path / "b.aac")
    assert len(samples) == pytest.approx(3 * 48_000, abs=6_000)


def test_pictures_in_tags_and_damage_are_no_recordings(encode, speech, tmp_path):
    """Bytes that look like a frame, or two, and a header that is of another kind by damage."""
    frames = encode("a.mp3", speech[:96_000]).read_bytes()
    picture = b"APIC" + b"\xff\xfb\x90\x64" + bytes(413) + b"\xff\xfb\x90\x64" + bytes(9_000)
    synchsafe = bytes((len(picture) >> shift) & 0x7F for shift in (21, 14, 7, 0))
    damaged = bytearray(frames)
    middle = damaged.index(damaged[288:290], len(frames) // 2)
    damaged[middle + 2] ^= 0x04
    content = b"ID3\x04\x00\x00" + synchsafe + picture + bytes(damaged) + picture
    (tmp_path / "b.mp3").write_bytes(content)
    with (tmp_path / "b.mp3").open("rb") as file:
        assert len(parts(file)) == 1


def test_a_beginning_across_blocks_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("kvcast.audio.formats._AT_ONCE", 64)
    for length in range(40, 90):
        (tmp_path / "a").write_bytes((HEADER + bytes(length)) * 2)
        with (tmp_path / "a").open("rb") as file:
            assert [part.size for part in parts(file)] == [len(HEADER) + length] * 2
