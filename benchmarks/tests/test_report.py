"""From measurements to the JSON object and the tables, with figures that are easy to divide."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from kit.dimensions import SMALL
from kvcast.errors import KvcastError
from kvcast.inspect.roofline import Arithmetic
from kvcast.inspect.work import ModelWork
from kvcast_bench.backend import Backend
from kvcast_bench.commands.runtimes import Steps, compared
from kvcast_bench.models import SpeechModel
from kvcast_bench.peers.kvcast import Kvcast
from kvcast_bench.recompute.backend import Recomputing
from kvcast_bench.render import render
from kvcast_bench.report import Benchmark, measure
from kvcast_bench.runner import Loaded, Runner
from kvcast_bench.turns import BackendResult, Results
from kvcast_bench.workload import Workload
from kvcast_bench.workloads.causal import Causal
from kvcast_bench.workloads.seq2seq import Seq2seq
from kvcast_bench.workloads.speech import SpeechWorkload
from scripted_backend import Scripted
from tiny_models import TINY, TINY_T5

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "bench.schema.json").read_text(encoding="utf-8")
)
RATES = {"read": 1e9, "read_again": 2e9, "int8": 1e12, "fp32": 1e11}
INT8 = Arithmetic(precision="int8")
SPEECH = SpeechWorkload(
    dimensions=SMALL,
    language="en",
    recordings=[np.zeros(1, np.float32)],
    audio={"name": "talk.flac", "recordings": 1, "seconds": 2.5},
    references=["a b"],
)
CAUSAL = Causal(dimensions=TINY, prompt=16, new=2, batch=[4], positions=[32], window=8)
SEQ2SEQ = Seq2seq(dimensions=TINY_T5, source=16, target=3, batch=[2], beam=[4], lengths=[8, 32])


@dataclass(frozen=True, kw_only=True)
class Canned(Runner):
    """Measures nothing: seconds of each backend's turns are given, and calls of a breakdown."""

    seconds: Mapping[str, Sequence[float]]
    parts: Mapping[str, float]
    calls: Sequence[Mapping[str, Any]] = ()
    machine: Mapping[str, float] | None = None
    absent: tuple[str, ...] = ()
    broken: str = ""  # who fails when its time is broken down

    @contextmanager
    def loaded(self, backends: Sequence[Backend]) -> Iterator[tuple[list[Loaded], dict[str, str]]]:
        here = [backend for backend in backends if backend.name not in self.absent]
        reasons = dict.fromkeys(self.absent, "not installed: pip install missing")
        nowhere: Any = None
        facts = {"versions": {"one": "1.0"}, "import_seconds": 0.5, "load_seconds": 0.25}
        yield [Loaded(backend, facts, nowhere) for backend in here], reasons

    def turns(
        self, loaded: Sequence[Loaded], trials: Sequence[Any], method: str = "run"
    ) -> Results:
        act = self._result if method == "run" else self._broken_down
        return [
            (
                trial,
                {
                    player.backend.name: act(trial, player)
                    for player in loaded
                    if player.backend.takes(trial)
                },
            )
            for trial in trials
        ]

    def _result(self, trial: Mapping[str, Any], player: Loaded) -> BackendResult:
        metrics = self.workload.metrics[trial["measure"]]
        factor = 1.5 if trial.get("source") == 32 else 1
        answers = [
            dict.fromkeys(metrics, factor * s)
            | {
                "tokens": [7],
                "texts": [" a c" if player.backend.name == "slow" else "A b. "],
                "peak_bytes": 10**7,
            }
            for s in self.seconds[player.backend.name]
        ]
        failure = "its process ended" if player.backend.name == "ill" else None
        return BackendResult(answers, [0.0] * len(answers), 0, failure)

    def _broken_down(self, trial: Mapping[str, Any], player: Loaded) -> BackendResult:
        answer = {"whole": sum(self.parts.values()), **self.parts, "calls": self.calls}
        failure = "its process ended" if player.backend.name == self.broken else None
        return BackendResult([answer] * 2, [0.0] * 2, 0, failure)

    def rates(self, step_bytes: int) -> dict[str, float] | None:
        return None if self.machine is None else dict(self.machine)


SECONDS = {"kvcast-int8": [0.1, 0.2, 0.9], "slow": [0.8, 0.6, 0.7], "odd": [0.4], "ill": [1]}
PARTS = {
    "speech": {"mel": 1.0, "encode": 4.0, "prefill": 1.0, "step": 2.0, "reorder": 0.0, "loop": 2.0},
    "causal": {"prefill": 1.0, "step": 2.0, "loop": 1.0},
    "seq2seq": {"encode": 4.0, "prefill": 1.0, "step": 2.0, "reorder": 1.0, "loop": 2.0},
}
CALLS = {
    "speech": [{"part": "encode", "inputs": 1}],
    "causal": [],
    "seq2seq": [{"part": "encode", "inputs": 2}],
}


def calls(kind: str, rows: int) -> list[dict[str, Any]]:
    call = {"rows": rows, "asked": 1}
    return [
        *CALLS[kind],
        {"part": "prefill", **call, "new": 16, "held": 0},
        {"part": "step", **call, "new": 1, "held": 16},
        {"part": "step", **call, "new": 1, "held": 17},
    ]


def measured(workload: Any, floor: bool = True, rows: int = 1) -> dict[str, Any]:
    kind = workload.name
    backends = [
        Scripted(name="kvcast-int8", precision="int8", arithmetic=INT8),
        Scripted(name="slow", precision="int8"),
        Scripted(name="odd", precision="int4"),
        Scripted(name="ill", precision="int8"),
        Scripted(name="missing"),
    ]
    runner = Canned(
        workload=workload,
        threads=2,
        runs=3,
        seconds=SECONDS,
        parts=PARTS[kind],
        calls=calls(kind, rows),
        machine=RATES if floor else None,
        absent=("missing",),
    )
    benchmark = Benchmark(
        name="generate",
        model="demo",
        runner=runner,
        backends=backends,
        references=lambda backend: {"kvcast": f"kvcast-{backend.precision}"},
        needed=["kvcast-int8"],
    )
    return measure(benchmark)


WORKLOADS: Mapping[str, Workload] = {"speech": SPEECH, "causal": CAUSAL, "seq2seq": SEQ2SEQ}
everybody = pytest.mark.parametrize("kind", WORKLOADS)


def row(whole: Mapping[str, Any], name: str, **trial: Any) -> dict[str, Any]:
    return next(
        row
        for row in whole["rows"]
        if row["backend"] == name and trial.items() <= row["trial"].items()
    )


def cells(text: str, *first: str) -> list[str]:
    lines = [line.split() for line in text.splitlines()]
    return next(line for line in lines if tuple(line[: len(first)]) == first)


@everybody
@pytest.mark.parametrize("floor", [True, False])
def test_the_object_keeps_its_schema(kind: str, floor: bool):
    jsonschema.validate(json.loads(json.dumps(measured(WORKLOADS[kind], floor))), SCHEMA)


@pytest.mark.parametrize("change", [{"version": 1}, {"rows": [{"backend": "a"}]}, {"more": 1}])
def test_the_schema_refuses_what_is_no_such_object(change: dict[str, Any]):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**measured(SPEECH), **change}, SCHEMA)


@everybody
def test_medians_are_compared_within_the_run_and_the_precision(kind: str):
    whole = measured(WORKLOADS[kind])
    metric = WORKLOADS[kind].metrics[whole["rows"][0]["trial"]["measure"]][0]
    ours, slow, odd = (
        row(whole, name)["metrics"][metric] for name in ("kvcast-int8", "slow", "odd")
    )
    assert (ours["median"], ours["min"], ours["max"]) == (0.2, 0.1, 0.9)
    assert ours["all"] == [0.1, 0.2, 0.9]
    assert ours["times"] == {"kvcast": 1}
    assert slow["times"]["kvcast"] == pytest.approx(3.5)
    assert odd["times"] == {"kvcast": None}  # nobody of kvcast's in that precision
    ill = row(whole, "ill")
    assert ill == {"backend": "ill", "trial": ill["trial"], "failure": "its process ended"}


def test_nothing_is_compared_with_what_took_no_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SECONDS, "kvcast-int8", [0.0, 0.0, 0.1])
    monkeypatch.setattr(SpeechWorkload, "facts", lambda *_: {})
    whole = measured(SPEECH)
    jsonschema.validate(json.loads(json.dumps(whole)), SCHEMA)
    assert row(whole, "slow")["metrics"]["transcribe"]["times"] == {"kvcast": None}
    assert "0.700" in render(whole, SPEECH.tables())


def test_facts_of_each_kind():
    spoken = row(measured(SPEECH), "slow")
    speed = 2.5 / spoken["metrics"]["transcribe"]["median"]
    assert spoken["facts"] == {"word_error": 0.5, "speed": speed, "text": "a c"}
    unknown = measured(replace(SPEECH, references=None))
    assert row(unknown, "slow")["facts"]["word_error"] is None
    text = row(measured(CAUSAL), "kvcast-int8")["facts"]
    assert text == {"tokens": [7], "tokens_per_second": 20}
    target = row(measured(SEQ2SEQ), "kvcast-int8")["facts"]
    assert target["tokens_per_second"] == pytest.approx(2 * 3 / 0.2)
    assert target["over_first_length"] is None
    longer = row(measured(SEQ2SEQ), "kvcast-int8", source=32)["facts"]
    assert longer["over_first_length"] == pytest.approx(1.5)


def test_shares_counts_and_fractions_come_from_the_breakdown():
    whole = measured(SEQ2SEQ, rows=2)
    entry = next(row for row in whole["breakdown"] if row["trial"]["source"] == 16)
    assert entry["metrics"]["reorder"] == {"median": 1.0, "share": 0.1}
    assert entry["facts"]["steps"] == 2
    assert entry["facts"]["inputs"] == 2
    held = {part: metric for part, metric in entry["metrics"].items() if "floor" in metric}
    assert list(held) == ["whole", "encode", "prefill", "step"]
    assert (held["step"]["calls"], held["step"]["median"]) == (2, 2.0)
    cost = partial(INT8.cost, stored=Seq2seq.stored, width=TINY_T5.width)
    model = ModelWork(dimensions=TINY_T5, source=16)
    encode = cost(model.encode(2) + model.project(2))
    assert held["encode"]["floor"] == pytest.approx(
        max(encode.bytes / 2e9, encode.int8 / 1e12 + encode.fp32 / 1e11)
    )
    prefill = cost(model.call(0, 16, rows=2, inputs=2))
    assert held["prefill"]["floor"] == pytest.approx(
        max(prefill.bytes / 2e9, prefill.int8 / 1e12 + prefill.fp32 / 1e11)
    )
    parts = [held[part]["floor"] for part in ("encode", "prefill", "step")]
    assert held["whole"]["floor"] == pytest.approx(sum(parts))
    assert held["whole"]["fraction"] == pytest.approx(sum(parts) / 10)


def test_steps_at_a_position_are_held_against_their_floor():
    whole = measured(CAUSAL)
    far = row(whole, "kvcast-int8", measure="position")["metrics"]["step"]
    cost = INT8.cost(ModelWork(dimensions=TINY).call(32, 1), Causal.stored, TINY.width)
    assert far["floor"] == pytest.approx(cost.bytes / 2e9)
    assert far["fraction"] == pytest.approx(far["floor"] / 0.2)
    assert "floor" not in row(whole, "slow", measure="position")["metrics"]["step"]


def test_a_window_lowers_the_floor():
    narrow = Scripted(name="ring", window=4)
    trial = CAUSAL.trials()[-1]
    whole, ring = (CAUSAL.work(trial, backend)["step"] for backend in (Scripted(), narrow))
    assert whole.held - ring.held == 2 * 2 * TINY.kv_heads * TINY.head_dim * (32 - 3)


@everybody
def test_the_tables_show_every_backend_without_terminal_codes(kind: str):
    workload = WORKLOADS[kind]
    text = render(measured(workload), workload.tables())
    assert "\x1b" not in text
    places = {"speech": ["1"], "causal": ["4"], "seq2seq": ["2", "4"]}[kind]
    middle = "0.700" if kind == "speech" else "700.00"
    least = "0.600" if kind == "speech" else "600.00"
    assert cells(text, "slow", "int8")[2:][: len(places) + 2] == [*places, middle, least]
    assert "its process ended" in text
    assert "missing: not installed: pip install missing" in text
    assert cells(text, "share", "kvcast-int8")[-1].endswith("%")
    assert cells(text, "step", "kvcast-int8")[1] == "kvcast-int8"


def test_steps_are_compared_over_the_lengths_of_sources():
    text = render(measured(SEQ2SEQ), SEQ2SEQ.tables())
    table = text[text.index("one source at a time") :]
    short, long = (cells(table, "kvcast-int8", "int8", length) for length in ("8", "32"))
    assert short[-4:] == ["1.00", "10", "0.25", "0.50"]
    assert long[-4:] == ["1.50", "10", "0.25", "0.50"]


@everybody
def test_without_a_floor_the_report_says_what_it_needs(kind: str):
    workload = WORKLOADS[kind]
    report = render(measured(workload, floor=False), workload.tables())
    assert "no floor: kvcast's own kernels" in report


def test_a_busy_machine_is_marked():
    crowded = measured(SPEECH)
    crowded["rows"][0]["others"] = 0.4
    text = render(crowded, SPEECH.tables())
    assert "0.200 *" in text
    assert "others used up to 40% of the machine" in text


def benchmark_of(workload: Workload, *names: str, **options: Any) -> Benchmark:
    runner = Canned(workload=workload, threads=1, runs=1, seconds=SECONDS, parts={}, **options)
    backends = [Scripted(name=name) for name in names]
    return Benchmark(name="it", model="demo", runner=runner, backends=backends, needed=names[:1])


def test_kvcast_is_needed_beside_peers():
    benchmark = benchmark_of(SPEECH, "kvcast", "slow", absent=("kvcast",))
    with pytest.raises(KvcastError, match="kvcast itself: not installed"):
        measure(benchmark)
    with pytest.raises(KvcastError, match="nothing can be measured: not installed"):
        measure(replace(benchmark, backends=[Scripted(name="kvcast")], needed=[]))


def test_a_breakdown_that_fails_is_an_error():
    with pytest.raises(KvcastError, match=r"no breakdown of .*'text'.*: its process ended"):
        measure(benchmark_of(CAUSAL, "kvcast-int8", broken="kvcast-int8"))


ON_RUNTIMES = Steps(**{**vars(SPEECH), "position": 7})


def on_runtimes(floor: bool = True) -> dict[str, Any]:
    model = SpeechModel(folder="nowhere", threads=1)
    backends = [
        Kvcast(model, "onnx", "int8"),
        Kvcast(model, "aoti", "int8"),
        Recomputing(model, "aoti", "int8"),
    ]
    runner = Canned(
        workload=ON_RUNTIMES,
        threads=2,
        runs=3,
        seconds={
            "onnx-int8": [0.1, 0.2, 0.9],
            "aoti-int8": [0.05, 0.1, 0.45],
            "aoti-int8-recompute": [0.4, 0.8, 3.6],
        },
        parts={},
        machine=RATES if floor else None,
        absent=(),
    )
    return measure(
        Benchmark(
            name="runtimes", model="demo", runner=runner, backends=backends, references=compared
        )
    )


def test_runtimes_are_compared_with_onnx_and_with_the_cached_variant():
    whole = on_runtimes()
    jsonschema.validate(json.loads(json.dumps(whole)), SCHEMA)
    cached = row(whole, "aoti-int8", measure="step")["metrics"]["step"]
    assert cached["times"] == {"onnx": pytest.approx(0.5)}
    recomputing = row(whole, "aoti-int8-recompute", measure="step")["metrics"]["step"]
    assert recomputing["times"] == pytest.approx({"onnx": 4, "cached": 8})
    end_to_end = row(whole, "onnx-int8", measure="transcribe")
    assert "floor" not in end_to_end["metrics"]["transcribe"]
    assert whole["breakdown"] == []


def test_fractions_are_of_each_variants_own_floor():
    whole = on_runtimes()
    model = ModelWork(dimensions=SMALL)
    cost = INT8.cost(model.call(7, 1), SpeechWorkload.stored, SMALL.d_model)
    step = row(whole, "onnx-int8", measure="step")["metrics"]["step"]
    least = max(cost.bytes / 2e9, cost.int8 / 1e12 + cost.fp32 / 1e11)
    assert step["floor"] == pytest.approx(least)
    assert step["fraction"] == pytest.approx(least / 0.2)
    assert whole["rates"][0]["step_bytes"] == round(cost.bytes)


def test_recomputing_is_charged_the_projections_that_encode_is_spared():
    cached, again = Scripted(), Scripted(recomputes=True)
    step, encode = ON_RUNTIMES.trials()[:2]
    projections = ModelWork(dimensions=SMALL).project()
    more = ON_RUNTIMES.work(step, again)["step"], ON_RUNTIMES.work(step, cached)["step"]
    assert more[0] == more[1] + projections
    whole = ON_RUNTIMES.work(encode, cached)["encode"]
    assert whole == ON_RUNTIMES.work(encode, again)["encode"] + projections


def test_the_tables_of_runtimes_say_what_was_done():
    text = render(on_runtimes(), ON_RUNTIMES.tables())
    assert cells(text, "aoti-int8-recompute", "int8")[2:5] == ["800.00", "400.00", "3600.00"]
    assert "1 row, 1 new token at position 7, 25 source positions" in text
    whole = text[text.index("2.50 s of sound to text: greedy (beam 1)") :]
    assert cells(whole, "backend")[:4] == ["backend", "precision", "median", "ms"]
    assert cells(whole, "aoti-int8-recompute", "int8")[2:4] == ["800.00", "400.00"]
