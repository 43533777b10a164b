"""A module's tests are where its name says: folders of tests mirror folders of the source."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What has no folder of its own in the source.
OTHERS = {
    "install": "the installed program, its documentation and this layout",
    "gpu": "what needs a CUDA device",
    "mutation": "damaged files of every format",
}


def files(tests: Path) -> Iterator[Path]:
    return tests.rglob("test_*.py")


def folders(tests: Path) -> set[str]:
    return {path.parent.relative_to(tests).as_posix() for path in files(tests)}


@pytest.mark.parametrize(
    ("tests", "source", "least"),
    [("tests", "src/kvcast", 10), ("benchmarks/tests", "benchmarks/src/kvcast_bench", 4)],
)
def test_folders_of_tests_mirror_folders_of_the_source(tests: str, source: str, least: int) -> None:
    present = folders(ROOT / tests)
    assert len(present) > least
    strangers = [name for name in present - OTHERS.keys() if not (ROOT / source / name).is_dir()]
    assert sorted(strangers) == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """Without packages pytest knows a file by its name alone, and collects the first."""
    names = [path.name for tests in ("tests", "benchmarks/tests") for path in files(ROOT / tests)]
    assert sorted(name for name, count in Counter(names).items() if count > 1) == []
