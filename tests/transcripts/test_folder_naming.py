import posixpath

from hypothesis import given
from hypothesis import strategies as st

from kvcast.transcripts.folders.recordings import may_be_named, named

names = st.sampled_from(["a", "A", "a.b", "é", "e\u0301", "talk"])
ends = st.sampled_from(["", ".mp3", ".wav", ".MP3", ".mp3.wav", ".mp3-2"])
paths = st.builds(lambda at, name, end: at + name + end, st.sampled_from(["", "x/"]), names, ends)


def test_a_transcript_lies_where_its_recording_does():
    assert named(["a.mp3", "talks/a.mp3", "talks/b.v2.wav"], {}) == {
        "a.mp3": "a",
        "talks/a.mp3": "talks/a",
        "talks/b.v2.wav": "talks/b.v2",
    }


def test_recordings_that_differ_in_their_extension_keep_it():
    assert named(["a.mp3", "a.wav", "b.wav"], {}) == {
        "a.mp3": "a.mp3",
        "a.wav": "a.wav",
        "b.wav": "b",
    }


def test_a_stem_that_is_another_recordings_whole_name_is_not_used():
    assert named(["a.mp3", "a.wav", "a.mp3.wav"], {})["a.mp3.wav"] == "a.mp3.wav"


def test_an_assigned_name_stays_unique():
    assert named(["a.mp3", "a.wav"], {"a.mp3": "a"}) == {"a.mp3": "a", "a.wav": "a.wav"}
    assert named(["a.wav"], {"a.mp3": "a"}) == {"a.wav": "a.wav"}  # also where the other is gone


def test_capitals_and_accents_keep_no_two_apart():
    assert named(["A.wav", "a.wav"], {}) == {"A.wav": "A.wav", "a.wav": "a.wav-2"}
    composed, apart = "\u00e9.wav", "e\u0301.mp3"
    assert named([apart, composed], {}) == {apart: apart, composed: composed}


@given(st.lists(names, unique=True), st.data())
def test_names_differ_fit_their_recordings_and_survive_a_kill(listed: list[str], data):
    listed.sort()
    whole = named(listed, {})
    assert len({name.casefold() for name in whole.values()}) == len(listed)
    for path, name in whole.items():
        assert may_be_named(path, name)
        assert posixpath.dirname(path) == posixpath.dirname(name)
    done = data.draw(st.sets(st.sampled_from(listed))) if listed else set()
    assert named(listed, {path: whole[path] for path in done}) == whole


def test_other_names_are_not_believed():
    for name in ("b", "x/a", "a.mp3-", "a.mp3-x", "a.mp", "../a", "a.mp3.txt"):
        assert not may_be_named("a.mp3", name)
