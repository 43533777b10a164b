"""Fixtures that several folders of tests share: random and real models, and bundles of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcast.bundle.manifest import read_bundle
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.programs.whisper import WhisperPrograms
from kvcast.runtimes.base import EncoderDecoder
from kvcast.runtimes.eager import EagerEncoderDecoder
from kvcast.runtimes.onnx import OnnxEncoderDecoder
from random_models import SMALL, random_programs, write_bundle


@pytest.fixture(scope="session")
def small_programs() -> WhisperPrograms:
    return random_programs(SMALL)


@pytest.fixture(scope="session")
def small_bundle(small_programs: WhisperPrograms, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "small"
    write_bundle(small_programs, folder)
    return folder


@pytest.fixture(scope="session")
def small_onnx(small_bundle: Path) -> OnnxEncoderDecoder:
    return OnnxEncoderDecoder(small_bundle, read_bundle(small_bundle), threads=1)


@pytest.fixture(scope="session", params=["eager", "onnx"])
def small_runtime(
    request: pytest.FixtureRequest, small_programs: WhisperPrograms
) -> EncoderDecoder:
    """The same random model on each runtime."""
    if request.param == "eager":
        return EagerEncoderDecoder(small_programs)
    return request.getfixturevalue("small_onnx")


@pytest.fixture(scope="session")
def demo_programs() -> WhisperPrograms:
    """Whisper tiny.en with its real weights."""
    checkpoint = open_checkpoint(locate("demo"))
    return WhisperPrograms.from_tensors(checkpoint.dimensions, checkpoint.tensors)


@pytest.fixture(autouse=True, scope="session")
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that a test exports stays in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVCAST_CACHE", str(tmp_path_factory.mktemp("kvcast-cache")))
        yield
