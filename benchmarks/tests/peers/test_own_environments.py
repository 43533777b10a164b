"""Peers in environments of their own: from the same weights they write kvcast's text.

Tests of those that no variable names are skipped.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kvcast
from kit.tiny_gguf import packaged
from kvcast.checkpoints.source import locate
from kvcast.machine.child import Remote
from kvcast_bench.backend import Backend, Ticks
from kvcast_bench.models import CausalModel, SpeechModel
from kvcast_bench.peers.table import CAUSAL, SPEECH
from kvcast_bench.recording import read_recordings, word_error

EXAMPLE = Path(__file__).parents[3] / "examples" / "sense-and-sensibility"
CAPITALS = "The capital of France is Paris. The capital of Spain is Madrid. The capital of"
PROMPTS = [f"{CAPITALS} {country} is" for country in ("Italy", "Germany")]

pytestmark = pytest.mark.slow


@contextmanager
def loaded(backend: Backend) -> Iterator[Remote]:
    if backend.python is None:
        pytest.skip(f"{backend.environment} names no Python")
    variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **backend.variables()}
    with Remote(backend, variables, backend.python) as remote:
        remote.call("load")
        yield remote


@pytest.mark.parametrize("name", ["openvino-int8", "openvino-int4", "vllm-bf16"])
def test_they_continue_prompts_as_kvcast_does(name: str):
    model = CausalModel(folder=str(packaged()), threads=1)
    ours = kvcast.load(model.folder, quantize="none", threads=1)
    prompts = [ours.tokenizer.encode(prompt) for prompt in PROMPTS]
    assert len(prompts[0]) == len(prompts[1])
    with loaded(CAUSAL[name](model=model)) as peer:
        texts = [peer.call("generate", prompts=prompts, new=4, ticks=Ticks()) for _ in range(2)]
    greedy = {"max_new_tokens": 4, "temperature": 0.0}
    expected = [list(ours.generate(prompt, **greedy).tokens) for prompt in prompts]
    assert texts == [expected, expected]


def test_they_transcribe_what_is_spoken():
    model = SpeechModel(folder=str(locate("demo")), threads=1)
    [samples] = read_recordings([str(EXAMPLE.with_suffix(".flac"))], [])["recordings"]
    spoken = EXAMPLE.with_suffix(".txt").read_text(encoding="utf-8")
    with loaded(SPEECH["openvino-int8"](model=model)) as peer:
        for beam in (1, 5):
            text = peer.call("transcribe", samples=samples, language="en", beam=beam)
            assert word_error([spoken], [text]) < 0.05
