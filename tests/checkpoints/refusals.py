"""Whole checkpoints of every kind, and ways to damage a copy, for the table of refusals.

Knows no message: those are the table's.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from checkpoints.test_mistral_layout import write as write_mistral
from checkpoints.tiny_decoders import SETTINGS, random_decoder, save_decoder
from checkpoints.tiny_tensorflow import DATA, RELEASES
from checkpoints.tiny_whisper import (
    TIED,
    ct2_bytes,
    ct2_folder,
    ct2_variables,
    edit_json,
    random_model,
    save,
)
from kit.in_transformers import random_t5, save_t5
from kit.marian_files import write_bergamot
from kit.random_unilms import random_unilm, save_unilm
from kit.tiny_gguf import tiny_llama
from kvcast.checkpoints.source import open_checkpoint
from kvcast.checkpoints.text2text.tensorflow import read_checkpoint
from kvcast.errors import InputMissingError, InputOutputError, KvcastError

SHARD = "m.ckpt.data-00000-of-00001"
Damage = Mapping[str, Any] | Callable[[Path], object]


def _read_index(path: Path) -> None:
    for tensor in read_checkpoint(path).values():
        tensor.stored().read().sum()


@dataclass(frozen=True)
class Whole:
    """A checkpoint that opens: how it is written into a folder, and which file is opened."""

    write: Callable[[Path], object]
    file: str = ""
    opened: Callable[[Path], object] = open_checkpoint


WHOLE: Mapping[str, Whole] = {
    "whisper": Whole(lambda folder: save(random_model(), folder)),
    "whisper in shards": Whole(lambda folder: save(random_model(), folder, max_shard_size="10KB")),
    "bergamot": Whole(write_bergamot),
    "ct2": Whole(lambda folder: ct2_folder(folder, ct2_bytes(ct2_variables(), TIED))),
    **{
        name: Whole(lambda folder, name=name: save_decoder(random_decoder(name), folder))
        for name in SETTINGS
    },
    "llama in shards": Whole(
        lambda folder: save_decoder(random_decoder("llama"), folder, max_shard_size="10KB")
    ),
    "t5": Whole(lambda folder: save_t5(random_t5("T5_10"), folder)),
    "flan-t5": Whole(lambda folder: save_t5(random_t5("T5_11", num_layers=1), folder)),
    "roformer": Whole(lambda folder: save_unilm(random_unilm("roformer"), folder)),
    "bert": Whole(lambda folder: save_unilm(random_unilm("bert, pooled"), folder)),
    "mistral's layout": Whole(lambda folder: write_mistral(random_decoder("mistral"), folder)),
    **{
        name: Whole(
            lambda folder, name=name: shutil.copytree(DATA / name, folder, dirs_exist_ok=True)
        )
        for name in RELEASES
    },
    "gguf": Whole(lambda folder: tiny_llama(folder / "m.gguf"), "m.gguf"),
    "index": Whole(
        lambda folder: (folder / SHARD).write_bytes(bytes(48)), "m.ckpt.index", _read_index
    ),
}


FAILED, MISSING, UNREADABLE = (
    error.exit_code for error in (KvcastError, InputMissingError, InputOutputError)
)


@dataclass(frozen=True)
class Refusal:
    """A whole checkpoint, its damage, words of the message, and the exit code of a command.

    Damage is a function of the folder, or says of files what becomes of them: nothing, other fields
    of an object in JSON (None removes one), other contents, or a function of contents or tensors.
    """

    whole: str
    damage: Damage
    words: str | tuple[str, ...]
    exit_code: int

    @property
    def said(self) -> tuple[str, ...]:
        return (self.words,) if isinstance(self.words, str) else self.words

    def __str__(self) -> str:
        return f"{self.whole}: {' '.join(self.said)}"


Case = tuple[Any, str | tuple[str, ...]]


def refusals(
    whole: str, file: str, exit_code: int, *cases: Case, others: Mapping[str, Any] = {}
) -> list[Refusal]:
    """Return a row for each change of one file; `others` happens to other files in each of them."""
    return [Refusal(whole, {**others, file: change}, words, exit_code) for change, words in cases]


def each_saying(common: str, *cases: tuple[Any, str]) -> list[Case]:
    return [(change, (words, common)) for change, words in cases]


def damage(folder: Path, what: Damage) -> None:
    if not isinstance(what, Mapping):
        what(folder)
        return
    for name, change in what.items():
        path = folder / name
        if change is None:
            path.unlink()
        elif isinstance(change, Mapping):
            edit_json(path, **change)
        elif isinstance(change, str | bytes):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(change.encode() if isinstance(change, str) else change)
        elif path.suffix == ".safetensors":
            save_file(change(load_file(path)), path, metadata={"format": "pt"})
        else:
            path.write_bytes(change(path.read_bytes()))


def also(name: str, tensor: Any) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Add a tensor, which may be a function of the others."""
    return lambda tensors: {**tensors, name: tensor(tensors) if callable(tensor) else tensor}


def renamed(old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / old).rename(folder / new)
