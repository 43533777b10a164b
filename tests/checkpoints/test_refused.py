"""What kvcast does not read is one line with the way to what it does, and is never loaded."""

import pickle
import shutil
from functools import cache
from pathlib import Path

import pytest
from safetensors.torch import load_file

import whisper
from checkpoints.folder_checks import rewrite_weights
from checkpoints.refusal_rows import ROWS
from checkpoints.refusals import WHOLE, Refusal, damage
from kit.errors import one_line
from kvcast.checkpoints import source
from kvcast.checkpoints.hub import is_hub_id
from kvcast.checkpoints.hub_names import SPEECH, TEXT
from kvcast.checkpoints.source import fingerprint, locate, open_checkpoint
from kvcast.cli import main
from kvcast.errors import InputMissingError, InputOutputError, KvcastError, UsageError


class Trap:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def fetched(monkeypatch) -> list[str]:
    """What is asked of the hub, which is not there."""
    names: list[str] = []
    monkeypatch.setattr(source, "download", lambda name, _: names.append(name))
    return names


@pytest.mark.parametrize("name", whisper.available_models())
def test_every_name_of_openais_is_its_model_on_the_hub(name, fetched):
    hub_id = {
        "large-v1": "openai/whisper-large",
        "large": "openai/whisper-large-v3",
        "turbo": "openai/whisper-large-v3-turbo",
    }.get(name, f"openai/whisper-{name}")
    locate(name)
    locate(f"whisper-{name.upper()}")
    locate(hub_id)
    assert fetched == [hub_id] * 3


def test_other_programs_names_are_their_models_on_the_hub(fetched):
    for name in ("distil-large-v3", "qwen3:0.6b", "Qwen3", "smollm2:135m", "llama3.2:1b"):
        locate(name)
    assert fetched == [
        "distil-whisper/distil-large-v3",
        "Qwen/Qwen3-0.6B",
        "Qwen/Qwen3-8B",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "meta-llama/Llama-3.2-1B-Instruct",
    ]
    assert all(map(is_hub_id, (SPEECH | TEXT).values()))
    assert "did you mean large-v3-turbo?" in one_line(InputMissingError, locate, "large-v3-trubo")


def test_a_folder_of_such_a_name_is_that_folder(tmp_path, monkeypatch):
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate("tiny") == Path("tiny")
    assert "did you mean large-v" in one_line(InputMissingError, locate, "large-v9")


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt"])
def test_a_pickle_is_never_loaded_and_names_its_conversion(tmp_path, suffix):
    path, trap = tmp_path / f"my-model{suffix}", tmp_path / "unpickled"
    path.write_bytes(pickle.dumps(Trap(trap)))
    for message in (
        one_line(UsageError, locate, str(path)),
        one_line(UsageError, open_checkpoint, tmp_path),
    ):
        assert "never loads pickles" in message
        assert "convert_openai_to_hf.py" in message
        assert "hub id" not in message
    assert not trap.exists()
    pickle.loads(path.read_bytes())
    assert trap.exists()  # so the trap works


def test_a_published_pickle_leads_to_the_hub_whether_it_exists_or_not(tmp_path):
    path = tmp_path / "large-v3-turbo.pt"
    assert "openai/whisper-large-v3-turbo" in one_line(InputMissingError, locate, str(path))
    path.write_bytes(b"PK")
    message = one_line(UsageError, locate, str(path))
    assert "openai/whisper-large-v3-turbo" in message
    assert "convert_openai_to_hf.py" in message


@pytest.mark.parametrize(
    ("name", "hub_id"),
    [
        ("ggml-base.en.bin", "openai/whisper-base.en"),
        ("ggml-large-v3-turbo-q5_0.bin", "openai/whisper-large-v3-turbo"),
        ("ggml-mine.bin", None),
        ("mine.bin", None),
    ],
)
def test_a_ggml_file_leads_to_what_it_was_made_from(tmp_path, name, hub_id):
    path = tmp_path / name
    path.write_bytes((0x67676D6C).to_bytes(4, "little") + b"\0" * 40)
    for message in (
        one_line(UsageError, locate, str(path)),
        one_line(UsageError, open_checkpoint, tmp_path),
    ):
        assert "whisper.cpp" in message
        assert message.endswith(hub_id or "made from")


def test_an_adapter_alone_needs_its_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    assert "with --adapter" in one_line(KvcastError, open_checkpoint, tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    @cache
    def write(name: str) -> Path:
        folder = tmp_path_factory.mktemp("whole")
        WHOLE[name].write(folder)
        return folder

    return write


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "index"])
def test_what_is_damaged_below_opens_undamaged(whole, name):
    WHOLE[name].opened(whole(name) / WHOLE[name].file)


@pytest.mark.parametrize("refusal", ROWS, ids=str)
def test_a_damaged_checkpoint_is_one_line(whole, tmp_path, capsys, refusal: Refusal):
    folder = Path(shutil.copytree(whole(refusal.whole), tmp_path / "model"))
    damage(folder, refusal.damage)
    path, opened = folder / WHOLE[refusal.whole].file, WHOLE[refusal.whole].opened
    with pytest.raises(KvcastError) as caught:
        opened(path)
    message = str(caught.value)
    assert caught.value.exit_code == refusal.exit_code
    assert message.isprintable()
    assert [words for words in refusal.said if words not in message] == []
    if opened is open_checkpoint:
        output = str(tmp_path / "bundle")
        command = ["export", str(path), "--output", output, "--runtime", "onnx", "--quiet"]
        capsys.readouterr()  # what transformers said when it wrote the model
        assert main(command) == refusal.exit_code
        assert capsys.readouterr() == ("", f"kvcast: {message}\n")


# Beside the files that a folder of this kind is written with.
OPTIONAL = {
    "llama": ("chat_template.jinja", "special_tokens_map.json"),
    "t5": ("spiece.model",),
    "bert": ("tokenizer.json",),
    "ct2": ("preprocessor_config.json",),
}


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "index"])
def test_a_fingerprint_follows_every_file_that_matters_and_no_other(whole, tmp_path, name):
    folder = Path(shutil.copytree(whole(name), tmp_path / "model"))
    for file in OPTIONAL.get(name, ()):
        (folder / file).write_text("{}")
    path, files = folder / WHOLE[name].file, sorted(folder.iterdir())
    (folder / "README.md").write_text("x")
    seen = [fingerprint(path)]
    (folder / "README.md").unlink()
    for file in files:
        assert fingerprint(path) == seen[0]
        contents = file.read_bytes()
        last = contents[-1:] + b"\n" if file.suffix == ".json" else bytes([contents[-1] ^ 1])
        file.write_bytes(contents[:-1] + last)
        seen.append(fingerprint(path))
        file.write_bytes(contents)
    assert len(set(seen)) == len(seen) > 1


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *((name, "model.safetensors") for name in ("llama", "t5", "roformer")),
        ("llama in shards", "model-00002-of-00008.safetensors"),
        ("mistral's layout", "consolidated.safetensors"),
    ],
)
def test_weights_that_end_too_early_are_one_line(whole, tmp_path, name, file):
    folder = Path(shutil.copytree(whole(name), tmp_path / "model"))
    contents = (folder / file).read_bytes()
    for size in (0, 4, 7, 100, 200, len(contents) - 1):
        (folder / file).write_bytes(contents[:size])
        message = one_line(InputOutputError, open_checkpoint, folder)
        assert file in message
        assert "fetch it again" in message


@pytest.mark.parametrize(
    ("name", "prefix", "optional"),
    [
        ("flan-t5", "", ("shared.weight", "lm_head.weight")),
        ("roformer", "roformer.", ("embed_positions.weight",)),
        ("bert", "bert.", ("pooler.dense.weight", "seq_relationship.weight", "relationship.bias")),
    ],
)
def test_a_missing_tensor_is_named_whichever_it_is(whole, tmp_path, name, prefix, optional):
    folder = Path(shutil.copytree(whole(name), tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    missed = [missing for missing in tensors if not missing.endswith(optional)]
    assert len(missed) > 20
    for missing in missed:
        rewrite_weights(
            folder, lambda _, name=missing: {n: t for n, t in tensors.items() if n != name}
        )
        message = one_line(KvcastError, open_checkpoint, folder)
        assert f"has no tensor {missing.removeprefix(prefix)}" in message
