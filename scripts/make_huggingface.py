"""Write a Hugging Face folder with random weights of a real model's shape: `… SHAPE FOLDER`.

For measuring how models of that size open and run, where nothing can be downloaded. Names and sizes
of tensors are what transformers makes of a configuration, and the tokenizers are the packaged
models', to whose vocabularies some models are fitted. The texts are noise.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from kvcast.checkpoints.source import locate, open_checkpoint
from tokenizers import Tokenizer

CONFIGS = Path(__file__).parents[1] / "tests" / "data" / "configs"
IM_END = 2  # of SmolLM2's tokenizer


class Shape(NamedTuple):
    """A model.

    Attributes:
        architecture: class of transformers.
        dtype: of its tensors.
        config: the configuration.
        packaged: whose tokenizer it gets.
        fitted: whether its vocabulary is the tokenizer's.
        added: special tokens that are not the tokenizer's.

    """

    architecture: str
    dtype: torch.dtype
    config: Mapping[str, Any]
    packaged: str = "demo-chat"
    fitted: bool = False
    added: tuple[str, ...] = ()


def published(name: str) -> Any:
    """Return a configuration that kvcast's tests have."""
    return json.loads((CONFIGS / name / "config.json").read_text(encoding="utf-8"))


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
QWEN_3_ASR = {
    "model_type": "qwen3_asr",
    "audio_config": {
        "d_model": 896,
        "encoder_layers": 18,
        "encoder_attention_heads": 14,
        "encoder_ffn_dim": 3584,
        "output_dim": 1024,
    },
    "text_config": {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 65_536,
    },
    "pad_token_id": IM_END,
}
SOUND = ("<|audio_start|>", "<|audio_end|>", "<asr_text>")
SHAPES = {
    "gemma-4-e2b": Shape("Gemma4ForCausalLM", torch.bfloat16, GEMMA_4_E2B),
    "mistral-7b": Shape("MistralForCausalLM", torch.bfloat16, published("mistral-7b"), fitted=True),
    "moonshine-streaming-tiny": Shape(  # transformers' defaults are its sizes
        "MoonshineStreamingForConditionalGeneration",
        torch.float32,
        {
            "model_type": "moonshine_streaming",
            "num_key_value_heads": 8,
            "decoder_start_token_id": 1,
        },
        fitted=True,
    ),
    "qwen3-asr-0.6b": Shape(
        "Qwen3ASRForConditionalGeneration", torch.bfloat16, QWEN_3_ASR, added=SOUND
    ),
    "whisper-large-v3-turbo": Shape(
        "WhisperForConditionalGeneration",
        torch.float16,
        published("whisper-large-v3-turbo"),
        packaged="demo-base",
        fitted=True,
    ),
}
SHARD = 2**30  # bytes of a file, but for the last of its tensors
POOL = 2**24  # numbers that are drawn; tensors take them by turns


def tensors(model: torch.nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's tensors: matrices keep activations' size, vectors are ones."""
    pool = torch.randn(POOL, generator=torch.Generator().manual_seed(0)).to(dtype)
    tied = {"proj_out.weight"} | ({"lm_head.weight"} if model.config.tie_word_embeddings else set())
    for name, tensor in model.state_dict().items():
        if tensor.ndim < 2:
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


def configuration(shape: Shape, vocabulary: int) -> dict[str, Any]:
    """Return the configuration of a model, with the vocabulary of its tokenizer if fitted."""
    config = dict(shape.config)
    if shape.fitted:
        config["vocab_size"] = vocabulary
    if "d_model" in config:  # a Whisper, of which kvcast's tests leave out what follows from that
        config |= {f"{part}_ffn_dim": 4 * config["d_model"] for part in ("encoder", "decoder")}
    else:
        config["eos_token_id"] = IM_END
    return config | {"architectures": [shape.architecture]}


def main() -> None:
    """Write the folder."""
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        raise SystemExit(f"usage: make_huggingface.py {'|'.join(SHAPES)} FOLDER")
    shape, folder = SHAPES[sys.argv[1]], Path(sys.argv[2])
    checkpoint = open_checkpoint(locate(shape.packaged))
    tokenizer = Tokenizer.from_str(checkpoint.text["tokenizer.json"].decode())
    tokenizer.add_special_tokens(list(shape.added))
    config = configuration(shape, checkpoint.dimensions.vocab_size)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    made = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = getattr(transformers, shape.architecture)(made)
    index: dict[str, str] = {}
    for number, part in enumerate(shards(tensors(model, shape.dtype)), 1):
        file = f"model-{number:05}.safetensors"
        save_file(part, folder / file)
        index |= dict.fromkeys(part, file)
    listed = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(listed, encoding="utf-8")


if __name__ == "__main__":
    main()
