"""Fixtures that several folders of tests share: random and real models, and bundles of them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Workers share the cores: more threads, or ones that wait by spinning, would take them from others.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from compiled import compile_decoder, compile_t5, compile_unilm, compile_whisper
from kvcast.bundle.manifest import read_bundle
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.programs.t5 import T5Programs
from kvcast.programs.whisper import WhisperPrograms
from kvcast.runtimes.aoti import AotiEncoderDecoder
from kvcast.runtimes.eager import EagerEncoderDecoder
from kvcast.runtimes.onnx import OnnxEncoderDecoder
from random_decoders import GEMMA3, random_decoder
from random_models import (
    CROSS_BIASED_T5,
    SMALL,
    SMALL_T5,
    Subject,
    random_programs,
    random_t5_programs,
    speech,
    text,
    write_bundle,
    write_t5_bundle,
)
from random_unilms import ROFORMER, random_unilm
from shared import once, share


@pytest.fixture(scope="session")
def small_programs() -> WhisperPrograms:
    return random_programs(SMALL)


@pytest.fixture(scope="session")
def small_bundle(small_programs: WhisperPrograms, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "small"
    write_bundle(small_programs, folder)
    return folder


@pytest.fixture(scope="session")
def small_t5_programs() -> T5Programs:
    return random_t5_programs(SMALL_T5)


@pytest.fixture(scope="session")
def cross_biased_t5_programs() -> T5Programs:
    return random_t5_programs(CROSS_BIASED_T5)


@pytest.fixture(scope="session")
def compiled_small(small_programs: WhisperPrograms) -> Path:
    """A bundle of AOTInductor; so are those that follow."""
    return once("whisper", lambda folder: compile_whisper(small_programs, folder))


@pytest.fixture(scope="session")
def compiled_cross_biased_t5(cross_biased_t5_programs: T5Programs) -> Path:
    return once("t5", lambda folder: compile_t5(cross_biased_t5_programs, folder))


@pytest.fixture(scope="session")
def compiled_gemma3() -> Path:
    return once("gemma3", lambda folder: compile_decoder(random_decoder(GEMMA3), folder))


@pytest.fixture(scope="session")
def compiled_roformer() -> Path:
    return once("roformer", lambda folder: compile_unilm(random_unilm(ROFORMER), folder))


@pytest.fixture(
    scope="session",
    params=[
        *(
            f"{model} {runtime}"
            for model in ("whisper", "t5", "cross-biased t5")
            for runtime in ("eager", "onnx")
        ),
        "whisper aoti",
        "cross-biased t5 aoti",
    ],
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Random encoder-decoder models on each runtime."""
    model, runtime = request.param.rsplit(maxsplit=1)
    source, write, fixture = {
        "whisper": (speech, write_bundle, "small_programs"),
        "t5": (text, write_t5_bundle, "small_t5_programs"),
        "cross-biased t5": (text, write_t5_bundle, "cross_biased_t5_programs"),
    }[model]
    if runtime == "aoti":
        folder = request.getfixturevalue(f"compiled_{fixture.removesuffix('_programs')}")
        return Subject(AotiEncoderDecoder(folder, read_bundle(folder), threads=1), source)
    programs = request.getfixturevalue(fixture)
    if runtime == "eager":
        return Subject(EagerEncoderDecoder(programs), source)
    folder = tmp_path_factory.mktemp("bundles") / "subject"
    return Subject(OnnxEncoderDecoder(folder, write(programs, folder), threads=1), source)


@pytest.fixture(scope="session")
def demo_programs() -> WhisperPrograms:
    """Whisper tiny.en with its real weights."""
    checkpoint = open_checkpoint(locate("demo"))
    return WhisperPrograms.from_tensors(checkpoint.dimensions, checkpoint.tensors)


@pytest.fixture(autouse=True, scope="session")
def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    own = tmp_path_factory.getbasetemp()
    share(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture(autouse=True, scope="session")
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that a test exports stays in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVCAST_CACHE", str(tmp_path_factory.mktemp("kvcast-cache")))
        yield
