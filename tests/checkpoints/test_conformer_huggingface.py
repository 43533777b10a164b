"""Files of models with FastConformer encoders: what is refused, in one line."""

import json
from pathlib import Path

import pytest

from checkpoints.folder_checks import rewrite_weights
from checkpoints.tiny_whisper import edit_json
from kit.random_conformers import random_conformer, save_conformer
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import KvcastError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_conformer(random_conformer("canary"), tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_other_features_are_refused(folder: Path, name: str):
    fields = {"hop_length": 160, "preemphasis": 0.95}
    whole = {"feature_extractor": fields} if name.startswith("processor") else fields
    (folder / name).write_text(json.dumps(whole))
    with pytest.raises(KvcastError, match=r"preemphasis must be 0\.97, not 0\.95"):
        open_checkpoint(folder)


def test_a_tensor_that_is_changed_when_it_is_read_is_checked(folder: Path):
    kernel = "model.encoder.layers.1.conv.depthwise_conv.weight"
    rewrite_weights(folder, lambda tensors: tensors | {kernel: tensors[kernel][:, :, 1:].clone()})
    with pytest.raises(KvcastError, match=r"layers\.1\.conv\.depthwise_conv\.weight has shape"):
        open_checkpoint(folder)
    rewrite_weights(folder, lambda tensors: {k: v for k, v in tensors.items() if k != kernel})
    with pytest.raises(KvcastError, match=r"no tensor encoder\.layers\.1\.conv\.depthwise_conv"):
        open_checkpoint(folder)


def test_a_tokenizer_of_another_model_is_refused(folder: Path):
    def change(fields):
        for token in fields["added_tokens"]:
            token["content"] = token["content"].replace("startofcontext", "other")
        for entry in fields["model"]["vocab"]:
            entry[0] = entry[0].replace("startofcontext", "other")

    fields = json.loads((folder / "tokenizer.json").read_text())
    change(fields)
    (folder / "tokenizer.json").write_text(json.dumps(fields))
    with pytest.raises(KvcastError, match=r"has no token <\|startofcontext\|>"):
        open_checkpoint(folder)


def test_what_starts_texts_precedes_them(folder: Path):
    assert open_checkpoint(folder).dimensions.before == (7,)
    (folder / "generation_config.json").unlink()
    edit_json(folder / "config.json", decoder_start_token_id=4)
    assert open_checkpoint(folder).dimensions.before == (4, 7)
    (folder / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": 9}))
    assert open_checkpoint(folder).dimensions.before == (9, 7)
