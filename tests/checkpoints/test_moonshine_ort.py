"""Moonshines in ONNX Runtime's format: tensors, vocabularies, damage."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.moonshine_graphs import KINDS, write_moonshine_graphs, write_tokens
from kit.random_moonshines import random_moonshine, save_moonshine
from kvcast.checkpoints.ort_format import read_ort
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import KvcastError
from kvcast.tokenizers.opening import open_text

VOCAB = 300


def written(folder: Path, kind: str, *, tied: bool = False) -> Any:
    model = random_moonshine("moonshine", vocab_size=VOCAB, tie_word_embeddings=tied)
    write_moonshine_graphs(model, folder, kind)
    return model


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moonshine") / "voice"
    written(folder, "uint8")
    return folder


@pytest.mark.parametrize(
    ("kind", "tied"), [*((kind, False) for kind in KINDS), ("float", True), ("uint8", True)]
)
def test_tensors_are_those_that_were_exported(kind: str, tied: bool, tmp_path: Path):
    model = written(tmp_path / "voice", kind, tied=tied)
    actual = open_checkpoint(tmp_path / "voice")
    expected = open_checkpoint(save_moonshine(model, tmp_path / "huggingface"))
    assert {**actual.tensors}.keys() == {**expected.tensors}.keys()
    for name in expected.tensors:
        np.testing.assert_array_equal(actual.tensors[name], expected.tensors[name], name)
    fixed = ("rotary", "start_token", "target_positions")
    sizes, others = (
        {name: size for name, size in vars(each.dimensions).items() if name not in fixed}
        for each in (actual, expected)
    )
    assert sizes == others
    assert actual.dimensions.tied == tied
    tables, expected_tables = (each.dimensions.rotary.tables(9, 16) for each in (actual, expected))
    np.testing.assert_allclose(tables, expected_tables, rtol=1e-6)


def test_the_library_reads_the_same_of_a_file(coded: Path):
    from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs import InferenceSession

    path = coded / "decoder_model_merged.ort"
    session = InferenceSession.InferenceSession.GetRootAs(path.read_bytes(), 0)
    graph, ours = session.Model().Graph(), read_ort(path)
    tensors = [graph.Initializers(i) for i in range(graph.InitializersLength())]
    assert [tensor.Name().decode() for tensor in tensors] == list(ours.constants)
    for tensor in tensors:
        values = ours.constants[tensor.Name().decode()].values
        assert values.shape == tuple(map(tensor.Dims, range(tensor.DimsLength())))
        assert values.tobytes() == bytes(tensor.RawDataAsNumpy())
    branches = [graph.Nodes(0).Attributes(i).G() for i in range(2)]
    nodes = [branch.Nodes(i) for branch in branches for i in range(branch.NodesLength())]
    assert [(node.Name().decode(), node.OpType().decode()) for node in nodes] == [
        (node.name, node.op) for node in ours.nodes[1:]
    ]


def test_tokens_are_bytes_pieces_and_special_ones(tmp_path: Path):
    further = ["▁the", "ł", "▁" * 150, "", "<<ST_0>>", "<b>"]
    write_moonshine_graphs(random_moonshine("moonshine", vocab_size=VOCAB), tmp_path, "float")
    write_tokens(tmp_path / "tokenizer.bin", VOCAB, further)
    tokenizer = open_text(open_checkpoint(tmp_path).text)
    assert tokenizer.end_tokens == (2,)
    piece, of_bytes = 259, [3 + byte for byte in "é".encode()]
    tokens = [1, piece, *of_bytes, piece + 1, piece + 3, piece + 4, piece + 5, piece, 2]
    assert tokenizer.decode(tokens) == "theéł<b> the"
    assert tokenizer.decode([piece + 2]) == " " * 149
    stream = tokenizer.stream()
    assert [stream.push(token) for token in tokens][:4] == ["", "the", "", "é"]


@pytest.mark.parametrize("name", ["encoder_model.ort", "decoder_model_merged.ort"])
def test_a_file_that_ends_early_is_refused_in_one_line(name: str, coded: Path):
    path = coded / name
    whole = path.read_bytes()
    try:
        for length in (0, 3, 7, 40, len(whole) // 2, len(whole) - 100):
            path.write_bytes(whole[:length])
            with pytest.raises(KvcastError) as caught:
                open_checkpoint(coded)
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)
    finally:
        path.write_bytes(whole)


def test_tokens_that_do_not_fit_are_refused(coded: Path):
    path = coded / "tokenizer.bin"
    whole = path.read_bytes()
    try:
        for content in (
            whole[:-1] + b"\x09",
            whole[:100],
            whole + b"\x05<unk>",
            whole + b"\x01x" * 99,
        ):
            path.write_bytes(content)
            with pytest.raises(KvcastError, match=r"tokenizer\.bin is damaged"):
                open_checkpoint(coded)
    finally:
        path.write_bytes(whole)
