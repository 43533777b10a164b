"""What each benchmark says to a mistake: one line."""

from pathlib import Path

import pytest

from kit.tiny_gguf import tiny_llama
from kvcast.cli import main
from kvcast_bench import commands

ROOT = Path(__file__).parents[3]
AUDIO = str(ROOT / "tests" / "data" / "cards" / "001.wav")
SHORT = ["--prompt", "6", "--new", "2", "--positions", "9"]
SERVED = ["--prompt", "4", "--shared", "2", "--new", "3"]
RUNS = (["--runs", "0"], 2, "argument --runs: must be 1 or more, not 0")
NOBODY = (["--peers", "nobody"], 2, "nobody")
ABSENT = (["--reference", "absent.txt"], 66, "absent.txt does not exist")
WITHOUT_MODEL = {
    "generate": [
        (["--model", "random:t5-huge"], 2, "random weights are random:t5-small"),
        (["--model", "demo"], 1, "demo cannot be measured: bench generate takes"),
    ],
    "open": [
        (["--model", "demo"], 2, "a Whisper needs a recording: --audio FILE"),
        (["--model", "demo-chat", "--audio", AUDIO], 2, "drop --audio"),
        (["--model", "no such model"], 66, "no such model"),
    ],
    "runtimes": [([], 2, "a Whisper needs a recording"), (["absent.wav"], 66, "absent.wav")],
    "serve": [(["--model", "demo"], 2, "a Whisper needs a recording: kvcast bench serve AUDIO")],
    "transcribe": [(["absent.flac"], 66, "absent.flac")],
}
OF_A_RECORDING = {
    "runtimes": [
        RUNS,
        ABSENT,
        (["--position", "448"], 2, "position must be below 448"),
        (["--prompt", "9"], 2, "--prompt says nothing of Whispers"),
        (["--runtimes", "tflite"], 2, "tflite"),
        (["--model", "demo-unilm"], 1, "bench runtimes takes Whispers and decoder-only"),
    ],
    "transcribe": [
        RUNS,
        NOBODY,
        ABSENT,
        (["--threads", "0"], 2, "argument --threads: must be 1 or more, not 0"),
        (["--beam", "1", "0"], 2, "argument --beam: must be 1 or more, not 0"),
        (["--reference", AUDIO], 74, "cannot be read as UTF-8 text"),
        (["--model", "no such model"], 66, "no such model"),
    ],
}
OF_A_CHAT = {
    "generate": [
        RUNS,
        NOBODY,
        (["--batch", "1", "0"], 2, "argument --batch: must be 1 or more, not 0"),
        (["--positions", "-3"], 2, "argument --positions: must be 1 or more, not -3"),
        (["--new", "0"], 2, "argument --new: must be 1 or more, not 0"),
        ([*SHORT, "--positions", "63"], 2, "63 + 17 tokens are more than the 64 that the model"),
        ([*SHORT, "--prompt", "62"], 2, "62 + 3 tokens are more than the 64"),
        (["--quantize", "int3"], 2, "int3"),
        (["--beam", "4"], 2, "--beam says nothing of decoder-only models"),
    ],
    "runtimes": [
        ([AUDIO], 2, "AUDIO says nothing of decoder-only models"),
        (["--prompt", "60"], 2, "60 + 65 tokens are more than the 64"),
    ],
}
OF_A_T5 = {
    "generate": [
        (["--target", "1"], 2, "target must be 2 or more"),
        (["--beam", "1", "0"], 2, "argument --beam: must be 1 or more, not 0"),
        (["--lengths", "-3"], 2, "argument --lengths: must be 1 or more, not -3"),
        (["--beam", "65"], 2, "65 beams are more than 64 tokens"),
        (["--source", "5000"], 2, "5000 tokens are more than the 4096 of a source"),
        (["--lengths", "5000"], 2, "5000 tokens are more than the 4096 of a source"),
        (["--target", "4096"], 2, "4096 tokens are more than the 4095 of a target"),
        (["--prompt", "9"], 2, "--prompt says nothing of T5s, whose own options are --source"),
        (["--peers", "llama.cpp-q8_0"], 2, "llama.cpp-q8_0 takes no T5s: peers are "),
    ],
    "runtimes": [([], 1, "bench runtimes takes Whispers and decoder-only")],
}
OF_A_GGUF_FILE = {
    "serve": [
        NOBODY,
        (["--clients", "0"], 2, "argument --clients: must be 1 or more, not 0"),
        (["--shared", "4"], 2, "shared must be below the prompt's 4, not 4"),
        (["--prompt", "62"], 2, "62 + 3 tokens are more than the 64 that the model takes"),
        (["--peers", "faster-whisper"], 2, "faster-whisper takes no decoder-only models"),
        (["--clip", "3"], 2, "--clip says nothing of decoder-only models"),
        (["--baseline", "engine", "--clients", "4"], 2, "--baseline needs"),
    ]
}
OF_A_BUNDLE = {
    "runtimes": [([AUDIO], 1, "needs the checkpoint, and the model is a kvcast bundle")],
    "serve": [([], 1, "cannot be measured: bench serve needs the checkpoint")],
}


def gguf_file(folder: Path) -> str:
    # Its vocabulary has letters alone, so words are several tokens.
    return str(tiny_llama(folder / "tiny.gguf"))


def bundle(folder: Path) -> str:
    (folder / "bundle.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize("benchmark", ["generate", "open", "runtimes", "serve", "transcribe"])
def test_a_mistake_is_one_line(benchmark: str, chat: str, t5: str, tmp_path: Path, error_line):
    for table, more in (
        (WITHOUT_MODEL, []),
        (OF_A_RECORDING, [AUDIO]),
        (OF_A_CHAT, ["--model", chat]),
        (OF_A_T5, ["--model", t5]),
        (OF_A_GGUF_FILE, ["--model", gguf_file(tmp_path), *SERVED]),
        (OF_A_BUNDLE, ["--model", bundle(tmp_path)]),
    ):
        for words, code, message in table.get(benchmark, []):
            assert main(["bench", benchmark, *more, *words]) == code, words
            assert message in error_line(), words


def test_without_the_extra_one_line_says_what_to_install(monkeypatch, error_line):
    monkeypatch.setattr(commands, "find_spec", lambda _: None)
    assert main(["bench", "serve"]) == 1
    assert "bench serve needs aiohttp and fastapi and uvicorn: " in error_line()
