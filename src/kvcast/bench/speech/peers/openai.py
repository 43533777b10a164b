"""openai-whisper: the original, in PyTorch."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kvcast.bench.contender import needs_checkpoint
from kvcast.bench.speech.names import openai_tensors
from kvcast.bench.speech.peers.base import Samples, Task


class OpenAIWhisper:
    """fp32: it knows nothing faster on a CPU."""

    name: ClassVar[str] = "openai-whisper"
    packages: ClassVar[tuple[str, ...]] = ("openai-whisper", "torch")
    modules: ClassVar[tuple[str, ...]] = ("torch", "whisper")
    settings: ClassVar[str] = "fp16=False"
    dtype = "fp32"

    def __init__(self, task: Task) -> None:
        self._task = task
        self._model: Any = None

    def unfit(self) -> str | None:
        """See the protocol."""
        return needs_checkpoint(Path(self._task.folder))

    def prepare(self) -> None:
        """Nothing to make."""

    def load(self) -> None:
        """See the protocol."""
        import torch
        from whisper.model import ModelDimensions, Whisper

        torch.set_num_threads(self._task.threads)
        checkpoint = self._task.checkpoint()
        sizes = checkpoint.dimensions
        self._model = Whisper(
            ModelDimensions(
                n_mels=sizes.n_mels,
                n_audio_ctx=sizes.source_positions,
                n_audio_state=sizes.d_model,
                n_audio_head=sizes.encoder_heads,
                n_audio_layer=sizes.encoder_layers,
                n_vocab=sizes.vocab_size,
                n_text_ctx=sizes.target_positions,
                n_text_state=sizes.d_model,
                n_text_head=sizes.decoder_heads,
                n_text_layer=sizes.decoder_layers,
            )
        ).eval()
        self._model.load_state_dict(
            {
                name: torch.from_numpy(np.array(tensor, np.float32))
                for name, tensor in openai_tensors(checkpoint.tensors)
            }
        )

    def transcribe(self, samples: Samples, beam: int) -> str:
        """See the protocol."""
        result = self._model.transcribe(
            samples,
            language=self._task.language,
            beam_size=beam if beam > 1 else None,
            temperature=0.0,
            condition_on_previous_text=False,
            fp16=False,
            verbose=None,
        )
        return str(result["text"])
