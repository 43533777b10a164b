#!/bin/bash
# mlx-lm 0.32.2 (mlx 0.32.4): the mixture of qwen2_moe does not read norm_topk_prob.
#
# One would expect: a model whose config.json has "norm_topk_prob": true divides the chosen experts' weights by their
# sum, as transformers' Qwen2Moe classes do and as mlx-lm itself does for qwen3_moe.
# What happens: models/qwen2_moe.py has no such field. The configuration loads without a word, and the logits are those
# of false, which is what the first published models had; a later one with true writes other tokens.
# Why it matters: whoever compares a conversion with its source token by token looks for the fault in the cache.
set -eu
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "mlx[cpu]==0.32.4" mlx-lm==0.32.2 transformers==5.23.0
"$folder/venv/bin/python" - <<'PYTHON'
import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.models import qwen2_moe, qwen3_moe

SIZES = dict(
    hidden_size=32, num_hidden_layers=1, intermediate_size=64, num_attention_heads=2, num_key_value_heads=2,
    rms_norm_eps=1e-6, vocab_size=40, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
    tie_word_embeddings=False, rope_theta=10000.0,
)
OTHERS = {
    "qwen2_moe": dict(shared_expert_intermediate_size=48),
    "qwen3_moe": dict(decoder_sparse_step=1, mlp_only_layers=[], head_dim=16, max_position_embeddings=64),
}


def logits(module, name, norm):
    args = module.ModelArgs.from_dict(dict(model_type=name, norm_topk_prob=norm, **SIZES, **OTHERS[name]))
    mx.random.seed(0)
    return np.array(module.Model(args)(mx.array([[1, 5, 9, 2, 30]])))


print("mlx-lm", mlx_lm.__version__)
apart = {}
for module, name in ((qwen2_moe, "qwen2_moe"), (qwen3_moe, "qwen3_moe")):
    apart[name] = np.abs(logits(module, name, True) - logits(module, name, False)).max()
    print(f"{name}: logits with norm_topk_prob true and false differ by {apart[name]:.3f}")
assert apart["qwen2_moe"] == 0 < apart["qwen3_moe"], "it behaves otherwise now"
PYTHON
# Seen:
# mlx-lm 0.32.2
# qwen2_moe: logits with norm_topk_prob true and false differ by 0.000
# qwen3_moe: logits with norm_topk_prob true and false differ by 0.192
