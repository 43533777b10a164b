"""Results that are kept while a recording is transcribed."""

from pathlib import Path

import pytest

from kvcast.transcripts.unfinished import UnfinishedWork


def work_in(folder: Path, inputs: str = "same") -> UnfinishedWork:
    return UnfinishedWork(folder, "talk", lambda: inputs)


def parts(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def interrupted(folder: Path, count: int) -> None:
    work = work_in(folder)
    for number in range(count):
        work.put(f"key {number}", {"number": number / 3})
    work.close()


def test_results_are_there_in_the_next_run_and_its_own_are_added(tmp_path: Path):
    interrupted(tmp_path, 2)
    assert parts(tmp_path) == [".kvcast-talk.part"]
    second = work_in(tmp_path)
    second.put("key 2", {"number": 5})
    second.close()
    third = work_in(tmp_path)
    assert len(third) == 3
    assert third.get("key 1") == {"number": 1 / 3}
    assert third.get("key 2") == {"number": 5}
    assert third.get("key 3") is None
    third.remove()
    assert parts(tmp_path) == []


def test_nothing_is_written_or_digested_without_a_result(tmp_path: Path):
    def undigested() -> str:
        raise AssertionError

    work = UnfinishedWork(tmp_path, "talk", undigested)
    assert not len(work)
    work.close()
    work.remove()
    assert parts(tmp_path) == []


def test_other_inputs_start_anew(tmp_path: Path):
    interrupted(tmp_path, 2)
    other = work_in(tmp_path, "others")
    assert not len(other)
    other.put("key 0", {"number": 7})
    other.close()
    assert not len(work_in(tmp_path))
    assert work_in(tmp_path, "others").get("key 0") == {"number": 7}


@pytest.mark.parametrize("cut", [1, 20, 90])
def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path, cut: int):
    interrupted(tmp_path, 3)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-cut])
    resumed = work_in(tmp_path)
    assert len(resumed) == 2
    resumed.put("key 9", {"number": 9})
    resumed.close()
    assert len(work_in(tmp_path)) == 3


def test_a_damaged_line_is_left_out(tmp_path: Path):
    interrupted(tmp_path, 3)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes().replace(b'"key 1"', b'"key 7"'))
    work = work_in(tmp_path)
    assert [work.get(f"key {n}") is None for n in (0, 1, 2, 7)] == [False, True, False, True]


def test_a_file_that_cannot_be_written_or_read_is_done_without(tmp_path: Path):
    missing = work_in(tmp_path / "gone")
    missing.put("key", {"number": 1})
    missing.put("other", {"number": 2})
    assert missing.get("key") == {"number": 1}
    missing.close()
    (tmp_path / ".kvcast-talk.part").mkdir()
    assert not len(work_in(tmp_path))


def test_a_number_that_json_lacks_is_computed_again(tmp_path: Path):
    work = work_in(tmp_path)
    work.put("key", {"number": float("nan")})
    assert work.get("key") is None
    work.close()
    assert parts(tmp_path) == []
