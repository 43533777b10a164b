"""Peers do the same work: from the same weights they write kvcast's tokens, as many as asked."""

import numpy as np
import pytest
import torch

from kit.in_transformers import random_t5, read_t5, save_t5
from kit.models import own_cache
from kit.small_tokenizers import Numbers
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder
from kvcast.text.text2text import T5Model
from kvcast_bench.models import Seq2seqModel, installed_versions
from kvcast_bench.peers.kvcast import Kvcast
from kvcast_bench.peers.table import SEQ2SEQ
from kvcast_bench.workload import random_tokens

ROWS, SOURCE, TARGET = 2, 7, 6


@pytest.fixture(scope="module")
def random():
    model = random_t5("T5_10")
    with torch.no_grad():
        model.shared.weight *= 0.05  # large ones make a tied model repeat its last token
    return model


@pytest.fixture(scope="module")
def ours(random):
    read = read_t5(random)
    runtime = EagerEncoderDecoder(TorchModel.from_tensors(read.dimensions, read.tensors))
    return T5Model(runtime, Numbers(read.dimensions.vocab_size, end=1), read.dimensions)


def kvcast(model):
    ours = Kvcast(Seq2seqModel(folder="", threads=1), "eager", "fp32")
    ours.engine = model
    return ours


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", [name for name in SEQ2SEQ if name.endswith("fp32")])
def test_tokens_equal_kvcasts_in_fp32(name, beams, random, ours, tmp_path, monkeypatch):
    own_cache(monkeypatch, tmp_path / "cache")
    folder = save_t5(random, tmp_path / "model")
    peer = SEQ2SEQ[name](model=Seq2seqModel(folder=str(folder), threads=1))
    if installed_versions(peer.packages) is None:
        pytest.skip(f"{peer.packages[0]} wants an environment of its own")
    peer.load()
    sources = random_tokens(ROWS, SOURCE, ours.dimensions.vocab_size)
    targets = peer.write(sources, beams, TARGET)
    assert targets == kvcast(ours).write(sources, beams, TARGET)
    assert len({tuple(target) for target in targets}) == 2


@pytest.mark.parametrize("beams", [1, 3])
def test_end_tokens_are_held_back(beams, ours):
    # The likeliest first token would end the target.
    sources = random_tokens(ROWS, SOURCE, ours.dimensions.vocab_size)
    [[first, *_], _] = kvcast(ours).write(sources, 1, TARGET)
    tokenizer = Numbers(ours.dimensions.vocab_size, end=first)
    ending = T5Model(ours.runtime, tokenizer, ours.dimensions)
    targets = kvcast(ending).write(sources, beams, TARGET)
    assert [len(target) for target in targets] == [6, 6]
    assert not np.any(np.array(targets) == first)


def test_peers_that_cannot_read_the_folder_say_why(tmp_path):
    model = Seq2seqModel(folder=str(tmp_path), threads=1)
    (tmp_path / "bundle.json").touch()
    for make in SEQ2SEQ.values():
        reason = make(model=model).unfit()
        assert reason == "needs the checkpoint, and the model is a kvcast bundle"
    (tmp_path / "bundle.json").unlink()
    (tmp_path / "model.ckpt").touch()
    others = [make for name, make in SEQ2SEQ.items() if not name.startswith("kvcast")]
    for make in others:
        assert "Hugging Face folder" in make(model=model).unfit()
