"""`kvcast models` lists the readers' tables exactly."""

import json

import jsonschema
import pytest

from cli.fakes import schema
from kvcast.checkpoints.gguf.config import ARCHITECTURES
from kvcast.checkpoints.hub import PUBLISHED, is_hub_id
from kvcast.checkpoints.huggingface import _FAMILIES
from kvcast.cli import main
from kvcast.families.table import FAMILIES
from kvcast.spec.runtimes import RUNTIMES

SCHEMA = schema("models")


@pytest.fixture
def document(capsys: pytest.CaptureFixture[str]) -> dict:
    assert main(["models", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_document_lists_all_types_families_and_runtimes(document: dict) -> None:
    jsonschema.validate(document, SCHEMA)
    assert [family["name"] for family in document["families"]] == list(FAMILIES)
    assert [runtime["name"] for runtime in document["runtimes"]] == list(RUNTIMES)
    listed = {
        (kind["name"], layout)
        for family in document["families"]
        for kind in family["types"]
        for layout in kind["formats"]
    }
    types = {kind for family in _FAMILIES for kind in family.model_types}
    assert {name for name, layout in listed if layout == "Hugging Face"} == types
    in_gguf = {name for name, layout in listed if layout == "GGUF"}
    assert in_gguf == {*ARCHITECTURES, "parakeet_ctc", "parakeet_rnnt", "parakeet_tdt"}
    assert {layout for _, layout in listed} >= {"CTranslate2", "Mistral", "bert4keras"}
    for runtime in document["runtimes"]:
        assert runtime["quantize"][0] == RUNTIMES[runtime["name"]].default_quantize


def test_examples_are_hub_ids_of_known_types(document: dict) -> None:
    types = {kind["name"]: kind for family in document["families"] for kind in family["types"]}
    assert types.keys() >= {name.partition(" (")[0] for name in PUBLISHED}
    assert all(is_hub_id(example) for example in PUBLISHED.values())
    assert types["whisper"]["example"] == PUBLISHED["whisper"]


def test_the_list_for_people_has_each_type_on_a_line_of_its_family(document, capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for family in document["families"]:
        first = lines.index(f"{family['title']} (kvcast {family['task']})") + 1
        rows = [line.split()[0] for line in lines[first : first + len(family["types"])]]
        assert rows == [kind["name"] for kind in family["types"]]
