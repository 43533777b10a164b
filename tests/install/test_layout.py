"""A module's tests are where its name says: folders of tests mirror folders of the source."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src/kvcast"
# What has no folder of its own in the source.
OTHERS = {
    "install": "the installed program, its documentation and this layout",
    "gpu": "what needs a CUDA device",
    "mutation": "damaged files of every format",
}


def test_folders_of_tests_mirror_folders_of_the_source() -> None:
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    assert len(folders) > 10
    assert sorted(name for name in folders - OTHERS.keys() if not (SOURCE / name).is_dir()) == []
