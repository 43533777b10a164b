"""A family is one record: nothing else in kvcast tells families apart."""

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

import kvcast
from kit.dimensions import SMALL, SMALL_T5
from kvcast.errors import KvcastError
from kvcast.families.table import FAMILIES, family_of, family_with
from kvcast.spec.runtimes import imported

ROOT = Path(kvcast.__file__).parent
# Modules of one family alone. Readers of formats that hold several families name them as well.
OWN = {
    "whisper": (
        "families.whisper",
        "whisper.model",
        "whisper.tokenizer",
        "checkpoints.whisper_*",
        "checkpoints.alignment",
    ),
    "decoder": (
        "families.decoder",
        "text.model",
        "checkpoints.decoder_*",
        "checkpoints.tables",
        "checkpoints.gguf*",
        "checkpoints.mistral",
        "*.audio_decoder*",
    ),
    "t5": (
        "families.t5",
        "inspect.bias",
        "text.t5",
        "checkpoints.t5_huggingface",
    ),
    "bart": (
        "families.bart",
        "text.bart",
        "checkpoints.bart_huggingface",
    ),
    "audio_decoder": (
        "families.audio_decoder",
        "speech.audio_decoder",
        "checkpoints.audio_decoder_huggingface",
    ),
    "t5gemma": (
        "families.t5gemma",
        "text.t5gemma",
        "checkpoints.t5gemma_huggingface",
        "checkpoints.t5gemma2_huggingface",
    ),
    "moonshine": (
        "families.moonshine",
        "families.moonshine_encoder",
        "speech.moonshine",
        "checkpoints.moonshine_huggingface",
    ),
    "canary": (
        "families.canary",
        "speech.canary",
        "checkpoints.canary_huggingface",
    ),
    "parakeet": (
        "families.parakeet",
        "speech.parakeet",
        "checkpoints.parakeet_huggingface",
    ),
    "unilm": (
        "families.unilm",
        "text.unilm",
        "checkpoints.unilm_huggingface",
    ),
}
SHARED = (
    "families.table",
    "checkpoints.bert4keras",
    "checkpoints.ctranslate2",
    # Types of models, some of which have their family's name.
    "checkpoints.published",
    "speech.abilities",
)


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def is_one_of(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def test_only_a_familys_own_modules_import_its_dimensions():
    assert OWN.keys() == FAMILIES.keys()
    homes = {f"kvcast.families.{name}": name for name in OWN}
    strangers = {
        (module, homes[node.module])
        for module, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module in homes
        and not is_one_of(module, (*OWN[homes[node.module]], *SHARED))
    }
    assert strangers == set()


def test_only_records_and_readers_name_a_family():
    # "decoder" is also a name of tensors, and of a part of tokenizer.json.
    names = OWN.keys() - {"decoder"}
    naming = {
        module
        for module, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in names
    }
    own = tuple(pattern for name in names for pattern in OWN[name])
    assert {module for module in naming if not is_one_of(module, (*own, *SHARED))} == set()
    assert {f"families.{name}" for name in names} <= naming


def test_each_list_of_own_modules_is_of_modules_that_exist():
    known = [name for name, _ in modules()]
    patterns = [pattern for own in OWN.values() for pattern in own]
    absent = [
        pattern for pattern in (*patterns, *SHARED) if not any(fnmatch(n, pattern) for n in known)
    ]
    assert absent == []


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_record_names_classes_that_exist(family):
    for entry_point in (family.model_class, family.tokenizer):
        assert callable(imported(entry_point))


@pytest.mark.parametrize("dimensions", [SMALL, SMALL_T5], ids=["whisper", "t5"])
def test_dimensions_tell_their_family(dimensions):
    family = family_with(dimensions)
    assert family_of(family.name) is family
    assert set(family.programs(dimensions)) == {"encode", "decode"}


def test_an_unknown_family_is_one_line():
    with pytest.raises(KvcastError, match="knows no abacus models"):
        family_of("abacus")
