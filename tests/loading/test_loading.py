"""What the cache folder holds is exported once, however many ask for it."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import kvcast
from kit.dimensions import (
    CANARY,
    GEMMA3N,
    GEMMA4,
    GEMMA4_EXPERTS,
    GRANITE4,
    LFM2,
    LLAMA,
    MISTRAL,
    QWEN3_5,
    QWEN3_ASR,
    T5GEMMA,
    T5GEMMA2,
    YOUTU,
)
from kit.models import bundle, lazy_tensors, own_cache
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.source import locate
from kvcast.errors import InputOutputError, UsageError
from kvcast.loading import opening as loading
from kvcast.loading.exporting import _check_layers
from kvcast.loading.params import LoadParams


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    written: list[Path] = []

    def export(_source: Path, _name: str, output: Path, *_: Any, **__: Any) -> None:
        written.append(output)
        shutil.copytree(bundle(LLAMA), output)

    own_cache(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr(loading, "export_folder", export)
    monkeypatch.setattr(loading, "_open_bundle", lambda folder, *_: folder)
    opened = lambda model, runtime, *_: loading.OpenedModel(model=model, runtime=runtime)  # noqa: E731
    monkeypatch.setattr(loading, "_open", opened)
    return written


@pytest.mark.parametrize(
    ("dimensions", "problem"),
    [
        (GRANITE4, "other layers than attention, as granitemoehybrid"),
        (GEMMA4, "whose layers have heads of several sizes, as gemma4_text"),
        (replace(LLAMA, sources=(0, 0)), "whose layers share caches, as llama"),
        (T5GEMMA, "whose encoder has windows or rotation, as t5gemma"),
        (T5GEMMA2, "whose encoder has windows or rotation, as t5gemma2"),
        (CANARY, "whose encoder convolves channels, as canary"),
        (QWEN3_ASR, "with its own audio encoder, as qwen3_asr"),
        (YOUTU, "that attends to latents, as youtu"),
        (replace(GEMMA3N, sources=()), "several hidden states for each token, as gemma3n_text"),
        (GEMMA4_EXPERTS, "with experts beside feed-forwards, as gemma4_text"),
    ],
    ids=[
        "states",
        "sizes",
        "caches",
        "encoders",
        "both",
        "channels",
        "sound",
        "latents",
        "streams",
        "experts",
    ],
)
def test_a_model_with_layers_that_a_runtime_does_not_have_is_refused(
    dimensions: Any, problem: str
) -> None:
    checkpoint = Checkpoint(dimensions=dimensions, tensors=lazy_tensors({}), text={}, source="")
    _check_layers("native", checkpoint)
    for runtime in ("onnx", "aoti", "executorch"):
        with pytest.raises(UsageError, match=f"{problem}, does not run on"):
            _check_layers(runtime, checkpoint)


@pytest.mark.parametrize(
    ("dimensions", "runtimes"),
    [(LFM2, {"onnx", "aoti", "executorch"}), (QWEN3_5, {"onnx"})],
    ids=["convolutions", "delta"],
)
def test_other_layers_than_attention_are_exported_to_runtimes_that_have_them(
    dimensions: Any, runtimes: set[str]
) -> None:
    checkpoint = Checkpoint(dimensions=dimensions, tensors=lazy_tensors({}), text={}, source="")
    exported = set()
    for runtime in ("onnx", "aoti", "executorch"):
        with suppress(UsageError):
            _check_layers(runtime, checkpoint)
            exported.add(runtime)
    assert exported == runtimes


def test_who_asks_while_another_exports_waits_and_exports_nothing(exports: list[Path]) -> None:
    everyone = Barrier(4)

    def load(_: int) -> Any:
        everyone.wait()
        return kvcast.load("demo-unilm", runtime="onnx", quantize="none")

    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(load, range(4)))
    assert len(exports) == 1
    assert set(opened) == set(exports)


def test_a_cache_folder_that_cannot_be_written_is_one_line(
    exports: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputOutputError, match=r"cannot write .*file/bundles: Not a directory"):
        kvcast.load("demo-unilm", runtime="onnx", quantize="none")
    assert exports == []


def test_a_models_digest_changes_with_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bundle(LLAMA), folder)
    digest = loading.model_digest(folder, LoadParams())
    assert loading.model_digest(bundle(LLAMA), LoadParams()) == digest
    shutil.rmtree(folder)
    shutil.copytree(bundle(MISTRAL), folder)
    assert loading.model_digest(folder, LoadParams()) != digest


def test_a_checkpoints_digest_is_that_of_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(locate("demo-unilm"), folder)
    digest = loading.model_digest("demo-unilm", LoadParams())
    assert loading.model_digest(folder, LoadParams()) == digest
    (folder / "config.json").write_text("{}\n" + (folder / "config.json").read_text())
    assert loading.model_digest(folder, LoadParams()) != digest


def test_a_package_without_a_manifest_stands_for_itself(tmp_path: Path) -> None:
    package = tmp_path / "executorch" / "model.pte"
    package.parent.mkdir()
    package.write_bytes(b"one")
    digest = loading.model_digest(package, LoadParams())
    assert loading.model_digest(tmp_path, LoadParams()) == digest
    package.write_bytes(b"other")
    assert loading.model_digest(package, LoadParams()) != digest


@pytest.mark.parametrize("cache", ["fp32", "fp16", "int8"])
def test_a_bundle_opens_with_the_caches_that_it_has(
    cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_open_bundle", lambda folder, *_: folder)
    opened = lambda model, runtime, *_: loading.OpenedModel(model=model, runtime=runtime)  # noqa: E731
    monkeypatch.setattr(loading, "_open", opened)
    folder = bundle(LLAMA, runtime="native", cache=cache)
    opened: Any = kvcast.load(folder, cache=cache)
    assert opened == folder
    other = {"fp32": "int8", "fp16": "fp32", "int8": "fp16"}[cache]
    with pytest.raises(UsageError, match=f"exported with --cache {cache}"):
        kvcast.load(folder, cache=other)
