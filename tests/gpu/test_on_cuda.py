"""What only a CUDA device can show; skipped where there is none."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kit.dimensions import MISTRAL, SMALL
from kit.models import random_programs, speech
from kvcast_bench.gpu import random_model, variants
from kvcast_bench.greedy_step import compiled
from kvcast_bench.workloads.gpu import TimedModel

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is present"),
    # Inductor's and Triton's own, on a first compilation.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]
NEW = 12
TIMED = {
    "whisper": TimedModel(dimensions=SMALL, prompt=4, new=NEW),
    "ring": TimedModel(dimensions=MISTRAL, prompt=5, new=NEW),
    # Over the edge between 128 and 256 slots.
    "linear": TimedModel(
        dimensions=replace(MISTRAL, windows=(None,), max_positions=300), prompt=122, new=NEW
    ),
    # Steps to warm up a graph must not run out of positions.
    "last": TimedModel(dimensions=SMALL, prompt=31, new=1),
}


@torch.no_grad()
def greedy(decode, device: str, tokens_rs, shapes, given=()) -> list[int]:
    """Prefill and steps with kvcast's operators, on a device."""
    caches = [torch.zeros(s, device=device) for s in shapes for _ in range(2)]
    lengths = torch.zeros(1, dtype=torch.int32, device=device)
    tokens_rs, written = tokens_rs.to(device), []
    for _ in range(NEW):
        last = torch.tensor([tokens_rs.shape[1] - 1], device=device)
        logits, *_ = decode(tokens_rs, lengths, last, *caches, *given)
        lengths = lengths + tokens_rs.shape[1]
        tokens_rs = logits[:, -1].argmax(-1)[:, None]
        written.append(int(tokens_rs))
    return written


@torch.no_grad()
def test_a_whisper_on_cuda_writes_what_it_writes_on_the_cpu():
    written = []
    for device in ("cpu", "cuda"):
        programs = random_programs(SMALL)
        encode, decode = programs["encode"].to(device), programs["decode"].to(device)
        cross = encode(torch.from_numpy(speech(1, 0)[0]).to(device))
        shapes = [(1, 4, 32, 16)] * SMALL.decoder_layers
        written.append(greedy(decode, device, torch.tensor([[1, 2, 3]]), shapes, cross))
    assert written[0] == written[1]


def test_a_decoder_on_cuda_writes_what_it_writes_on_the_cpu():
    written = []
    for device in ("cpu", "cuda"):
        decode = random_programs(MISTRAL)["decode"].to(device)
        shapes = [(1, 2, 7, 16)] * MISTRAL.layers
        written.append(greedy(decode, device, torch.tensor([[1, 2, 3]]), shapes))
    assert written[0] == written[1]


def _written(name: str, dtype: torch.dtype) -> dict[str, list[int]]:
    written = {}
    model = random_model(TIMED[name], dtype, "cuda")
    for variant in variants("x", model, compiled, dtype="any"):
        assert variant.unfit() is None
        with torch.no_grad():
            variant.load()
            _, written[variant.name] = variant.write()
    return written


@pytest.mark.parametrize("name", list(TIMED))
def test_every_variant_writes_the_same_tokens(name: str):
    written = _written(name, torch.float32)
    assert len({tuple(tokens) for tokens in written.values()}) == 1


def test_graphs_replay_what_they_were_captured_from_in_bf16():
    written = _written("whisper", torch.bfloat16)
    assert written["x-graphs"] == written["x-programs"]


def test_a_bundle_for_cuda_makes_the_round_trip(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from kvcast.cli import main

    bundle = str(tmp_path / "dates")
    export = ["export", "demo-t5", "--runtime", "aoti", "--device", "cuda", "-o", bundle, "-q"]
    assert main(export) == 0
    capsys.readouterr()
    assert main(["generate", "--model", bundle, "3 March 2021"]) == 0
    assert "2021-03-03" in capsys.readouterr().out
