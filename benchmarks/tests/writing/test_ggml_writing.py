"""Our ggml files against a reader of the format and, where it is installed, whisper.cpp."""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from whisper.model import ModelDimensions, Whisper

from checkpoints.tiny_whisper import random_checkpoint
from kvcast.audio.decode import open_audio
from kvcast.audio.mel import mel_filters
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.errors import KvcastError
from kvcast_bench.models import SpeechModel
from kvcast_bench.peers.table import SPEECH
from kvcast_bench.recording import word_error
from kvcast_bench.writing.ggml import FILE_KINDS, openai_sizes, openai_tensors

EXAMPLES = Path(__file__).parents[3] / "examples"
BLOCK = np.dtype([("scale", "<f2"), ("codes", "i1", 32)])


@dataclass
class Ggml:
    sizes: tuple[int, ...]
    filters: np.ndarray
    words: list[bytes]
    tensors: dict[str, np.ndarray]
    kinds: dict[str, int]


def read_ggml(path: Path) -> Ggml:
    data = path.read_bytes()
    at = 0

    def numbers(count: int) -> tuple[int, ...]:
        nonlocal at
        at += 4 * count
        return struct.unpack_from(f"<{count}I", data, at - 4 * count)

    def raw(size: int) -> bytes:
        nonlocal at
        at += size
        return data[at - size : at]

    assert numbers(1) == (0x67676D6C,)
    sizes = numbers(11)
    bands, bins = numbers(2)
    filters = np.frombuffer(raw(4 * bands * bins), "<f4").reshape(bands, bins)
    words = [raw(numbers(1)[0]) for _ in range(numbers(1)[0])]
    tensors, kinds = {}, {}
    while at < len(data):
        rank, length, kind = numbers(3)
        shape = numbers(rank)[::-1]
        name = raw(length).decode()
        count = int(np.prod(shape))
        if kind == 8:
            blocks = np.frombuffer(raw(count // 32 * BLOCK.itemsize), BLOCK)
            values = blocks["scale"].astype(np.float32)[:, None] * blocks["codes"]
        else:
            dtype = np.dtype(["<f4", "<f2"][kind])
            values = np.frombuffer(raw(count * dtype.itemsize), dtype)
        tensors[name], kinds[name] = values.reshape(shape), kind
    return Ggml(sizes, filters, words, tensors, kinds)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(locate("demo"))


@pytest.fixture(scope="module", params=["f16", "q8_0"])
def written(request, tmp_path_factory) -> tuple[str, Path]:
    peer = SPEECH[f"whisper.cpp-{request.param}"]
    folder = tmp_path_factory.mktemp("ggml")
    peer(model=SpeechModel(folder=str(locate("demo")), threads=1)).write(folder)
    return request.param, folder / "model.ggml"


def test_sizes_filters_and_vocabulary_are_the_models(written):
    kind, path = written
    file = read_ggml(path)
    assert file.sizes == (51864, 1500, 384, 6, 4, 448, 384, 6, 4, 80, FILE_KINDS[kind])
    assert np.array_equal(file.filters, mel_filters(80).T)
    assert len(file.words) == 50256
    assert file.words[:1] == [b"!"]
    assert file.words[262] == b" the"
    assert len(set(file.words)) == 50256


def test_every_tensor_reads_back_as_it_was(written, checkpoint):
    kind, path = written
    file = read_ggml(path)
    expected = dict(openai_tensors(checkpoint.tensors))
    assert file.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        ours = file.tensors[name].astype(np.float32).reshape(tensor.shape)
        whole = tensor.astype(np.float32)
        if file.kinds[name] == 8:
            # Half a step, and what fp16 takes from the scale of 127 steps.
            step = np.abs(whole.reshape(-1, 32)).max(axis=1, keepdims=True) / 127
            error = np.abs(ours - whole).reshape(-1, 32)
            assert (error <= 0.5 * step + 127 * step * 2.0**-11 + 2.0**-25 * 127).all(), name
        else:
            assert np.array_equal(ours, whole), name
    matrices = {name for name, tensor in expected.items() if tensor.ndim == 2}
    matrices -= {"encoder.positional_embedding", "decoder.positional_embedding"}
    quantised = {name for name, code in file.kinds.items() if code == 8}
    assert quantised == (matrices if kind == "q8_0" else set())


def test_whisper_cpp_understands_the_example(written):
    model = pytest.importorskip("pywhispercpp.model")
    _, path = written
    whisper = model.Model(
        str(path),
        redirect_whispercpp_logs_to=False,
        n_threads=1,
        language="en",
        temperature_inc=0.0,
        print_progress=False,
    )
    audio = open_audio(EXAMPLES / "sense-and-sensibility.flac")
    samples = np.concatenate(list(audio.blocks()))
    audio.close()
    text = " ".join(segment.text for segment in whisper.transcribe(samples))
    reference = (EXAMPLES / "sense-and-sensibility.txt").read_text(encoding="utf-8")
    assert word_error([reference], [text]) < 0.05


def test_openai_whisper_gets_exactly_its_tensors():
    tiny = random_checkpoint()
    assert openai_sizes(tiny.dimensions) == vars(ModelDimensions(80, 10, 8, 2, 2, 99, 6, 8, 2, 1))
    model = Whisper(ModelDimensions(**openai_sizes(tiny.dimensions)))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert {name: tensor.shape for name, tensor in openai_tensors(tiny.tensors)} == shapes


def test_stacked_projections_come_apart_in_order():
    tensors = random_checkpoint().tensors
    named = dict(openai_tensors(tensors))
    parts = [named[f"encoder.blocks.0.attn.{part}.weight"] for part in ("query", "key", "value")]
    stacked = tensors["encoder.layers.0.attention.qkv.weight"]
    np.testing.assert_array_equal(np.concatenate(parts), stacked)


def test_a_bias_of_keys_is_refused_because_nobody_else_would_add_it():
    tensors = random_checkpoint().tensors
    tensors["decoder.layers.0.cross_attention.key_value.bias"][:] = 1
    with pytest.raises(KvcastError, match="bias"):
        list(openai_tensors(tensors))
