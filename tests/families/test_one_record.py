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
        "checkpoints.speech.whisper*",
    ),
    "decoder": (
        "families.decoder",
        "text.model",
        "checkpoints.decoder.*",
        "checkpoints.gguf.*",
        "*.audio_decoder*",
    ),
    "t5": ("families.t5", "inspect.bias", "checkpoints.text2text.t5"),
    "bart": ("families.bart", "checkpoints.text2text.bart", "checkpoints.text2text.bergamot"),
    "audio_decoder": (
        "families.audio_decoder",
        "speech.audio_decoder",
        "checkpoints.speech.audio_decoder",
    ),
    "t5gemma": ("families.t5gemma", "checkpoints.text2text.t5gemma"),
    "moonshine": (
        "families.moonshine",
        "families.moonshine_encoder",
        "speech.moonshine",
        "checkpoints.speech.moonshine",
        "checkpoints.speech.moonshine_ort",
    ),
    "canary": ("families.canary", "checkpoints.speech.canary"),
    "parakeet": (
        "families.parakeet",
        "checkpoints.speech.parakeet",
        "checkpoints.gguf.parakeet",
    ),
    "unilm": ("families.unilm", "checkpoints.text2text.unilm"),
    "text_encoder": (
        "families.text_encoder",
        "text.encoders",
        "checkpoints.text_encoders",
        "checkpoints.sentence_transformers",
    ),
    "cross_encoder": ("families.text_encoder",),
}
SHARED = (
    "families.table",
    "checkpoints.text2text.bert4keras",
    "checkpoints.speech.ctranslate2",
    "speech.conformer",  # the models of Canary and Parakeet
    "text.text2text",  # those of all families that read a source
    # Types of models, some of which have their family's name.
    "checkpoints.hub",
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
    assert {f"families.{name}" for name in names - {"cross_encoder"}} <= naming


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
    with pytest.raises(KvcastError, match="does not support abacus models"):
        family_of("abacus")
