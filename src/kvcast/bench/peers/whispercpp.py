"""whisper.cpp through pywhispercpp, from ggml files made of the same checkpoint.

The layout, little-endian 32-bit numbers throughout, follows whisper.cpp's
models/convert-h5-to-ggml.py and, for q8_0, examples/quantize:

    magic, eleven sizes of which the last is the kind of file
    mel filters: bands, bins, floats
    vocabulary: count; each: length, bytes
    tensors to the end: rank, length of name, kind; sizes from the last axis on; name; numbers

Vectors, both tables of positions and nothing else stay fp32. Matrices and convolutions are fp16;
q8_0 turns the matrices into blocks of 32 numbers, each an fp16 scale and 32 int8.
"""

import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.mel import mel_filters
from kvcast.bench.backend import Backend, Samples, Transcriber
from kvcast.bench.peers.openai_whisper import openai_sizes, openai_tensors
from kvcast.checkpoints.base import WhisperCheckpoint
from kvcast.text.whisper import WhisperTokenizer

_FILE = "model.ggml"
_MAGIC = 0x67676D6C
# The kind of a file: mostly fp16, or 7 for mostly q8_0 beside the version 2 of the block formats.
FILE_KINDS = {"f16": 1, "q8_0": 2 * 1000 + 7}
_POSITIONS = ("encoder.positional_embedding", "decoder.positional_embedding")
_CONV_BIASES = ("encoder.conv1.bias", "encoder.conv2.bias")


class WhisperCpp(Backend, Transcriber):
    """Matrices in blocks of int8, or in fp16."""

    packages = ("pywhispercpp", "gguf")
    modules = ("pywhispercpp.model",)
    settings = "flash attention, non-speech tokens suppressed as by the others"

    _search = ("en", 1)

    @override
    def files(self) -> Path:
        return self.model.made(
            f"ggml-{self.kind}",
            lambda folder: write_ggml(self.model.checkpoint(), self.kind, folder / _FILE),
        )

    @override
    def load(self) -> None:
        from pywhispercpp.model import Model

        language, beam = self._search
        search = (
            {"greedy": {"best_of": 1}}
            if beam == 1
            else {"beam_search": {"beam_size": beam, "patience": -1.0}}
        )
        self.engine = None  # two at once would count as its peak memory
        self.engine = Model(
            str(self.files() / _FILE),
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

    @override
    def transcribe(self, samples: Samples, language: str, beam: int) -> str:
        # The search is fixed when a model is made: another one loads anew, in the warm-up.
        if (language, beam) != self._search:
            self._search = (language, beam)
            self.load()
        return " ".join(segment.text for segment in self.engine.transcribe(samples))


def write_ggml(checkpoint: WhisperCheckpoint, kind: str, path: Path) -> None:
    """Write `checkpoint` to `path`; `kind` is "f16" or "q8_0"."""
    dimensions = checkpoint.dimensions
    tokenizer = WhisperTokenizer(checkpoint.tokenizer_json, dimensions.vocab_size)
    with path.open("wb") as file:
        sizes = openai_sizes(dimensions).values()
        file.write(struct.pack("<12I", _MAGIC, *sizes, FILE_KINDS[kind]))
        filters = np.ascontiguousarray(mel_filters(dimensions.n_mels).T, "<f4")
        file.write(struct.pack("<2I", *filters.shape) + filters.tobytes())
        # whisper.cpp adds the special tokens itself.
        file.write(struct.pack("<I", tokenizer.eot))
        for word in map(tokenizer.token_bytes, range(tokenizer.eot)):
            file.write(struct.pack("<I", len(word)) + word)
        for name, tensor in openai_tensors(checkpoint.tensors):
            _write_tensor(file, name, tensor, kind)


def _write_tensor(file: BinaryIO, name: str, tensor: NDArray[Any], kind: str) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    code = GGMLQuantizationType.F16
    if tensor.ndim < 2 or name in _POSITIONS:
        code = GGMLQuantizationType.F32
    elif kind == "q8_0" and tensor.ndim == 2:
        code = GGMLQuantizationType.Q8_0
    if name in _CONV_BIASES:
        tensor = tensor[:, None]
    numbers = quantize(np.array(tensor, np.float32), code).tobytes()
    encoded = name.encode()
    file.write(struct.pack("<3I", tensor.ndim, len(encoded), code))
    file.write(struct.pack(f"<{tensor.ndim}I", *reversed(tensor.shape)) + encoded + numbers)
