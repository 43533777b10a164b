"""whisper.cpp through pywhispercpp, from ggml files made of the same checkpoint."""

from pathlib import Path
from typing import Any, ClassVar

from kvcast.bench.contender import made_beside, made_path, needs_checkpoint
from kvcast.bench.speech.ggml import write_ggml
from kvcast.bench.speech.peers.base import Samples, Task
from kvcast.checkpoints.source import fingerprint


class WhisperCppQ8:
    """Matrices in blocks of int8."""

    name: ClassVar[str] = "whisper.cpp-q8_0"
    packages: ClassVar[tuple[str, ...]] = ("pywhispercpp",)
    modules: ClassVar[tuple[str, ...]] = ("pywhispercpp.model",)
    settings: ClassVar[str] = "flash attention, non-speech tokens suppressed as by the others"
    kind: ClassVar[str] = "q8_0"
    dtype = "q8_0 matrices, fp16 else"

    def __init__(self, task: Task) -> None:
        self._task = task
        self._model: Any = None
        self._beam = 1

    def unfit(self) -> str | None:
        """See the protocol."""
        return needs_checkpoint(Path(self._task.folder))

    def prepare(self) -> None:
        """Convert; see `kvcast.bench.speech.ggml`."""
        file = self._file
        if not file.is_file():
            with made_beside(file) as beside:
                write_ggml(self._task.checkpoint(), self.kind, beside)

    def load(self) -> None:
        """See the protocol."""
        self._load(1)

    def transcribe(self, samples: Samples, beam: int) -> str:
        """See the protocol.

        The search is fixed when a model is made: another one loads anew, in the warm-up.
        """
        if beam != self._beam:
            self._load(beam)
        return " ".join(segment.text for segment in self._model.transcribe(samples))

    @property
    def _file(self) -> Path:
        return made_path(f"{fingerprint(Path(self._task.folder))[:24]}-{self.kind}.ggml")

    def _load(self, beam: int) -> None:
        from pywhispercpp.model import Model

        search = (
            {"greedy": {"best_of": 1}}
            if beam == 1
            else {"beam_search": {"beam_size": beam, "patience": -1.0}}
        )
        self._model = None  # two at once would count as its peak memory
        self._beam = beam
        self._model = Model(
            str(self._file),
            params_sampling_strategy=0 if beam == 1 else 1,
            context_params={"use_gpu": False, "flash_attn": True},
            n_threads=self._task.threads,
            language=self._task.language,
            temperature=0.0,
            temperature_inc=0.0,  # no fallback
            no_context=True,
            suppress_nst=True,
            print_progress=False,
            print_realtime=False,
            **search,
        )


class WhisperCppF16(WhisperCppQ8):
    """Matrices in fp16."""

    name: ClassVar[str] = "whisper.cpp-f16"
    kind: ClassVar[str] = "f16"
    dtype = "fp16"
