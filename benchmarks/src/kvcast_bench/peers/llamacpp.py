"""llama.cpp through llama-cpp-python's low-level interface, from GGUF files of the same weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.machine.resources import instruction_sets
from kvcast_bench.backend import Backend, Continuer, Ticks, Tokens
from kvcast_bench.models import CausalModel
from kvcast_bench.writing.gguf import write_gguf

_BATCH = 512
FILE = "model.gguf"


class LlamaCpp(Backend, Continuer):
    """All matrices in one kind of blocks, the embedding that is the head as well."""

    packages = ("llama-cpp-python", "gguf")
    modules = ("llama_cpp",)
    settings = (
        f"n_batch {_BATCH}, flash attention as it chooses, a cache for each text, logits' argmax "
        "in NumPy, no AMX"
    )

    model: CausalModel
    _context: "_Context | None" = None

    @override
    def unfit(self) -> str | None:
        reason = self.model.unlike_llama()
        if reason is None and self.model.checkpoint().dimensions.windows[0] is not None:
            reason = "llama.cpp gives models like Llama no window"
        return reason

    @override
    def files(self) -> Path:
        return self.model.made(
            f"gguf-{self.kind}",
            lambda folder: write_gguf(self.model.checkpoint(), self.kind, folder / FILE),
            ("gguf",),
        )

    def path(self) -> Path:
        return self.files() / FILE

    @override
    def load(self) -> None:
        import llama_cpp

        llama_cpp.llama_backend_init()
        file, params = self.path(), llama_cpp.llama_model_default_params()
        # Matrices in AMX's order end its process with a signal at the first prompt.
        params.use_extra_bufts = "amx_int8" not in instruction_sets()
        self.engine = llama_cpp.llama_model_load_from_file(str(file).encode(), params)
        if not self.engine:
            raise KvcastError(f"llama.cpp cannot read {file}")

    @override
    def generate(self, prompts: Sequence[Tokens], new: int, ticks: Ticks) -> list[Tokens]:
        # Memory for caches is fixed when a context is made: other sizes make one anew, in the
        # warm-up.
        sizes = (len(prompts), len(prompts[0]) + new)
        if self._context is None or self._context.sizes != sizes:
            if self._context is not None:
                self._context.close()  # two at once would count as its peak memory
            self._context = _Context(self.engine, sizes, self.model.threads)
        context = self._context
        context.clear()
        steps = [[context.append([(row, prompt)], 0)[0] for row, prompt in enumerate(prompts)]]
        ticks.tick()
        for position in range(len(prompts[0]), sizes[1] - 1):
            texts = [(row, [token]) for row, token in enumerate(steps[-1])]
            steps.append(context.append(texts, position))
            ticks.tick()
        return [list(tokens) for tokens in zip(*steps, strict=True)]


class LlamaCppOwn(LlamaCpp):
    @override
    def unfit(self) -> str | None:
        return None if Path(self.model.folder).suffix == ".gguf" else "reads GGUF files"

    @override
    def path(self) -> Path:
        return Path(self.model.folder)


class _Context:
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
        self._batch: Any = llama_cpp.llama_batch_init(_BATCH, 0, 1)

    def close(self) -> None:
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)

    def clear(self) -> None:
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), False)

    def append(self, texts: Sequence[tuple[int, Tokens]], position: int) -> list[int]:
        """Append tokens to some rows at a position; return the likeliest next ones."""
        places = [
            (row, position + at, token, at == len(tokens) - 1)
            for row, tokens in texts
            for at, token in enumerate(tokens)
        ]
        chunks = [places[i : i + _BATCH] for i in range(0, len(places), _BATCH)]
        return [token for chunk in chunks for token in self._decode(chunk)]

    def _decode(self, places: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Evaluate tokens of rows; return the likeliest after each whose logits are wanted."""
        batch = self._batch
        batch.n_tokens = len(places)
        for at, (row, position, token, is_wanted) in enumerate(places):
            batch.token[at], batch.pos[at], batch.logits[at] = token, position, is_wanted
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, row
        if status := self._library.llama_decode(self._context, batch):
            raise KvcastError(f"llama_decode ended with status {status}")
        wanted = [at for at, (*_, is_wanted) in enumerate(places) if is_wanted]
        logits = (self._library.llama_get_logits_ith(self._context, at) for at in wanted)
        return [int(np.ctypeslib.as_array(row, (self._vocab_size,)).argmax()) for row in logits]
