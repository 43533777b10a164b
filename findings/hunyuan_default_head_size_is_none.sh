#!/bin/bash
# transformers 5.23.0 (torch 2.13.0): HunYuan's dense model cannot be built without a head_dim.
#
# One would expect: head_dim is optional and falls back to hidden_size / num_attention_heads, as in the models around
# it; the configuration's own annotation allows None.
# What happens: HunYuanDenseV1Config() keeps None, and the attention raises head_dim to a power before any fallback:
# TypeError, in the default configuration and in files that leave the field out.
# Why it matters: files from before the field existed read in other programs (whose fallback is the quotient) and fail
# here with a message that names neither file nor field.
set -eu
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.23.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

print("transformers", transformers.__version__, "torch", torch.__version__)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "pad_token_id": 0}
sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}


def outcome(kind, **more):
    try:
        AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **more))
    except TypeError as error:
        return f"TypeError: {error}"
    return "builds"


found = {name: outcome(*given) for name, given in {"hunyuan": ("hunyuan_v1_dense",), "qwen3": ("qwen3",)}.items()}
found["hunyuan with head_dim"] = outcome("hunyuan_v1_dense", head_dim=16)
for name, what in found.items():
    print(f"{name}: {what}")
assert found["hunyuan"].startswith("TypeError"), "it behaves otherwise now"
assert found["qwen3"] == found["hunyuan with head_dim"] == "builds", "it behaves otherwise now"
PYTHON
# Seen:
# hunyuan: TypeError: unsupported operand type(s) for ** or pow(): 'NoneType' and 'float'
# qwen3: builds
# hunyuan with head_dim: builds
