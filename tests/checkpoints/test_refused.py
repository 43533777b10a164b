"""What kvcast does not read is one line with the way to what it does, and is never loaded."""

import pickle
from pathlib import Path

import pytest

import whisper
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.errors import InputMissingError, KvcastError, UsageError


def one_line(kind, function, *arguments):
    with pytest.raises(kind) as caught:
        function(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


class Trap:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", whisper.available_models())
def test_every_name_of_openais_leads_to_the_hub(name):
    message = one_line(InputMissingError, locate, name)
    hub_id = {
        "large-v1": "openai/whisper-large",
        "large": "openai/whisper-large-v3",
        "turbo": "openai/whisper-large-v3-turbo",
    }.get(name, f"openai/whisper-{name}")
    assert message.endswith(f"give its hub id, {hub_id}")
    assert one_line(InputMissingError, locate, f"whisper-{name}").endswith(hub_id)


def test_so_do_names_of_distilled_models():
    message = one_line(InputMissingError, locate, "distil-large-v3")
    assert message.endswith("distil-whisper/distil-large-v3")


def test_a_folder_of_such_a_name_is_that_folder(tmp_path, monkeypatch):
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate("tiny") == Path("tiny")


def test_an_unknown_name_is_told_what_a_model_may_be():
    assert "hub id" in one_line(InputMissingError, locate, "large-v9")


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt"])
def test_a_pickle_is_never_loaded_and_is_told_how_to_be_converted(tmp_path, suffix):
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


def test_an_adapter_alone_is_told_to_be_merged(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    assert "merge_and_unload" in one_line(KvcastError, open_checkpoint, tmp_path)
