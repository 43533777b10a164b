"""whisper.cpp through pywhispercpp, from ggml files made of the same checkpoint."""

from pathlib import Path

from typing_extensions import override

from kvcast.bench.backend import Backend, Samples, Transcriber
from kvcast.bench.files.ggml import write_ggml
from kvcast.bench.models import made_beside


class WhisperCpp(Backend, Transcriber):
    """Matrices in blocks of int8, or in fp16."""

    packages = ("pywhispercpp",)
    modules = ("pywhispercpp.model",)
    settings = "flash attention, non-speech tokens suppressed as by the others"

    _search = ("en", 1)

    @override
    def prepare(self) -> None:
        file = self._file
        if not file.is_file():
            with made_beside(file) as beside:
                write_ggml(self.model.checkpoint(), self.kind, beside)

    @override
    def load(self) -> None:
        self._load("en", 1)

    @override
    def transcribe(self, samples: Samples, language: str, beam: int) -> str:
        # The search is fixed when a model is made: another one loads anew, in the warm-up.
        if (language, beam) != self._search:
            self._load(language, beam)
        return " ".join(segment.text for segment in self.engine.transcribe(samples))

    @property
    def _file(self) -> Path:
        return self.model.made(f"{self.kind}.ggml")

    def _load(self, language: str, beam: int) -> None:
        from pywhispercpp.model import Model

        search = (
            {"greedy": {"best_of": 1}}
            if beam == 1
            else {"beam_search": {"beam_size": beam, "patience": -1.0}}
        )
        self.engine = None  # two at once would count as its peak memory
        self._search = (language, beam)
        self.engine = Model(
            str(self._file),
            params_sampling_strategy=0 if beam == 1 else 1,
            context_params={"use_gpu": False, "flash_attn": True},
            n_threads=self.model.threads,
            language=language,
            temperature=0.0,
            temperature_inc=0.0,  # no fallback
            no_context=True,
            suppress_nst=True,
            print_progress=False,
            print_realtime=False,
            **search,
        )
