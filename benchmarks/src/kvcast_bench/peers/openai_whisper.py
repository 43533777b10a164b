"""openai-whisper: the original, in PyTorch. Knows no workload."""

import numpy as np
from typing_extensions import override

from kvcast_bench.backend import Backend, Samples, Transcriber
from kvcast_bench.writing.ggml import openai_sizes, openai_tensors


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
