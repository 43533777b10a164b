"""faster-whisper: CTranslate2, which reads its own folders and quantises while it loads."""

from pathlib import Path
from typing import Any, ClassVar

from kvcast.bench.speech.peers.base import Samples, Task


class FasterWhisper:
    """int8 is its fastest on a CPU."""

    name: ClassVar[str] = "faster-whisper"
    packages: ClassVar[tuple[str, ...]] = ("faster-whisper", "ctranslate2")
    modules: ClassVar[tuple[str, ...]] = ("faster_whisper",)
    settings: ClassVar[str] = "compute_type int8, no voice activity filter"
    dtype = "int8 weights, fp32 attention"

    def __init__(self, task: Task) -> None:
        self._task = task
        self._model: Any = None

    def unfit(self) -> str | None:
        """See the protocol."""
        found = (Path(self._task.folder) / "model.bin").is_file()
        return None if found else "needs a CTranslate2 folder"

    def prepare(self) -> None:
        """Nothing to make."""

    def load(self) -> None:
        """See the protocol."""
        from faster_whisper import WhisperModel

        self._model = WhisperModel(
            self._task.folder,
            device="cpu",
            compute_type="int8",
            cpu_threads=self._task.threads,
            num_workers=1,
            local_files_only=True,
        )

    def transcribe(self, samples: Samples, beam: int) -> str:
        """See the protocol."""
        segments, _ = self._model.transcribe(
            samples,
            language=self._task.language,
            beam_size=beam,
            temperature=0.0,
            condition_on_previous_text=False,
        )
        return "".join(segment.text for segment in segments)
