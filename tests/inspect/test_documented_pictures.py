"""The pictures and pages that docs/inspect.md names: its commands make them."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from kit.pixels import image, texts
from kvcast.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
COMMANDS = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).splitlines()


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=pytest.mark.slow if "examples/" in c else []) for c in COMMANDS],
)
def test_a_documented_command_writes_its_file(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    for folder in ("examples", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(command)
    assert program == "kvcast"
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out
    assert err == ""
    written = (tmp_path / words[-1]).read_text(encoding="utf-8")
    if words[-2] == "--svg":
        assert image(written, "weights").shape[0] == len(texts(written, "q"))
        assert image(written, "sound").shape[0] == 80
    else:
        title = re.search(r"<title>(.*?)</title>", written)[1]
        assert title == out.splitlines()[0]


def test_the_picture_of_attention_is_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    [words] = re.findall(r"\$ kvcast (inspect attention .*)", PAGE)
    drawn = tmp_path / "drawn.svg"
    assert main([*shlex.split(words), "--svg", str(drawn)]) == 0
    capsys.readouterr()
    ours, theirs = (
        path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "attention.svg", drawn)
    )
    assert texts(ours) == texts(theirs)
    # Other processors sum in another order.
    assert np.abs(image(ours, "weights").astype(int) - image(theirs, "weights")).max() <= 1
    assert "](attention.svg)" in PAGE
