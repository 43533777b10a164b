"""Peers do the same work: from the same weights they write kvcast's tokens, as many as asked."""

import numpy as np
import pytest
import torch
from tiny_sources import task

from kvcast.bench.contender import installed_versions
from kvcast.bench.sources.peers import CONTENDERS, PEERS
from kvcast.bench.sources.peers.ours import write
from kvcast.bench.sources.trials import Trial
from kvcast.programs.t5 import T5Programs
from kvcast.runtimes.eager import EagerEncoderDecoder
from kvcast.tasks.sources import T5Model
from random_t5s import random_t5, save_t5, t5_tensors

TRIAL = Trial(rows=2, source=7, beams=1, target=6)


class Silent:
    """A tokenizer to whom every token is an end token without a text."""

    def __init__(self, vocab_size, end_tokens):
        self.vocab_size = vocab_size
        self.end_tokens = end_tokens

    def encode(self, text):
        raise AssertionError("sources are tokens already")

    def decode(self, tokens):
        return ""

    def stream(self):
        return self

    def push(self, token):
        return ""

    def finish(self):
        return ""


@pytest.fixture(scope="module")
def random():
    model = random_t5("T5_10")
    with torch.no_grad():
        model.shared.weight *= 0.05  # large ones make a tied model repeat its last token
    return model


@pytest.fixture(scope="module")
def ours(random):
    dimensions, tensors = t5_tensors(random)
    runtime = EagerEncoderDecoder(T5Programs.from_tensors(dimensions, tensors))
    return T5Model(runtime, Silent(dimensions.vocab_size, (1,)), dimensions)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", [name for name in PEERS if name.endswith("fp32")])
def test_tokens_equal_kvcasts_in_fp32(name, beams, random, ours, tmp_path, monkeypatch):
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "cache"))
    contender = CONTENDERS[name](task(save_t5(random, tmp_path / "model")))
    if installed_versions(contender.packages) is None:
        pytest.skip(f"{contender.packages[0]} wants an environment of its own")
    contender.prepare()
    contender.load()
    sources = TRIAL.sources(ours.dimensions.vocab_size)
    found = contender.write(sources, beams, TRIAL.target)
    assert found == write(ours, ours.runtime, sources, beams, TRIAL.target)
    assert len({tuple(target) for target in found}) == 2


@pytest.mark.parametrize("beams", [1, 3])
def test_end_tokens_are_held_back(beams, ours):
    # The likeliest first token would end the target.
    sources = TRIAL.sources(ours.dimensions.vocab_size)
    [[first, *_], _] = write(ours, ours.runtime, sources, 1, 6)
    tokenizer = Silent(ours.dimensions.vocab_size, (first,))
    ending = T5Model(ours.runtime, tokenizer, ours.dimensions)
    found = write(ending, ours.runtime, sources, beams, 6)
    assert [len(target) for target in found] == [6, 6]
    assert not np.any(np.array(found) == first)


def test_peers_that_cannot_read_the_folder_say_why(tmp_path):
    (tmp_path / "bundle.json").touch()
    for name in PEERS:
        reason = CONTENDERS[name](task(tmp_path)).unfit()
        assert reason == "needs the checkpoint, and the model is a kvcast bundle"
    (tmp_path / "bundle.json").unlink()
    (tmp_path / "model.ckpt").touch()
    for name in PEERS:
        assert "Hugging Face folder" in CONTENDERS[name](task(tmp_path)).unfit()
