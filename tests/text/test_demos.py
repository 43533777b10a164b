"""The demo models: right answers come out of every runtime, for dates that training never saw."""

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kvcast
from kit.written_dates import FORMS, PARAPHRASES, dates_split, write_date
from kvcast.checkpoints import packaged
from kvcast.checkpoints.source import locate
from kvcast.cli import main
from kvcast.errors import KvcastError

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_demos.py"
DEMOS = ("demo-t5", "demo-unilm")
RUNTIMES = [
    ("native", "int8"),
    pytest.param(("onnx", "int8"), marks=pytest.mark.slow),
    # fp32 programs of small models equal one another on all runtimes, in tests/runtimes, where
    # int4 products are, too; test_accuracy.py has real weights in int4.
    *(
        pytest.param(settings, marks=pytest.mark.soak)
        for settings in (("eager", "none"), ("onnx", "none"), ("onnx", "int4"))
    ),
]
# Least share of right answers.
RIGHT = {"none": 0.995, "int8": 0.99, "int4": 0.99}
_, HELD_BACK = dates_split()


@pytest.fixture(scope="module", params=RUNTIMES, ids="-".join)
def settings(request):
    runtime, quantize = request.param
    return {"runtime": runtime, "quantize": quantize}


@pytest.fixture(scope="module")
def t5(settings):
    return kvcast.load("demo-t5", threads=1, **settings)


@pytest.fixture(scope="module")
def unilm(settings):
    return kvcast.load("demo-unilm", threads=1, **settings)


def sources(each: int) -> list[tuple[str, str]]:
    """Held-back dates, `each` in each form, in turn as it is, in lower and in upper case."""
    random = np.random.default_rng(7)
    cases = itertools.cycle((str, str.lower, str.upper))
    days = [HELD_BACK[i] for i in random.integers(len(HELD_BACK), size=each * len(FORMS))]
    forms = itertools.cycle(FORMS)
    return [
        (case(write_date(day, form)), day.isoformat())
        for day, form, case in zip(days, forms, cases, strict=False)
    ]


def share_right(model, each: int) -> float:
    texts, dates = zip(*sources(each), strict=True)
    answers = [answer.text for answer in model.generate(texts, max_new_tokens=16, batch=32)]
    wrong = [
        (text, answer)
        for text, answer, date in zip(texts, answers, dates, strict=True)
        if answer != date
    ]
    print(f"{len(wrong)} of {len(texts)} wrong: {wrong[:5]}")
    return 1 - len(wrong) / len(texts)


@pytest.mark.parametrize("demo", DEMOS)
def test_the_command_prints_the_iso_date(demo, settings, capsys):
    words = [word for option, value in settings.items() for word in (f"--{option}", value)]
    assert main(["generate", "--model", demo, *words, "3 March 2021"]) == 0
    assert capsys.readouterr().out == "2021-03-03\n"


def test_t5_writes_held_back_dates_in_iso_form(t5, settings):
    assert share_right(t5, each=16) >= RIGHT[settings["quantize"]]


def test_unilm_writes_held_back_dates_in_iso_form_where_nothing_is_drawn(unilm, settings):
    assert share_right(unilm, each=16) >= RIGHT[settings["quantize"]]


def test_unilm_draws_the_same_date_in_other_forms(unilm):
    random = np.random.default_rng(3)
    days = random.choice(HELD_BACK, size=40, replace=False)
    texts = [f"{day.day} {day:%b %Y}" for day in days]
    drawn = unilm.generate(texts, n=8, temperature=1.0, top_p=0.95, max_new_tokens=40)
    answers = [
        (day, text.text) for day, several in zip(days, drawn, strict=True) for text in several
    ]
    forms = [form_of(text, day) for day, text in answers]
    wrong = [answer for answer, form in zip(answers, forms, strict=True) if form is None]
    print(f"{len(wrong)} of {len(answers)} wrong: {wrong[:5]}")
    assert len(wrong) <= 0.02 * len(answers)
    # Sources share a seed, so they are drawn for alike.
    assert len(set(forms) - {None}) >= 4
    assert np.mean([len(several) for several in drawn]) >= 3


def form_of(text: str, day) -> str | None:
    return next((form for form in PARAPHRASES if write_date(day, form).lower() == text), None)


def test_unilm_embeds_a_date_nearest_to_itself_in_another_form(unilm):
    random = np.random.default_rng(5)
    # Neighbours among them: one day apart, and a year.
    days = [HELD_BACK[i] for i in random.integers(1, len(HELD_BACK) - 30, size=60)]
    days += [HELD_BACK[HELD_BACK.index(day) + 1] for day in days[:20]]
    days = sorted(set(days))
    forms = random.choice(len(FORMS), size=(2, len(days)))
    embedded = []
    for chosen in forms:
        texts = [write_date(day, FORMS[form]) for day, form in zip(days, chosen, strict=True)]
        vectors_nd = unilm.embed(texts)
        embedded.append(vectors_nd / np.linalg.norm(vectors_nd, axis=1, keepdims=True))
    nearest = (embedded[0] @ embedded[1].T).argmax(axis=1)
    assert np.mean(nearest == np.arange(len(days))) >= 0.95


@pytest.mark.parametrize("demo", DEMOS)
def test_a_demo_is_small_and_a_changed_file_is_refused(demo, tmp_path, monkeypatch):
    folder = tmp_path / demo
    shutil.copytree(locate(demo), folder)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 3_000_000
    monkeypatch.setattr(packaged, "_DEMOS", tmp_path)
    assert locate(demo) == folder
    with (folder / "config.json").open("a") as file:
        file.write(" ")
    with pytest.raises(KvcastError, match=r"config\.json has a wrong SHA-256: pip install"):
        locate(demo)


@pytest.mark.slow
@pytest.mark.parametrize("demo", ["demo-t5", pytest.param("demo-unilm", marks=pytest.mark.soak)])
def test_the_training_script_writes_a_model_that_loads(demo, tmp_path):
    folder = tmp_path / demo
    kind = demo.removeprefix("demo-")
    words = [sys.executable, str(SCRIPT), kind, str(folder), "--steps", "3", "--measure", "2"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "of held-back dates are right" in ran.stdout
    assert {file.name for file in folder.iterdir()} == {
        file.name for file in locate(demo).iterdir()
    }
    kvcast.load(folder, runtime="eager").generate("3 March 2021", max_new_tokens=2)
