"""Small models for other exporters' folders: sizes, random weights, checkpoints. Needs no torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast_bench.writing.huggingface import write_folder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Tensors = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Llama:
    """Sizes of a decoder-only model with grouped key heads."""

    vocab: int = 48
    width: int = 16
    inner: int = 24
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    positions: int = 64
    eps: float = 1e-5

    def tensors(self, seed: int = 0) -> Tensors:
        """Random weights by transformers' names, [out, in]."""
        own, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.width),
            "model.norm.weight": (self.width,),
            "lm_head.weight": (self.vocab, self.width),
        }
        for i in range(self.layers):
            shapes |= {
                f"model.layers.{i}.{name}.weight": shape
                for name, shape in {
                    "input_layernorm": (self.width,),
                    "self_attn.q_proj": (own, self.width),
                    "self_attn.k_proj": (keys, self.width),
                    "self_attn.v_proj": (keys, self.width),
                    "self_attn.o_proj": (self.width, own),
                    "post_attention_layernorm": (self.width,),
                    "mlp.gate_proj": (self.inner, self.width),
                    "mlp.up_proj": (self.inner, self.width),
                    "mlp.down_proj": (self.width, self.inner),
                }.items()
            }
        return _random(shapes, seed)

    @property
    def config(self) -> dict[str, Any]:
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.positions,
            "rms_norm_eps": self.eps,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }

    def angles(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines [positions, head_dim / 2]."""
        rates = 10000.0 ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        angles = np.arange(self.positions)[:, None] * rates
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@dataclass(frozen=True)
class T5:
    """Sizes of an encoder-decoder."""

    vocab: int = 48
    width: int = 16
    inner: int = 24
    layers: int = 2
    heads: int = 4
    head_dim: int = 8
    buckets: int = 8
    distance: int = 12
    longest: int = 64

    def tensors(self, seed: int = 0) -> Tensors:
        """Random weights by transformers' names, [out, in]."""
        mixed = self.heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"shared.weight": (self.vocab, self.width)}
        for side in ("encoder", "decoder"):
            shapes[f"{side}.final_layer_norm.weight"] = (self.width,)
            bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            shapes[bias] = (self.buckets, self.heads)
            parts = ["SelfAttention", *(["EncDecAttention"] if side == "decoder" else [])]
            for i in range(self.layers):
                for n, part in enumerate(parts):
                    at = f"{side}.block.{i}.layer.{n}"
                    shapes[f"{at}.layer_norm.weight"] = (self.width,)
                    shapes |= {f"{at}.{part}.{m}.weight": (mixed, self.width) for m in "qkv"}
                    shapes[f"{at}.{part}.o.weight"] = (self.width, mixed)
                at = f"{side}.block.{i}.layer.{len(parts)}"
                shapes[f"{at}.layer_norm.weight"] = (self.width,)
                shapes[f"{at}.DenseReluDense.wi.weight"] = (self.inner, self.width)
                shapes[f"{at}.DenseReluDense.wo.weight"] = (self.width, self.inner)
        return _random(shapes, seed)

    @property
    def config(self) -> dict[str, Any]:
        return {
            "model_type": "t5",
            "architectures": ["T5ForConditionalGeneration"],
            "is_encoder_decoder": True,
            "vocab_size": self.vocab,
            "d_model": self.width,
            "d_kv": self.head_dim,
            "d_ff": self.inner,
            "num_layers": self.layers,
            "num_decoder_layers": self.layers,
            "num_heads": self.heads,
            "relative_attention_num_buckets": self.buckets,
            "relative_attention_max_distance": self.distance,
            "feed_forward_proj": "relu",
            "layer_norm_epsilon": 1e-6,
            "decoder_start_token_id": 0,
            "tie_word_embeddings": True,
        }


LLAMA, SEQ2SEQ = Llama(), T5()


def _random(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Tensors:
    generator = np.random.default_rng(seed)
    return {
        name: generator.normal("norm" in name, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_checkpoint(folder: Path, model: Llama | T5, seed: int = 0) -> None:
    """Write a checkpoint in Hugging Face layout, with a tokenizer of bytes."""
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    write_folder(
        folder,
        model.tensors(seed).items(),
        config=model.config,
        tokenizer=json.loads(_tokenizer(model.vocab)),
        tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **special},
    )


def _tokenizer(vocab: int) -> str:
    pieces = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces[:vocab])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()
