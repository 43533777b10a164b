"""llama.cpp through llama-cpp-python's low-level interface, from GGUF files of the same weights."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from kvcast.bench.backend import Backend, Continuer, Ticks, Tokens
from kvcast.bench.files.gguf import write_gguf
from kvcast.bench.models import CausalModel, made_beside
from kvcast.errors import KvcastError

_BATCH = 512


class LlamaCpp(Backend, Continuer):
    """All matrices in one kind of blocks, the embedding that is the head as well."""

    packages = ("llama-cpp-python", "gguf")
    modules = ("llama_cpp",)
    settings = (
        f"n_batch {_BATCH}, flash attention as it chooses, a cache for each text, logits' argmax "
        "in NumPy"
    )

    model: CausalModel
    _texts: "_Texts | None" = None

    @override
    def unfit(self) -> str | None:
        reason = self.model.unlike_llama()
        if reason is None and self.model.checkpoint().dimensions.windows[0] is not None:
            reason = "llama.cpp gives models like Llama no window"
        return reason

    @override
    def prepare(self) -> None:
        file = self._file
        if not file.is_file():
            with made_beside(file) as beside:
                write_gguf(self.model.checkpoint(), self.kind, beside)

    @override
    def load(self) -> None:
        import llama_cpp

        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self.engine = llama_cpp.llama_model_load_from_file(str(self._file).encode(), params)
        if not self.engine:
            raise KvcastError(f"llama.cpp cannot read {self._file}")

    @override
    def generate(self, prompts: Sequence[Tokens], new: int, ticks: Ticks) -> list[Tokens]:
        # Memory for caches is fixed when a context is made: other sizes make one anew, in the
        # warm-up.
        sizes = (len(prompts), len(prompts[0]) + new)
        if self._texts is None or self._texts.sizes != sizes:
            if self._texts is not None:
                self._texts.close()  # two at once would count as its peak memory
            self._texts = _Texts(self.engine, sizes, self.model.threads)
        texts = self._texts
        texts.clear()
        tokens = [texts.read(row, prompt) for row, prompt in enumerate(prompts)]
        ticks.tick()
        written = [[token] for token in tokens]
        for _ in range(new - 1):
            tokens = texts.step(tokens)
            ticks.tick()
            for text, token in zip(written, tokens, strict=True):
                text.append(token)
        return written

    @property
    def _file(self) -> Path:
        return self.model.made(f"{self.kind}.gguf", ("gguf",))


class _Texts:
    """A context: caches of some rows of so many positions."""

    def __init__(self, model: Any, sizes: tuple[int, int], threads: int) -> None:
        import llama_cpp

        self.sizes = sizes
        rows, positions = sizes
        self._library: Any = llama_cpp
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = rows * -(-positions // 256) * 256
        params.n_seq_max = rows
        params.n_batch = params.n_ubatch = _BATCH
        params.n_threads = params.n_threads_batch = threads
        self._context: Any = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise KvcastError(f"llama.cpp makes no context of {rows} x {positions} positions")
        vocab = llama_cpp.llama_model_get_vocab(model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self._batch: Any = llama_cpp.llama_batch_init(max(_BATCH, rows), 0, 1)
        self._lengths = [0] * rows

    def close(self) -> None:
        """Give the memory back."""
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)

    def clear(self) -> None:
        """Forget all texts."""
        memory = self._library.llama_get_memory(self._context)
        self._library.llama_memory_clear(memory, False)
        self._lengths = [0] * len(self._lengths)

    def read(self, row: int, prompt: Tokens) -> int:
        """Read a prompt and return the likeliest next token."""
        for i in range(0, len(prompt), _BATCH):
            chunk = prompt[i : i + _BATCH]
            is_last = i + _BATCH >= len(prompt)
            places = [
                (token, row, is_last and at == len(chunk) - 1) for at, token in enumerate(chunk)
            ]
            self._decode(places)
        return self._likeliest(len(chunk) - 1)

    def step(self, tokens: Sequence[int]) -> list[int]:
        """Append a token to each row and return the likeliest next ones."""
        self._decode([(token, row, True) for row, token in enumerate(tokens)])
        return [self._likeliest(at) for at in range(len(tokens))]

    def _decode(self, places: Sequence[tuple[int, int, bool]]) -> None:
        """Evaluate tokens, each with its row and whether its logits are wanted."""
        batch = self._batch
        batch.n_tokens = len(places)
        for at, (token, row, is_wanted) in enumerate(places):
            batch.token[at] = token
            batch.pos[at] = self._lengths[row]
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = row
            batch.logits[at] = is_wanted
            self._lengths[row] += 1
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise KvcastError(f"llama_decode ended with status {status}")

    def _likeliest(self, at: int) -> int:
        logits = self._library.llama_get_logits_ith(self._context, at)
        pointer = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(pointer, (self._vocab_size,)).argmax())
