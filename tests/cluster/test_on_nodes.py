"""Work on two nodes has the results of one machine, also when a node is killed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from cli.fakes import transcripts
from cluster.nodes import Nodes, nodes, run, start
from kit.recordings import speech_folder
from kit.tiny_gguf import tiny_llama
from kvcast.transcripts.folders.journal import unsealed
from server.serving import until

EXAMPLE = Path(__file__).parents[2] / "examples/sense-and-sensibility.flac"
MODEL = ("--model", "demo", "--runtime", "native", "--threads", "1", "--quiet")
RATE = 16_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared() -> Iterator[Nodes]:
    with nodes() as running:
        yield running


@pytest.fixture
def cluster(shared: Nodes) -> Nodes:
    """A cluster with both its nodes, whatever the test before did."""
    shared.refill()
    return shared


def recordings(folder: Path, count: int, seconds: int) -> Path:
    samples, rate = soundfile.read(EXAMPLE)
    (folder / "more").mkdir(parents=True)
    for number in range(count):
        name = f"more/{number}.wav" if number % 2 else f"{number}.wav"
        begin = number * rate // 2
        part = np.take(samples, range(begin, begin + seconds * rate), mode="wrap")
        soundfile.write(folder / name, part, rate)
    (folder / "bad.wav").write_text("no sound")
    return folder


def journal(out: Path) -> list[dict[str, Any]]:
    path = out / ".kvcast/journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)[1:] if path.exists() else []
    return [entry for entry in map(unsealed, lines) if entry is not None]


def folder_words(folder: Path, out: Path, *words: str) -> list[Any]:
    given = [folder, "--recursive", "--output-dir", out, "--format", "all", "--json"]
    return ["transcribe", *given, *MODEL, *words]


def test_a_folder_of_which_a_node_is_killed(tmp_path, cluster: Nodes):
    folder = recordings(tmp_path / "in", 14, 10)
    here, there = tmp_path / "here", tmp_path / "there"
    code, told_here, err = run(*folder_words(folder, here))
    assert (code, err.count("\n")) == (3, 1)

    def kill_one() -> None:
        until(lambda: len(journal(there)) >= 3)
        cluster.kill_one()
        assert len(journal(there)) < len(transcripts(here)) // 5

    words = folder_words(folder, there, "--ray", cluster.address)
    code, told, told_wrong = run(*words, while_running=kill_one)
    assert (code, told_wrong) == (3, err)
    assert transcripts(there) == transcripts(here)
    assert len(transcripts(here)) > 5
    entries = journal(there)
    assert len({entry["path"] for entry in entries}) == len(entries)
    differ = ("output_dir", "seconds")
    summaries = [json.loads(text) for text in (told_here, told)]
    assert len({str({**summary, **dict.fromkeys(differ)}) for summary in summaries}) == 1
    code, told, _ = run(*folder_words(folder, there, "--resume"))
    assert (code, json.loads(told)["kept"]) == (3, len(entries) - 1)


def test_a_file_that_a_machine_does_not_see(tmp_path, cluster: Nodes):
    folder, out = recordings(tmp_path / "in", 8, 3), tmp_path / "out"
    words = folder_words(folder, out, "--ray", cluster.address, "--actors", "1")

    def remove_last() -> None:
        until(lambda: journal(out))  # by now the folder is listed, and the last one still waits
        (folder / "more/7.wav").unlink()

    code, told, err = run(*words, while_running=remove_last)
    assert code == 3
    assert "does not see it (No such file or directory): put recordings where all" in err
    assert json.loads(told)["done"] == 7


def test_a_run_that_is_terminated_is_resumed(tmp_path):
    folder, out = recordings(tmp_path / "in", 10, 10), tmp_path / "out"
    process = start(*folder_words(folder, out, "--ray", "local"))
    try:
        until(lambda: len(journal(out)) >= 3)
        process.terminate()
        told, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, told) == (143, "")
    *_, finished, ended = err.splitlines()
    kept = sum(entry["status"] == "done" for entry in journal(out))
    # One may be on its way to the disk, where it is read before it is counted.
    written = len(journal(out))
    assert finished in {
        f"kvcast: {count} of 11 recordings are finished; the same command with --resume does the "
        "rest"
        for count in (written - 1, written)
    }
    assert ended == "kvcast: terminated"
    code, told, _ = run(*folder_words(folder, out, "--resume", "--ray", "local"))
    assert (code, json.loads(told)["kept"], json.loads(told)["done"]) == (3, kept, 10 - kept)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    chance = np.random.default_rng(0)
    texts = ["the sea", "a whale", "once upon", *(f"number {n}" for n in range(20))]
    lines = [{"prompt": texts[i], "id": n} for n, i in enumerate(chance.integers(0, 23, 120))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def generate(model: Path, prompts: Path, *words: str, **settings: Any) -> list[dict[str, Any]]:
    given = ["--model", model, "--prompts", prompts, "--quantize", "none", "--quiet"]
    given += ["--runtime", "native", "--threads", "1"]
    code, out, err = run("generate", *given, *words, **settings)
    assert (code, err) == (0, "")
    return [comparable(json.loads(line)) for line in out.splitlines()]


def comparable(text: dict[str, Any]) -> dict[str, Any]:
    return {**text, "timings": None, "alternatives": None}


def test_prompts_on_two_nodes(tmp_path, prompts, cluster: Nodes):
    model = tiny_llama(tmp_path / "tiny.gguf")
    options = ["--temperature", "1", "--seed", "3", "--n", "2", "--max-new-tokens", "8"]
    here = generate(model, prompts, *options)
    assert [text["id"] for text in here] == list(range(120))
    assert len({text["text"] for text in here}) > 60
    assert generate(model, prompts, *options, "--ray", cluster.address) == here


@pytest.mark.soak  # as of a folder, whose leases prompts share
def test_prompts_of_which_a_node_is_killed(tmp_path, prompts, cluster: Nodes):
    model = tiny_llama(tmp_path / "tiny.gguf")
    options = ["--temperature", "1", "--max-new-tokens", "20"]
    here = generate(model, prompts, *options)
    given = ["--model", model, "--prompts", prompts, "--quantize", "none", "--quiet"]
    given += ["--runtime", "native", "--threads", "1", "--batch", "1", *options]
    process = start("generate", *given, "--ray", cluster.address)
    try:
        first = process.stdout.readline()
        cluster.kill_one()
        out, err = process.communicate(timeout=400)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (0, "")
    assert [comparable(json.loads(line)) for line in [first, *out.splitlines()]] == here


def test_a_prompt_at_fault_ends_the_run_before_any_text(tmp_path, prompts, cluster: Nodes):
    prompts.write_text(prompts.read_text() + json.dumps({"prompt": "a " * 5000}) + "\n")
    words = ["--model", tiny_llama(tmp_path / "tiny.gguf"), "--prompts", prompts, "--quiet"]
    here = run("generate", *words)
    assert (here[0], here[1], "line 121: the prompt has" in here[2]) == (2, "", True)
    assert run("generate", *words, "--ray", cluster.address) == here


def noise(seconds: float, seed: int) -> Any:
    return np.random.default_rng(seed).normal(0, 0.1, round(RATE * seconds)).astype(np.float32)


def test_a_folder_has_the_transcripts_of_one_machine(tmp_path: Path, cluster: Nodes):
    model = speech_folder("parakeet_tdt", tmp_path / "parakeet")
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    for seed in range(3):
        soundfile.write(sounds / f"{seed}.wav", noise(2.0, seed), RATE)
    given = ["transcribe", sounds, "--model", model, "--runtime", "native", "--threads", "1"]
    given += ["--word-timestamps", "--quiet", "--format", "json", "--json"]
    for place, words in (("here", []), ("there", ["--ray", cluster.address])):
        code, out, err = run(*given, "--output-dir", tmp_path / place, *words)
        assert (code, err) == (0, "")
        assert json.loads(out)["done"] == 3
    for seed in range(3):
        here, there = (
            json.loads((tmp_path / place / f"{seed}.json").read_text())
            for place in ("here", "there")
        )
        assert here == there
        assert here["segments"][0]["words"]
