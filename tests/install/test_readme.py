"""The README's commands work, and CI runs the second one to the letter."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

ROOT = Path(__file__).parents[2]


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    return blocks[:2]


def test_there_are_two_commands_of_one_line_each() -> None:
    assert len(commands()) == 2
    assert not any("\n" in command for command in commands())


def test_the_first_command_transcribes_the_example_and_imports_no_extra(tmp_path: Path) -> None:
    install, transcribe = commands()[0].split(" && ")
    assert install.startswith("pip install ")
    assert "[demo,media]" in install
    program, *words = shlex.split(transcribe)
    assert program == "kvcast"
    for name in ("av", "gguf", "onnxruntime", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('an extra is imported')")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "kvcast", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("And Mr. John Dashwood had then leisure")


def test_checks_call_the_second_command_to_the_letter() -> None:
    assert commands()[1] in (ROOT / "scripts/check").read_text().splitlines()


def test_the_tree_names_every_package() -> None:
    readme = (ROOT / "README.md").read_text()
    for folder in (ROOT / "src/kvcast").iterdir():
        if folder.is_dir() and (folder / "__init__.py").exists():
            assert f"{folder.name}/" in readme, f"the README's tree lacks {folder.name}/"


def recordings() -> list[str]:
    text = (ROOT / "README.md").read_text()
    [block] = re.findall(r"\n## Recordings\n\n```\n(.*?)\n```", text, re.DOTALL)
    return [line.split("#")[0].strip() for line in block.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("command", recordings())
def test_recordings_are_transcribed(command: str, tmp_path: Path) -> None:
    example = ROOT / "examples/sense-and-sensibility.flac"
    samples, rate = soundfile.read(example)
    soundfile.write(tmp_path / "microphone.wav", samples[: 8 * rate], rate)
    (tmp_path / "talks/more").mkdir(parents=True)
    for name in ("lecture.mp3", "talk.mp3", "talks/more/a.flac"):
        shutil.copyfile(example, tmp_path / name)  # what a file is, its first bytes say
    shutil.copyfile(example.with_suffix(".txt"), tmp_path / "script.txt")
    command = command.replace("arecord -q -f cd", "cat microphone.wav")
    command = command.replace("kvcast", f"{shlex.quote(sys.executable)} -m kvcast", 1)
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    texts = [path.read_text() for path in tmp_path.glob("texts/**/*.txt")]
    expected = "english" if "detect" in command else "dashwood had"
    assert expected in " ".join([done.stdout, *texts]).replace("\n", " ").lower()
