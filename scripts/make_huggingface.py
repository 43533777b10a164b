"""Write a Hugging Face folder with random weights of a real model's shape: `… SHAPE FOLDER`.

For measuring how models of that size open and run, where nothing can be downloaded: `mistral-7b` in
bf16, with the window of v0.1, `gemma-4-e2b` in bf16, and `whisper-large-v3-turbo` in fp16. The
configurations are those of `tests/data/configs` and of this file, names and sizes of tensors are
what transformers makes of them, and the tokenizers are the packaged models', to whose vocabularies
models are fitted, but for those of Gemma, where the vocabulary decides on the size. The texts are
noise.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from kvcast.checkpoints.source import locate, open_checkpoint

CONFIGS = Path(__file__).parents[1] / "tests" / "data" / "configs"
GEMMA_4_E2B = {
    "model_type": "gemma4_text",
    "vocab_size": 262_144,
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    "sliding_window": 512,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
    "final_logit_softcapping": 30.0,
}
SHAPES = {
    "gemma-4-e2b": ("Gemma4ForCausalLM", torch.bfloat16, "demo-chat"),
    "mistral-7b": ("MistralForCausalLM", torch.bfloat16, "demo-chat"),
    "whisper-large-v3-turbo": ("WhisperForConditionalGeneration", torch.float16, "demo-base"),
}
SHARD = 2**30  # bytes of a file, but for the last of its tensors
POOL = 2**24  # numbers that are drawn; tensors take them by turns


def tensors(model: torch.nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's tensors: matrices keep activations' size, vectors are ones."""
    pool = torch.randn(POOL, generator=torch.Generator().manual_seed(0)).to(dtype)
    tied = {"proj_out.weight"} | ({"lm_head.weight"} if model.config.tie_word_embeddings else set())
    for name, tensor in model.state_dict().items():
        if tensor.ndim == 1:
            yield name, torch.ones_like(tensor, dtype=dtype, device="cpu")
        elif name not in tied:
            numbers = pool.repeat(-(-tensor.numel() // POOL))[: tensor.numel()]
            yield name, numbers.mul_(tensor[0].numel() ** -0.5).view(tensor.shape)


def shards(each: Iterator[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of each file."""
    shard: dict[str, Tensor] = {}
    for name, tensor in each:
        shard[name] = tensor
        if sum(part.nbytes for part in shard.values()) >= SHARD:
            yield shard
            shard = {}
    if shard:
        yield shard


def main() -> None:
    """Write the folder."""
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        raise SystemExit(f"usage: make_huggingface.py {'|'.join(SHAPES)} FOLDER")
    shape, folder = sys.argv[1], Path(sys.argv[2])
    architecture, dtype, packaged = SHAPES[shape]
    checkpoint = open_checkpoint(locate(packaged))
    config: dict[str, Any] = dict(GEMMA_4_E2B)
    if shape != "gemma-4-e2b":
        config = json.loads((CONFIGS / shape / "config.json").read_text(encoding="utf-8"))
        config["vocab_size"] = checkpoint.dimensions.vocab_size
    config["architectures"] = [architecture]
    if "d_model" in config:  # a Whisper, of which kvcast's tests leave out what follows from that
        config |= {f"{part}_ffn_dim": 4 * config["d_model"] for part in ("encoder", "decoder")}
    else:
        config |= {"eos_token_id": 2}  # of SmolLM2's tokenizer, <|im_end|>
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(checkpoint.text["tokenizer.json"])
    made = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = getattr(transformers, architecture)(made)
    index: dict[str, str] = {}
    for number, part in enumerate(shards(tensors(model, dtype)), 1):
        file = f"model-{number:05}.safetensors"
        save_file(part, folder / file)
        index |= dict.fromkeys(part, file)
    listed = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(listed, encoding="utf-8")


if __name__ == "__main__":
    main()
