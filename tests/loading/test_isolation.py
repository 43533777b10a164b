"""A package of native code is opened in a child process before it is opened here."""

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kit.errors import one_line
from kit.models import own_cache
from kvcast.bundle.manifest import FileRecord, Graph, Manifest
from kvcast.errors import KvcastError, UsageError
from kvcast.loading import isolation
from kvcast.loading.examination import call_once
from kvcast.loading.isolation import check_in_child, remember_success
from kvcast.machine.child import Answer

FILE = "executorch/model.pte"
MANIFEST = Manifest(
    family="t5",
    runtime="executorch",
    quantize="none",
    dimensions={},
    cache=(),
    graphs={"decode": Graph(file=FILE, inputs=("tokens",), outputs=("logits",))},
    source={},
    tools={},
    files={FILE: FileRecord(size=10**9, sha256="0" * 64)},
)
CHANGED = replace(MANIFEST, files={FILE: FileRecord(size=10**9, sha256="1" * 64)})


@pytest.fixture
def asked(monkeypatch, tmp_path):
    own_cache(monkeypatch, tmp_path / "cache")
    questions: list[Any] = []
    answers = [Answer()]

    def ask(*words: str, seconds: float) -> Answer:
        questions.append((*words, seconds))
        return answers[-1]

    monkeypatch.setattr(isolation, "ask", ask)
    return questions, answers


def test_what_went_well_is_not_tried_again_until_it_changes(asked, tmp_path):
    questions, _ = asked
    for manifest in (MANIFEST, MANIFEST, CHANGED, CHANGED, MANIFEST):
        check_in_child(tmp_path, manifest, trust=False)
    assert len(questions) == 2
    name, folder, runtime, trust, seconds = questions[0]
    assert name == "kvcast.loading.examination:open_and_call"
    assert (folder, runtime, trust) == (str(tmp_path), "executorch", "")
    assert seconds > 120  # it takes a while to read so much


def test_what_was_just_exported_is_not_tried(asked, tmp_path):
    questions, _ = asked
    remember_success(MANIFEST)
    check_in_child(tmp_path, MANIFEST, trust=False)
    assert questions == []


def test_a_crash_or_a_hang_is_one_line_each_time(asked, tmp_path):
    questions, answers = asked
    answers.append(Answer(problem="its process ended with signal 11", ended=True))
    for _ in range(2):
        line = one_line(KvcastError, partial(check_in_child, trust=True), tmp_path, MANIFEST)
        assert re.search(r"model\.pte .* ended with signal 11", line)
    assert questions[1][3] == "trust"


def test_any_other_problem_is_left_to_the_opening_here_and_not_remembered(asked, tmp_path):
    questions, answers = asked
    for answer in (Answer(problem="no tokenizer"), Answer(problem="cannot start None")):
        answers.append(answer)
        check_in_child(tmp_path, MANIFEST, trust=False)
    answers.append(Answer())
    check_in_child(tmp_path, MANIFEST, trust=False)
    check_in_child(tmp_path, MANIFEST, trust=False)
    assert len(questions) == 3


def test_graphs_of_onnx_runtime_are_not_tried(asked, tmp_path):
    check_in_child(tmp_path, replace(MANIFEST, runtime="onnx"), trust=False)
    assert asked[0] == []


def test_a_cache_that_cannot_be_written_only_costs_time(asked, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        check_in_child(tmp_path, MANIFEST, trust=False)
    assert len(asked[0]) == 2


class SpeechModel:
    task = "transcribe"

    def __init__(self) -> None:
        self.taken = 0

    def transcribe(self, audio, **options):
        for segment in range(2):
            self.taken += 1
            yield segment


class TextModel:
    task = "generate"

    def __init__(self) -> None:
        self.prompts = []

    def generate(self, prompt, max_new_tokens):
        if len(prompt) > 10:
            raise UsageError("too long")
        self.prompts.append(prompt)


def test_each_kind_of_model_is_called():
    speech, text = SpeechModel(), TextModel()
    call_once(speech)
    call_once(text)
    assert (speech.taken, len(text.prompts)) == (2, 2)
