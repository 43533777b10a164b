"""Films and other containers: damage, times, and audio tracks."""

import re
import sys

import av
import numpy as np
import pytest

from audio.media_files import FilmTrack, write_film
from audio.test_decode import decoded, likeness
from kvcast.audio.reader import FileSection
from kvcast.audio.repair import void_patches
from kvcast.errors import InputOutputError, UsageError

CONTAINERS = [
    *(("matroska", "aac"), ("mp4", "aac"), ("webm", "libopus"), ("mpegts", "aac")),
    ("matroska", "libopus"),
]


def spoil(path, first, count):
    """Overwrite the content of audio packets, and leave the container whole."""
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [p for p in container.demux(audio=0) if p.size][first : first + count]
        places = [bytes(packet) for packet in packets]
    for place in places:
        at = bytes(data).index(place)
        data[at : at + len(place)] = b"\xff" * len(place)
    path.write_bytes(data)


def overwrite(path, where, content):
    """Damage a file, from this share of its length on."""
    data = bytearray(path.read_bytes())
    start = round(where * len(data))
    data[start : start + len(content)] = content
    path.write_bytes(data)


def test_whole_files_need_no_void(encode, speech, tmp_path):
    write_film(tmp_path / "film", [FilmTrack(samples=speech)] * 2, seconds=20)
    for path in tmp_path / "film", encode("a.webm", speech), encode("a.mka", speech):
        with path.open("rb") as file:
            assert void_patches(FileSection(file)) == {}


@pytest.mark.parametrize(("container", "codec"), CONTAINERS[:3])
@pytest.mark.parametrize("count", [1, 10])
def test_damaged_packets_are_left_out_and_the_rest_keeps_its_times(
    tmp_path, speech, container, codec, count
):
    path = tmp_path / "film"
    write_film(
        path, [FilmTrack(samples=speech[:96_000])], seconds=0, container=container, codec=codec
    )
    spoil(path, 40, count)
    samples, [notice] = decoded(path)
    # FFmpeg drops damaged packets of Opus by itself, which leaves a gap.
    assert "has a gap" in notice if codec == "libopus" else f"is damaged: {count} packet" in notice
    assert len(samples) == pytest.approx(96_000, abs=3_000)
    rest = slice(70_000, 90_000)
    assert likeness(samples[rest], speech[rest]) > 0.9
    shift = np.correlate(samples[68_000:92_000], speech[rest], "valid").argmax() - 2_000
    assert abs(shift) < 0.1 * 16_000 + 1_500


@pytest.mark.parametrize(("container", "codec"), [c for c in CONTAINERS if c[0] != "webm"])
def test_audio_that_starts_after_the_picture_keeps_its_times(tmp_path, speech, container, codec):
    path = tmp_path / "film"
    track = FilmTrack(samples=speech[:48_000], start=2)
    write_film(path, [track], seconds=6, container=container, codec=codec)
    samples, [notice] = decoded(path)
    assert re.search(r"has a gap before its audio: (1\.9|2\.0)", notice)
    assert not samples[:30_000].any()
    assert likeness(samples[32_000:], speech[:48_000]) > 0.9
    assert len(samples) == pytest.approx(80_000, abs=3_000)


@pytest.mark.parametrize(("container", "codec"), [*CONTAINERS, ("ogg", "libopus")])
def test_gaps_between_packets_become_silence(tmp_path, speech, container, codec):
    path = tmp_path / "film"
    track = FilmTrack(samples=speech[:128_000], gaps=[(2, 3), (5, 5.5)])
    write_film(path, [track], seconds=0, container=container, codec=codec)
    samples, [notice] = decoded(path)
    assert "has 2 gaps, the first at " in notice
    assert " 1.5" in notice or " 1.4" in notice
    assert len(samples) == pytest.approx(128_000, abs=3_000)
    assert not samples[36_000:46_000].any()
    end = slice(100_000, 120_000)
    shift = np.correlate(samples[98_000:122_000], speech[end], "valid").argmax() - 2_000
    assert abs(shift) < 1_500


def test_times_that_begin_anew_are_not_believed(tmp_path, speech):
    path = tmp_path / "film.ts"
    write_film(path, [FilmTrack(samples=speech[:48_000])], seconds=0, container="mpegts")
    path.write_bytes(path.read_bytes() * 2)
    samples, notices = decoded(path)
    assert len(samples) == pytest.approx(96_000, abs=4_000)
    assert notices == ()


TRACKS = [
    {"language": "deu", "title": "Kommentar"},
    {"language": "eng", "is_default": True},
    {"language": "fre"},
]


@pytest.fixture
def film(tmp_path, speech):
    path = tmp_path / "film.mkv"
    clips = [speech[start : start + 32_000] for start in (0, 100_000, 200_000)]
    tracks = [FilmTrack(samples=s, **about) for s, about in zip(clips, TRACKS, strict=True)]
    write_film(path, tracks)
    return path, clips


@pytest.mark.parametrize(
    ("track", "index"),
    [(None, 1), (1, 0), ("2", 1), ("3", 2), ("de", 0), ("ger", 0), ("en-GB", 1), ("fr", 2)],
)
def test_a_track_is_the_default_or_the_one_that_is_asked_for(film, track, index):
    path, clips = film
    samples, notices = decoded(path, track=track)
    assert likeness(samples, clips[index]) > 0.9
    if track is None:
        [notice] = notices
        assert "3 audio tracks: 2 (eng) is taken, not 1 (deu, Kommentar), 3 (fre)" in notice
    else:
        assert notices == ()


@pytest.mark.parametrize("track", [4, 0, "it", "und"])
def test_a_missing_track_is_refused_with_a_list(film, track):
    path, _ = film
    with pytest.raises(
        InputOutputError, match=r"film\.mkv has no audio track .*1 \(deu, Komm.*fre"
    ):
        decoded(path, track=track)


def test_a_file_of_one_track_has_no_second_one(encode, speech):
    path = encode("a.wav", speech[:16_000])
    assert len(decoded(path, track=1)[0]) == 16_000
    with pytest.raises(InputOutputError, match="no audio track 2: it has one"):
        decoded(path, track=2)
    with pytest.raises(UsageError, match="audio_track is for files"):
        decoded(speech, track=1)


def test_a_film_without_audio_is_refused(tmp_path):
    write_film(tmp_path / "mute.mp4", [], container="mp4")
    with pytest.raises(InputOutputError, match=r"mute\.mp4 has no audio in it"):
        decoded(tmp_path / "mute.mp4")


@pytest.mark.parametrize("extension", ["mkv", "webm", "mka"])
@pytest.mark.parametrize("where", [0.3, 0.7])
def test_damaged_headers_of_blocks_cost_these_blocks_alone(encode, speech, extension, where):
    path = encode(f"a.{extension}", speech[:160_000])
    overwrite(path, where, np.random.default_rng(0).bytes(700))
    samples, [notice] = decoded(path)
    assert "is damaged" in notice
    assert len(samples) == pytest.approx(160_000, abs=1_000)
    # Half a second at a time: no piece is lost, and none lies elsewhere.
    halves = (each[:152_000].reshape(-1, 8000) for each in (samples, speech))
    assert all(likeness(half, expected) > 0.6 for half, expected in zip(*halves, strict=True))


@pytest.mark.parametrize("extension", ["ogg", "opus", "mp3"])
def test_without_pyav_damage_is_a_notice_too(encode, speech, extension, monkeypatch):
    path = encode(f"a.{extension}", speech[:160_000])
    overwrite(path, 0.5, bytes(400))
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "kvcast.audio.media", raising=False)
    _, [notice] = decoded(path)
    assert "is damaged" in notice


@pytest.mark.parametrize("extension", ["ogg", "opus", "flac"])
def test_decoding_continues_after_libsndfile_stops(encode, speech, extension):
    path = encode(f"a.{extension}", speech[:160_000])
    overwrite(path, 0.4, bytes(400))
    samples, [notice] = decoded(path)
    is_lossless = extension == "flac"
    assert len(samples) == pytest.approx(160_000, abs=10_000 if is_lossless else 2_000)
    if is_lossless:
        assert "is damaged" in notice
        np.testing.assert_array_equal(samples[-50_000:], speech[110_000:160_000])
    else:
        assert likeness(samples[130_000:150_000], speech[130_000:150_000]) > 0.7
