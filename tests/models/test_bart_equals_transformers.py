"""Logits and texts of BART, its relatives and T5Gemma equal transformers'.

Models are read from what transformers saves.
"""

from shutil import copytree

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

import kvcast
from kit.marks import slow
from kit.models import encoded, in_chunks
from kit.random_barts import END, KINDS, PAD, POSITIONS, START, random_bart, save_bart
from kit.rounding import FAULTS, assert_equal_but_for_rounding, plant
from kvcast.checkpoints.source import open_checkpoint, read_dimensions
from kvcast.errors import UsageError
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder

SOURCE_LENGTHS = (9, 4, 1, POSITIONS)
CHUNKS = (11, 1, 1, 3, 20)
SOURCES = [[*np.random.default_rng(i).integers(6, 80, 1 + 3 * i).tolist(), END] for i in range(5)]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def theirs(kind):
    return random_bart(kind)


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory):
    return save_bart(theirs, tmp_path_factory.mktemp("models") / "model")


def padded(sources):
    longest = max(map(len, sources))
    tokens = torch.tensor([[*source, *[PAD] * (longest - len(source))] for source in sources])
    mask = torch.tensor([[1] * len(source) + [0] * (longest - len(source)) for source in sources])
    return {"input_ids": tokens, "attention_mask": mask}


def test_logits_of_ragged_sources_in_chunks_and_steps(theirs, folder):
    checkpoint = open_checkpoint(folder)
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    assert shapes == checkpoint.family.tensor_shapes(checkpoint.dimensions)
    generator = np.random.default_rng(0)
    sources = [generator.integers(6, 80, length) for length in SOURCE_LENGTHS]
    targets = generator.integers(6, 80, (len(sources), sum(CHUNKS)))
    with torch.no_grad():
        output = theirs(**padded(sources), decoder_input_ids=torch.from_numpy(targets))
    runtime = EagerEncoderDecoder(
        TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    )
    source_bt = padded(sources)["input_ids"].numpy()
    source = (source_bt, np.array(SOURCE_LENGTHS, np.int32))
    cache = encoded(runtime, source, len(targets), targets.shape[1])
    actual = in_chunks(runtime, cache, targets, CHUNKS)
    assert_equal_but_for_rounding(actual, output.logits.numpy(), checkpoint.tensors)


# In bart-scaled and Marians the values before norms are too large for an epsilon to matter.
@pytest.mark.parametrize("kind", ["bart", "mbart", "blenderbot", "t5gemma"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_constant_exceeds_the_tolerance(fault, monkeypatch, theirs, folder):
    plant(fault, monkeypatch)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_logits_of_ragged_sources_in_chunks_and_steps(theirs, folder)


def test_the_configuration_alone_gives_the_same_sizes(folder):
    configured, read = read_dimensions(folder), open_checkpoint(folder).dimensions
    of_weights = {name: getattr(read, name) for name in ("head_bias",) if hasattr(read, name)}
    assert {**vars(configured), **of_weights} == vars(read)


def cut(tokens):
    return tuple(tokens[: tokens.index(END)] if END in tokens else tokens)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("runtime", ["native", slow("onnx")])
def test_texts_are_those_that_transformers_generates(theirs, folder, runtime, beam):
    if runtime == "onnx" and open_checkpoint(folder).family.name == "t5gemma":
        with pytest.raises(UsageError, match="does not run on ONNX Runtime"):
            kvcast.load(folder, runtime=runtime, quantize="none")
        return
    model = kvcast.load(folder, runtime=runtime, quantize="none", threads=1)
    sequences = theirs.generate(
        **padded(SOURCES), num_beams=beam, max_new_tokens=12, do_sample=False
    )[:, 1:].tolist()
    expected = [cut(tokens) for tokens in sequences]
    texts = model.generate(SOURCES, beam=beam, max_new_tokens=12)
    assert [text.tokens for text in texts] == expected


CONFIGS = [
    {"max_length": 9, "forced_eos_token_id": END, "bad_words_ids": [[PAD], [33]]},
    {
        "num_beams": 4,
        "length_penalty": 0.6,
        "early_stopping": True,
        "max_length": 12,
        "min_length": 6,
        "forced_bos_token_id": 7,
        "forced_eos_token_id": END,
        "no_repeat_ngram_size": 2,
        "encoder_no_repeat_ngram_size": 2,
    },
    {
        "max_length": 12,
        "bad_words_ids": [[END], *([a, b] for a in range(96) for b in range(0, 96, 2))],
    },
    {
        "num_beams": 3,
        "max_length": 10,
        "bad_words_ids": [[PAD], *([token] for token in range(40, 60))],
        "renormalize_logits": True,
    },
]


@pytest.mark.parametrize("kind", ["marian", "bart"], indirect=True)
@pytest.mark.parametrize("config", CONFIGS, ids=["lengths", "search", "sequences", "renormalised"])
def test_what_the_files_recommend_counts_as_in_transformers(theirs, folder, config, tmp_path):
    copytree(folder, tmp_path, dirs_exist_ok=True)
    started = {"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": PAD}
    GenerationConfig(**started, **config).save_pretrained(tmp_path)
    generation = GenerationConfig.from_pretrained(tmp_path)
    sequences = theirs.generate(**padded(SOURCES), generation_config=generation).tolist()
    model = kvcast.load(tmp_path, runtime="native", quantize="none", threads=1)
    texts = model.generate(SOURCES)
    assert [text.tokens for text in texts] == [cut(tokens[1:]) for tokens in sequences]
    plain = kvcast.load(
        tmp_path, runtime="native", quantize="none", threads=1, generation_config=False
    )
    assert [text.tokens for text in texts] != [text.tokens for text in plain.generate(SOURCES)]


def test_int8_writes_a_text(folder):
    model = kvcast.load(folder, runtime="native", quantize="int8", threads=1)
    assert any(text.tokens for text in model.generate(SOURCES, max_new_tokens=5))
