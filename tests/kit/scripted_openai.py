"""A model for openai-whisper's `transcribe` that says what a script says."""

from types import SimpleNamespace

import torch
import whisper.decoding as openai

from kit.scripted_windows import LAST, ScriptedResult, place


class ScriptedWhisper:
    """What `whisper.transcribe` needs of a model."""

    device = torch.device("cpu")
    is_multilingual = False
    num_languages = 99
    dims = SimpleNamespace(n_mels=1, n_audio_ctx=1500, n_text_ctx=448)

    def __init__(self, script: list[ScriptedResult]) -> None:
        self.results = iter(script)
        self.calls: list[tuple[tuple[int, int], openai.DecodingOptions, list[int]]] = []

    def decode(self, mel: torch.Tensor, options: openai.DecodingOptions) -> openai.DecodingResult:
        self.calls.append((place(mel.numpy()), options, list(options.prompt)))
        heard = next(self.results, LAST)
        return openai.DecodingResult(
            audio_features=mel,
            language="en",
            tokens=list(heard.tokens),
            avg_logprob=heard.avg_logprob,
            no_speech_prob=heard.no_speech_prob,
            temperature=options.temperature,
            compression_ratio=heard.compression_ratio,
        )
