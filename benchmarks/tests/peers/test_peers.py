"""Who takes part in what: rows of the tables, and why somebody cannot take a model."""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcast_bench.models import (
    BenchModel,
    CausalModel,
    Seq2seqModel,
    SpeechModel,
    installed_versions,
)
from kvcast_bench.peers.kvcast import PRECISIONS, RUNTIMES, Kvcast
from kvcast_bench.peers.table import CAUSAL, SEQ2SEQ, SPEECH
from kvcast_bench.writing.huggingface import write_huggingface
from tiny_models import TINY, tiny_checkpoint

TABLES: Mapping[str, tuple[Mapping[str, Any], type[BenchModel]]] = {
    "speech": (SPEECH, SpeechModel),
    "causal": (CAUSAL, CausalModel),
    "seq2seq": (SEQ2SEQ, Seq2seqModel),
}
everybody = pytest.mark.parametrize("kind", TABLES)


@everybody
def test_every_peer_is_what_its_row_says_and_can_be_sent_to_a_process(kind: str):
    peers, model = TABLES[kind]
    capability = {"speech": "transcribe", "causal": "generate", "seq2seq": "write"}[kind]
    for name, make in peers.items():
        peer = pickle.loads(pickle.dumps(make(model=model(folder="x", threads=3))))
        assert peer.name == name
        assert peer.precision in ("fp32", "bf16", "fp16", "int8", "int4", "own")
        assert peer.packages
        assert peer.modules
        assert peer.dtype
        assert peer.settings
        assert callable(getattr(peer, capability))


@everybody
def test_peers_that_cannot_take_a_bundle_say_why(kind: str, tmp_path: Path):
    peers, model = TABLES[kind]
    (tmp_path / "bundle.json").touch()
    for make in peers.values():
        assert make(model=model(folder=str(tmp_path), threads=1)).unfit()


def test_windows_are_for_everybody_but_llama_cpp(tmp_path: Path):
    windowed = replace(TINY, architecture="mistral", windows=(7, 7))
    write_huggingface(tiny_checkpoint(windowed), tmp_path / "model")
    model = CausalModel(folder=str(tmp_path / "model"), threads=1)
    unfit = {name: make(model=model).unfit() for name, make in CAUSAL.items()}
    assert {name for name, reason in unfit.items() if reason} == {
        "llama.cpp-q8_0",
        "llama.cpp-q4_0",
        "llama.cpp-own",
    }


def test_versions_are_those_of_all_packages_or_none():
    assert installed_versions(("numpy", "no-such-package-anywhere")) is None
    assert installed_versions(("numpy",))


def test_a_precision_that_a_runtime_lacks_has_a_reason():
    reasons = {
        ours.name: ours.unfit()
        for runtime in RUNTIMES
        for precision in PRECISIONS
        if (ours := Kvcast(BenchModel(folder="x", threads=1), runtime, precision))
        and precision in ("fp32", "bf16")
    }
    assert "drop --dtype bf16" in reasons["onnx-bf16"]
    assert "drop --dtype bf16" in reasons["executorch-bf16"]
    assert reasons["onnx-fp32"] is reasons["eager-fp32"] is None
