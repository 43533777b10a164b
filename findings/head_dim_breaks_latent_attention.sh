#!/bin/bash
# transformers 5.23.0 (torch 2.13.0): a head_dim in config.json breaks models whose attention is to latents.
#
# One would expect: DeepSeek V2 and V3, Youtu-LLM and MiniCPM 3 have their sizes of heads in qk_nope_head_dim,
# qk_rope_head_dim and v_head_dim, and their configurations set head_dim to qk_rope_head_dim themselves. A head_dim
# that a file has beside them, such as the whole head's (nope + rope), has no effect, or is refused.
# What happens: in V2 and MiniCPM 3, which declare the field, it has none. V3 and Youtu-LLM do not declare it: their
# classes set head_dim and then apply the file's unknown fields over it. The rotary embedding takes head_dim for the
# width of its tables: the model builds, loads and fails in its first forward, with sizes that name neither field.
# Why it matters: other programs write head_dim into such files (it is what a cache of keys would need), and the
# failure looks like damaged weights.
set -eu
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.23.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

print("transformers", transformers.__version__, "torch", torch.__version__)
sizes = {"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 1}
sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64, "pad_token_id": 0}
sizes |= {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
sizes |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
sizes |= {"bos_token_id": 1, "eos_token_id": 2}


def outcome(kind, **more):
    config = AutoConfig.for_model(kind, **sizes, **more)
    model = AutoModelForCausalLM.from_config(config).eval()
    try:
        with torch.no_grad():
            model(torch.arange(6)[None])
    except RuntimeError as error:
        return config.head_dim, f"RuntimeError: {str(error).splitlines()[0][:90]}"
    return config.head_dim, "runs"


for kind, breaks in {"deepseek_v2": False, "minicpm3": False, "deepseek_v3": True, "youtu": True}.items():
    without, given = outcome(kind), outcome(kind, head_dim=12)
    print(f"{kind}: without head_dim {without}; with the whole head's {given}")
    assert without == (4, "runs"), "it behaves otherwise now"
    assert given == (4, "runs") if not breaks else given[0] == 12 and given[1] != "runs", "it behaves otherwise now"
PYTHON
# Seen:
# deepseek_v2: without head_dim (4, 'runs'); with the whole head's (4, 'runs')
# minicpm3: without head_dim (4, 'runs'); with the whole head's (4, 'runs')
# deepseek_v3: without head_dim (4, 'runs'); with the whole head's (12, 'RuntimeError: The size of tensor a (2) must
# match the size of tensor b (6) at non-singleton dimension 3')
# youtu: the same as deepseek_v3
