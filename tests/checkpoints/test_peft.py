"""Adapters that peft makes, on models of transformers: logits are those of peft's own modules."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.pytorch_utils import Conv1D

from checkpoints.tiny_whisper import random_model, save
from kit.adapters import assert_close
from kit.decoder_cases import VOCAB
from kit.in_transformers import random_t5, save_t5
from kit.random_decoders import MODELS, oracle_and_checkpoint
from kvcast.checkpoints.source import open_adapters, open_checkpoint
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerDecoderOnly

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of libraries that it imports
    import peft

EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
DORA = {"use_dora": True, "target_modules": ["q_proj", "o_proj", "up_proj", "embed_tokens"]}
ONE = {"target_modules": ["q_proj"]}
TIED = "llama with biases and a tied head"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "DoRA": (
        "llama 2",
        {**DORA, "use_rslora": True, "rank_pattern": {"q_proj": 3}, "alpha_pattern": {"o_proj": 5}},
    ),
    "DoRA, inputs first": (
        "gpt 2",
        {"use_dora": True, "target_modules": ["c_attn", "c_proj", "wte"], "fan_in_fan_out": True},
    ),
    "inputs first, and a head": ("gpt 2", {"target_modules": ["c_proj", "lm_head"]}),
    "biases": (TIED, {"target_modules": ["q_proj", "v_proj"], "lora_bias": True}),
    "tokens of a tied head": (TIED, {**ONE, "trainable_token_indices": [5, 9, 20]}),
    "tokens of both": (
        TIED,
        {**ONE, "trainable_token_indices": {"embed_tokens": [5], "lm_head": [7]}},
    ),
    "a tied pair": (TIED, {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}),
    "whole modules": (
        "llama 2",
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "input_layernorm"]},
    ),
    "listed experts": (
        "qwen 3 with experts",
        {"target_parameters": [*EXPERTS, "mlp.gate.weight"], "rank_pattern": {"down_proj": 3}},
    ),
    "experts, inputs first": ("gpt oss", {"target_parameters": EXPERTS}),
}
OF_EACH_TYPE = {kind: name for name, (kind, _) in reversed(MODELS.items())}
NOT_TRAINED = ("vision", "visual", "multi_modal", "lm_head", "connector")
NOT_IN_PEFT = {"nemotron_h", "falcon_h1"}  # it refuses their projections
# Of which a plain call of transformers leaves out the softcap, or the factors for longer texts.
IN_PART = {"gemma3_text", "phi3"}


def of_parameters(model: torch.nn.Module) -> dict[str, Any]:
    """Target all matrices of layers, those of routers and experts as parameters."""
    modules, parameters = [], []
    for name, module in model.named_modules():
        if any(part in name for part in NOT_TRAINED):
            continue
        if isinstance(module, torch.nn.Linear | Conv1D):
            modules.append(name)
        elif not isinstance(module, torch.nn.Embedding | torch.nn.Conv1d):
            parameters += [
                f"{name}.{own}"
                for own, value in module.named_parameters(recurse=False)
                if value.ndim == 3 or (value.ndim == 2 and own == "weight")
            ]
    return {"target_modules": modules, "target_parameters": parameters or None}


def logits_of(checkpoint: Any, tokens: Any) -> Any:
    programs = TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    runtime = EagerDecoderOnly(programs)
    cache = runtime.new_cache(1, len(tokens))
    rows, _ = runtime.decode([tokens], cache, positions=range(len(tokens)))
    return rows[0].copy()


def adapt(model: Any, folder: Path, **fields: Any) -> Any:
    """Return peft's model with a random adapter, which it saves."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # advice for training
        config = peft.LoraConfig(r=2, lora_alpha=3, init_lora_weights=False, **fields)
        adapted = peft.get_peft_model(model, config).eval()
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
        adapted.save_pretrained(folder)
    return adapted


def check(name: str, folder: Path, fields: dict[str, Any]) -> None:
    model, plain = oracle_and_checkpoint(name, folder)
    fields = {"target_modules": [], **(fields or of_parameters(model))}
    tokens = np.random.default_rng(1).integers(3, VOCAB, 12)
    tokens[:3] = 5, 9, 7
    adapted = adapt(model, folder / "adapter", **fields)
    with torch.no_grad():
        expected = adapted(input_ids=torch.from_numpy(tokens)[None]).logits[0].numpy()
    merged = open_checkpoint(folder / "checkpoint", open_adapters(str(folder / "adapter")))
    np.testing.assert_allclose(logits_of(merged, tokens), expected, rtol=1e-4, atol=1e-4)
    assert np.abs(logits_of(plain, tokens) - expected).max() > 1e-1


ENCODED = {
    "whisper": (random_model, save, ["conv1", "k_proj", "fc1"]),
    "t5": (lambda: random_t5("T5_11"), save_t5, ["q", "wi_1"]),
}


@pytest.mark.parametrize("kind", ENCODED)
def test_tensors_are_those_that_peft_merges(kind: str, tmp_path: Path) -> None:
    make, save_model, modules = ENCODED[kind]
    base, tokens = save_model(make(), tmp_path / "base"), [3, 5]
    fields = {"target_modules": modules, "trainable_token_indices": tokens, "use_dora": True}
    trained = adapt(make(), tmp_path / "adapter", **fields)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a head is no longer tied
        merged = trained.merge_and_unload()
    expected = open_checkpoint(save_model(merged, tmp_path / "merged"))
    adapted = open_checkpoint(base, open_adapters(str(tmp_path / "adapter")))
    assert_close(adapted.tensors, expected.tensors)
    assert adapted.dimensions == expected.dimensions


@pytest.mark.parametrize("case", CASES)
def test_logits_are_pefts(case: str, tmp_path: Path) -> None:
    check(CASES[case][0], tmp_path, CASES[case][1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(OF_EACH_TYPE.keys() - NOT_IN_PEFT - IN_PART))
def test_logits_of_each_type_are_pefts(kind: str, tmp_path: Path) -> None:
    check(OF_EACH_TYPE[kind], tmp_path, {})
