"""T5s with random weights: what is written is a whole model, the same every time."""

import numpy as np
import pytest

from kvcast.checkpoints.source import open_checkpoint
from kvcast.checkpoints.text2text.t5 import t5_dimensions
from kvcast.errors import UsageError
from kvcast.families.t5 import T5
from kvcast.tokenizers.opening import open_text
from kvcast_bench import random_t5
from kvcast_bench.random_t5 import RANDOM, random_folder, write_t5
from tiny_models import TINY_T5 as TINY
from tiny_models import TINY_T5_CONFIG as CONFIG


def test_kvcast_reads_what_is_written(tmp_path):
    write_t5(CONFIG, tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "model")
    assert checkpoint.dimensions == TINY
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    assert shapes == T5.tensor_shapes(TINY)
    tokenizer = open_text(checkpoint.text)
    assert tokenizer.encode("t5 t63 t3") == [5, 63, 3, 1]
    assert tokenizer.decode([5, 63, 3, 1]) == "t5 t63 t3"
    assert tokenizer.end_tokens == (1,)


def test_transformers_computes_the_same_from_it(tmp_path):
    import torch
    from transformers import AutoModelForSeq2SeqLM

    from kvcast.models.executor import TorchModel
    from kvcast.runtimes.eager.runtime import EagerEncoderDecoder

    write_t5(CONFIG, tmp_path / "model")
    source_bt, target_rs = np.array([[5, 6, 7, 1]]), np.array([[0, 9, 8]])
    with torch.inference_mode():
        theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")(
            input_ids=torch.from_numpy(source_bt), decoder_input_ids=torch.from_numpy(target_rs)
        ).logits.numpy()
    checkpoint = open_checkpoint(tmp_path / "model")
    runtime = EagerEncoderDecoder(TorchModel.from_tensors(TINY, checkpoint.tensors))
    cache = runtime.new_cache(1, 8, 1)
    cache = runtime.encode(cache, [0], source_bt, np.array([4], np.int32))
    cache = runtime.reset(cache, [0], [0])
    ours, _ = runtime.decode(list(target_rs), cache, positions=range(3))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert 0.1 < theirs.std() < 10


def test_the_same_seed_gives_the_same_weights_and_another_does_not(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_t5(CONFIG, tmp_path / name, seed)
    read = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert read["a"] == read["b"]
    assert read["a"] != read["c"]


def test_a_published_size_is_written_once(tmp_path, monkeypatch):
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path))
    monkeypatch.setitem(random_t5._PUBLISHED, "random:t5-small", {**CONFIG, "vocab_size": 40})
    folder = random_folder("random:t5-small")
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert random_folder("random:t5-small") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert open_checkpoint(folder).dimensions.vocab_size == 40


def test_t5_small_has_the_published_number_of_weights():
    assert RANDOM == ("random:t5-small",)
    sizes = t5_dimensions(random_t5._PUBLISHED["random:t5-small"], "t5-small")
    assert sum(int(np.prod(shape)) for shape in T5.tensor_shapes(sizes).values()) == 60_506_624


def test_sizes_that_nobody_published_are_refused():
    with pytest.raises(UsageError, match=r"no sizes are known for random:t5-huge.*t5-small"):
        random_folder("random:t5-huge")
