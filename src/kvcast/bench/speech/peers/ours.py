"""kvcast itself, through its public API, as anybody would use it."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from kvcast.bench.speech.peers.base import Samples, Task
from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.errors import KvcastError

if TYPE_CHECKING:
    from kvcast.tasks.model import WhisperModel

_DTYPES = {
    "none": "fp32",
    "int8": "int8 weights and cross caches, fp32 attention",
    "int4": "int4 decoder, int8 encoder and cross caches, fp32 attention",
}


class Kvcast:
    """ONNX Runtime with what the bundle holds; a checkpoint is exported to int8."""

    name: ClassVar[str] = "kvcast"
    packages: ClassVar[tuple[str, ...]] = ("kvcast", "onnxruntime")
    modules: ClassVar[tuple[str, ...]] = (
        "kvcast.tasks.loading",
        "kvcast.runtimes.onnx",
        "kvcast.audio.features",
    )
    settings: ClassVar[str] = "defaults"

    def __init__(self, task: Task) -> None:
        self._task = task
        self._model: WhisperModel

    @property
    def dtype(self) -> str:
        """See the protocol."""
        return _DTYPES[quantize_of(Path(self._task.folder))]

    def unfit(self) -> str | None:
        """See the protocol."""
        return None

    def prepare(self) -> None:
        """Export, which loading does the first time."""

    def load(self) -> None:
        """See the protocol."""
        import kvcast
        from kvcast.tasks.model import WhisperModel

        loaded = kvcast.load(self._task.model, runtime="onnx", threads=self._task.threads)
        if not isinstance(loaded, WhisperModel):
            raise KvcastError(f"{self._task.model} is no Whisper, so it cannot transcribe")
        self._model = loaded

    def transcribe(self, samples: Samples, beam: int) -> str:
        """See the protocol."""
        segments = self._model.transcribe(
            samples,
            language=self._task.language,
            beam=beam,
            temperature=0.0,
            condition_on_previous_text=False,
        )
        return "".join(segment.text for segment in segments)


def quantize_of(folder: Path) -> str:
    """Say how a bundle is quantised, or how a checkpoint will be."""
    return read_bundle(folder).quantize if is_bundle(folder) else "int8"
