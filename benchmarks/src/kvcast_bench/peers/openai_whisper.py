"""openai-whisper, in PyTorch, and whisper.cpp through pywhispercpp, with the same weights."""

from pathlib import Path

import numpy as np
from typing_extensions import override

from kvcast.audio.mel import mel_filters
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast_bench.backend import Backend, Samples, Transcriber
from kvcast_bench.writing.ggml import openai_sizes, openai_tensors, write_ggml


class OpenAIWhisper(Backend, Transcriber):
    """fp32 is its fastest on a CPU."""

    packages = ("openai-whisper", "torch")
    modules = ("torch", "whisper")
    settings = "fp16=False"

    @override
    def load(self) -> None:
        import torch
        from whisper.model import ModelDimensions, Whisper

        torch.set_num_threads(self.model.threads)
        checkpoint = self.model.checkpoint()
        self.engine = Whisper(ModelDimensions(**openai_sizes(checkpoint.dimensions))).eval()
        self.engine.load_state_dict(
            {
                name: torch.from_numpy(np.array(tensor, np.float32))
                for name, tensor in openai_tensors(checkpoint.tensors)
            }
        )

    @override
    def transcribe(self, samples: Samples, language: str, beam: int) -> str:
        result = self.engine.transcribe(
            samples,
            language=language,
            beam_size=beam if beam > 1 else None,
            temperature=0.0,
            condition_on_previous_text=False,
            fp16=False,
            verbose=None,
        )
        return str(result["text"])


_FILE = "model.ggml"


class WhisperCpp(Backend, Transcriber):
    """Matrices in blocks of int8, or in fp16."""

    packages = ("pywhispercpp", "gguf")
    modules = ("pywhispercpp.model",)
    settings = "flash attention, non-speech tokens suppressed as by the rest"

    _search = ("en", 1)

    @override
    def files(self) -> Path:
        return self.model.made(f"ggml-{self.kind}", self.write)

    @override
    def load(self) -> None:
        from pywhispercpp.model import Model

        language, beam = self._search
        self.engine = None  # two at once would count as its peak memory
        self.engine = Model(
            str(self.files() / _FILE),
            params_sampling_strategy=0 if beam == 1 else 1,
            greedy={"best_of": 1},
            beam_search={"beam_size": beam, "patience": -1.0},
            context_params={"use_gpu": False, "flash_attn": True},
            n_threads=self.model.threads,
            language=language,
            temperature=0.0,
            temperature_inc=0.0,  # no fallback
            no_context=True,
            suppress_nst=True,
            print_progress=False,
            print_realtime=False,
        )

    @override
    def transcribe(self, samples: Samples, language: str, beam: int) -> str:
        # The search is fixed when a model is made: another one loads anew, in the warm-up.
        if (language, beam) != self._search:
            self._search = (language, beam)
            self.load()
        return " ".join(segment.text for segment in self.engine.transcribe(samples))

    def write(self, folder: Path) -> None:
        """Fill `folder` with the ggml file."""
        checkpoint = self.model.checkpoint()
        sizes = checkpoint.dimensions
        tokenizer = WhisperTokenizer(checkpoint.text["tokenizer.json"], sizes.vocab_size)
        write_ggml(
            checkpoint,
            self.kind,
            folder / _FILE,
            filters=mel_filters(sizes.n_mels),
            words=[tokenizer.token_bytes(token) for token in range(tokenizer.eot)],
        )
