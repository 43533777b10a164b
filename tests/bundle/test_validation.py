"""A manifest or a graph that was changed and sealed again is refused in one line."""

import json
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.dimensions import GEMMA3, ROFORMER, SMALL, SMALL_T5
from kit.errors import one_line
from kit.models import bundle
from kvcast.bundle.manifest import MANIFEST, Manifest, check_manifest, read_bundle
from kvcast.bundle.writing import seal
from kvcast.errors import KvcastError
from kvcast.loading.opening import checked_dimensions
from kvcast.runtimes.target import TARGETS

MODELS = {"whisper": SMALL, "t5": SMALL_T5, "decoder": GEMMA3, "unilm": ROFORMER}
ROOM = 64 << 20  # what opening may take of Python's memory


def opened(folder: Path) -> Any:
    """Open a bundle as `kvcast.load` does, but for its tokenizer."""
    manifest = read_bundle(folder)
    checked_dimensions(folder, manifest)
    return TARGETS[manifest.runtime].open(manifest.family, folder, manifest, 1)


def copied(model: str, folder: Path) -> Path:
    return Path(shutil.copytree(bundle(MODELS[model]), folder / model))


def refusal(folder: Path) -> str:
    tracemalloc.start()
    try:
        message = one_line(KvcastError, opened, folder)
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()
    assert folder.name in message or MANIFEST in message
    return message


@pytest.mark.parametrize("model", MODELS)
def test_a_whole_bundle_opens(model: str):
    opened(bundle(MODELS[model]))


def put(path: str, value: Any) -> Callable[[Any], None]:
    """Return what puts a value at a place such as `cache.0.heads`; None removes what is there."""

    def change(fields: Any) -> None:
        *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in way:
            fields = fields[part]
        if value is None:
            del fields[last]
        else:
            fields[last] = value

    return change


LIES = [
    ("whisper", "dimensions.vocab_size", 10**9, "contradicts itself"),
    ("whisper", "dimensions.target_positions", 10**7, "contradicts itself"),
    ("whisper", "dimensions.source_positions", 20, "contradicts itself"),
    ("whisper", "dimensions.source_positions", 1500, "does not fit bundle.json"),
    ("whisper", "dimensions.n_mels", 128, "does not fit bundle.json"),
    ("whisper", "dimensions.encoder_layers", 10**7, "more than any model has"),
    ("whisper", "dimensions.d_model", 64_000, "contradicts itself"),
    ("whisper", "dimensions.alignment_heads", [[0, 0]], "does not fit bundle.json"),
    ("whisper", "dimensions.alignment_heads", [[2, 0]], "names head 0 of layer 2"),
    ("whisper", "dimensions.alignment_heads", [[0, 1], [0, 1]], "twice"),
    ("whisper", "dimensions.alignment_heads", [0, 1], "pairs of a layer and a head"),
    ("whisper", "dimensions.alignment_heads", [], "no alignment_heads"),
    ("whisper", "dimensions.alignment_heads", None, "pairs"),
    ("whisper", "graphs.decode.outputs.1", None, "only the file has alignment_queries"),
    ("whisper", "cache.0.capacity", 10**9, "larger than any model"),
    ("whisper", "cache.0.heads", 8, "contradicts itself"),
    ("whisper", "cache.0.layers", 300, "contradicts itself"),
    ("whisper", "cache.0.kind", "ring", "contradicts itself"),
    ("whisper", "cache.0.dtype", "float16", "does not fit bundle.json"),
    ("whisper", "cache.1", None, "contradicts itself"),
    ("whisper", "graphs.encode", None, "no graph named encode"),
    ("whisper", "graphs.decode.inputs.0", None, "only the file has"),
    ("whisper", "graphs.decode.inputs.0", "token", "only"),
    ("whisper", "graphs.decode.inputs", "tokens", "misspells"),
    ("whisper", "graphs.decode.outputs.0", "logit", "only"),
    ("whisper", "graphs.decode.aliases.logits", "tokens", "cannot be written to tokens"),
    ("whisper", "graphs.decode.aliases.x", "tokens", "aliases"),
    ("whisper", "graphs.decode.file", "onnx/encode.onnx", "does not fit bundle.json"),
    ("whisper", "runtime", ["onnx"], "misspells"),
    ("decoder", "dimensions.windows", [5, None], "contradicts itself"),
    ("decoder", "dimensions.windows", [5, None, 5.0], "windows"),
    ("decoder", "dimensions.max_positions", 1 << 20, "contradicts itself"),
    ("decoder", "dimensions.rotary.base", "1", "not the dimensions"),
    ("decoder", "dimensions.vocab_size", 161, "does not fit bundle.json"),
    ("decoder", "cache.0.capacity", 4, "contradicts itself"),
    ("decoder", "graphs.decode.file", "bundle.json", "no checksum"),
    ("t5", "dimensions.start_token", 0.5, "start_token"),
    ("t5", "dimensions.head_dim", 32, "contradicts itself"),
    ("unilm", "dimensions.width", 128, "contradicts itself"),
    ("unilm", "dimensions.inner", 10**9, "contradicts itself"),
    ("unilm", "graphs.pool", None, "no graph named pool"),
]


@pytest.mark.parametrize(("model", "place", "value", "says"), LIES)
def test_a_manifest_that_lies_is_refused(
    model: str, place: str, value: Any, says: str, tmp_path: Path
):
    folder = copied(model, tmp_path)
    fields = json.loads((folder / MANIFEST).read_text())
    put(place, value)(fields)
    (folder / MANIFEST).write_text(json.dumps(fields))
    assert says in refusal(folder)


def sealed_again(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST).unlink()
    seal(folder, manifest)


@pytest.mark.parametrize("content", [b"", b"\x08\x08", b"x" * 1000])
def test_a_graph_that_is_none_is_refused(content: bytes, tmp_path: Path):
    folder = copied("decoder", tmp_path)
    manifest = read_bundle(folder)
    (folder / "onnx/decode.onnx").write_bytes(content)
    sealed_again(folder, manifest)
    assert "decode.onnx cannot be run here" in refusal(folder)


def test_graphs_of_another_model_are_refused(tmp_path: Path):
    folder, other = copied("unilm", tmp_path), bundle(GEMMA3)
    manifest = read_bundle(folder)
    for path in other.glob("onnx/decode*"):
        shutil.copy(path, folder / "onnx" / path.name)
    sealed_again(folder, manifest)
    assert "does not fit bundle.json" in refusal(folder)


def test_what_fails_in_a_call_names_the_file(tmp_path: Path):
    folder = copied("decoder", tmp_path)
    runtime = opened(folder)
    line = one_line(KvcastError, runtime._session.run, ["logits"], {})
    assert "decode.onnx cannot be run here: " in line


def test_a_long_manifest_is_not_read(tmp_path: Path):
    folder = copied("decoder", tmp_path)
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text + " " * (5 << 20))
    assert "not a kvcast manifest" in refusal(folder)


def test_cross_caches_may_be_bounded_more_closely_than_the_model_is():
    manifest = read_bundle(bundle(SMALL_T5))
    own, cross = manifest.cache
    for capacity, fits in ((1, True), (cross.capacity, True), (cross.capacity + 1, False)):
        changed = replace(manifest, cache=(own, replace(cross, capacity=capacity)))
        if fits:
            check_manifest(changed, SMALL_T5)
        else:
            with pytest.raises(KvcastError, match="contradicts itself"):
                check_manifest(changed, SMALL_T5)
