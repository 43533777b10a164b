"""Rejects unsupported file formats, and suggests how to convert them.

OpenAI's .pt files, other pickled weights, whisper.cpp's ggml files, adapters. Pickles are
never loaded, because loading one runs its code. Only names and first bytes of files are examined.
"""

import re
from pathlib import Path

from kvcast.checkpoints.hub_names import SPEECH
from kvcast.errors import InputMissingError, KvcastError, UsageError

_PICKLES = (".pt", ".pth", ".ckpt")
_PARTS = (".incomplete", ".part", ".partial", ".crdownload", ".aria2", ".!qB")
_BIN = ".bin"
_PICKLED = (b"PK\x03\x04", b"\x80\x02")  # torch's archive, and the form before it
_GGML = b"lmgg"  # 0x67676d6c, little-endian
# ggml-base.en-q5_1.bin is base.en.
_GGML_NAME = re.compile(r"ggml-(?P<name>.+?)(-q\d_\w+)?\.bin")
_CONVERT = (
    "convert it with transformers' convert_openai_to_hf.py (in src/transformers/models/whisper of "
    "its repository; options --checkpoint_path FILE --pytorch_dump_folder_path FOLDER "
    "--convert_preprocessor True) and give the folder"
)


def refuse_name(model: str) -> None:
    """Raise InputMissingError for openai-whisper's .pt files, with the hub id to use."""
    path = Path(model)
    if path.suffix in _PICKLES:
        raise InputMissingError(f"no file {model}, {_describe_pickle(path)}")


def refuse_file(path: Path) -> None:
    """Raise UsageError for any file but a GGUF, with the way to a model that kvcast reads."""
    if path.suffix in _PICKLES:
        raise UsageError(f"{path} is a pickle, {_describe_pickle(path)}")
    if _is_ggml(path):
        match = _GGML_NAME.fullmatch(path.name)
        hub_id = SPEECH.get(match["name"]) if match else None
        origin = f", {hub_id}" if hub_id else ""
        raise UsageError(
            f"{path} is a ggml file of whisper.cpp's, which kvcast does not read: give the "
            f"Hugging Face or CTranslate2 model that it was made from{origin}"
        )
    if path.suffix == _BIN and _begins(path, *_PICKLED):
        raise UsageError(
            f"{path} is a pickle, which kvcast never loads: convert the model with transformers' "
            "save_pretrained, which writes safetensors, and give the folder"
        )
    if (path.parent / "config.json").is_file():
        raise UsageError(f"{path} is a file: give its folder, {path.parent}")
    raise UsageError(
        f"{path} is a file and no GGUF, and no config.json is beside it: give the folder of "
        "a whole model, or a GGUF file"
    )


def refuse_folder(folder: Path) -> None:
    """Raise KvcastError for a folder with nothing but part of a download, a pickle, an adapter."""
    if not folder.is_dir():
        return
    refuse_incomplete(folder)
    if (folder / "adapter_config.json").is_file():
        raise KvcastError(
            f"{folder} holds an adapter without its model: give the model, and this folder with "
            "--adapter"
        )
    for path in sorted(folder.iterdir()):
        if path.suffix in _PICKLES or _is_ggml(path):
            refuse_file(path)


def refuse_incomplete(folder: Path, missing: str = "") -> None:
    """Raise InputMissingError for a folder that a download has not finished.

    Also a snapshot in the hub's cache, whose files are links to others. If a file is `missing`, all
    that is there counts as part of a download.
    """
    places, again = [folder, folder / ".cache/huggingface/download"], "the download"
    if folder.parent.name == "snapshots":
        root = folder.resolve().parents[1]
        places.append(root / "blobs")
        again = f"hf download {'/'.join(root.name.split('--')[1:])}"
    parts = [path.name for place in places for path in place.glob("*") if path.suffix in _PARTS]
    if parts or missing:
        what = parts[0][:80] if parts else f"no {missing}"
        raise InputMissingError(f"{folder}: download incomplete ({what}): run {again} again")


def _describe_pickle(path: Path) -> str:
    hub_id = SPEECH.get(path.stem)
    published = f"for the published model of that name give its hub id, {hub_id}; otherwise "
    return f"and kvcast never loads pickles: {published if hub_id else ''}{_CONVERT}"


def _is_ggml(path: Path) -> bool:
    return path.suffix == _BIN and path.is_file() and _begins(path, _GGML)


def _begins(path: Path, *beginnings: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(max(map(len, beginnings))).startswith(beginnings)
