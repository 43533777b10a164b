"""Fixtures that several folders of tests share: random and real models, and bundles of them."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from kvcast.bundle.manifest import Manifest, read_bundle
from kvcast.bundle.writing import seal, staged
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.lowering.onnx import cache_layers, lower
from kvcast.models.whisper import Whisper
from kvcast.programs.whisper import WhisperPrograms
from kvcast.runtimes.base import EncoderDecoder
from kvcast.runtimes.eager import EagerEncoderDecoder
from kvcast.runtimes.onnx import OnnxEncoderDecoder
from kvcast.spec.whisper import WhisperDimensions

SMALL = WhisperDimensions(
    n_mels=80,
    vocab_size=300,
    d_model=64,
    encoder_layers=2,
    encoder_heads=4,
    decoder_layers=3,
    decoder_heads=4,
    source_positions=25,
    target_positions=32,
)


def random_programs(dimensions: WhisperDimensions, seed: int = 0) -> WhisperPrograms:
    """Programs with weights large enough that every part of the model moves the logits."""
    generator = np.random.default_rng(seed)
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in Whisper(dimensions).state_dict().items()}
    tensors = {
        name: generator.normal(1 if name.endswith("norm.weight") else 0, 0.2, shape)
        for name, shape in shapes.items()
    }
    return WhisperPrograms.from_tensors(dimensions, tensors)


def write_bundle(programs: WhisperPrograms, folder: Path, quantize: str = "none") -> Manifest:
    """Lower and seal, without the proof that `kvcast.export_bundle` adds."""
    with staged(folder, overwrite=False) as staging:
        return seal(
            staging,
            Manifest(
                family="whisper",
                runtime="onnx",
                quantize=quantize,
                dimensions=asdict(programs.dimensions),
                cache=cache_layers(programs.dimensions),
                graphs=lower(programs, quantize, staging),
                source={},
                tools={},
            ),
        )


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
