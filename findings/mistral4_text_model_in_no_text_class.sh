#!/bin/bash
# transformers 5.23.0 (torch 2.13.0): Mistral 4's text model is in no class of text models.
#
# One would expect: Mistral4ForCausalLM is a decoder of text alone, so AutoModelForCausalLM opens what it saved, as it
# does for every other model whose class ends in ForCausalLM (DeepSeek V3, GLM 4.7 Flash, ...).
# What happens: auto/modeling_auto.py lists the class among models of images and text only. AutoModelForCausalLM
# refuses the folder with a ValueError; AutoModelForImageTextToText opens it, though it has no images.
# Why it matters: servers, quantisers and converters pick the class by the task, so the same folder loads in some and
# not in others; a reader that decides by the registry takes a text model for one with a vision part.
set -eu
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.23.0
"$folder/venv/bin/python" - "$folder/model" <<'PYTHON'
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, Mistral4Config, Mistral4ForCausalLM

print("transformers", transformers.__version__, "torch", torch.__version__)
sizes = {"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 1}
sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64, "pad_token_id": 0}
sizes |= {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
sizes |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "bos_token_id": 1, "eos_token_id": 2}
Mistral4ForCausalLM(Mistral4Config(**sizes)).save_pretrained(sys.argv[1])
try:
    AutoModelForCausalLM.from_pretrained(sys.argv[1])
    refused = False
except ValueError as error:
    refused = True
    print("AutoModelForCausalLM:", str(error).splitlines()[0][:120])
opened = AutoModelForImageTextToText.from_pretrained(sys.argv[1])
print("AutoModelForImageTextToText:", type(opened).__name__)
has_images = any("vision" in name for name, _ in opened.named_parameters())
assert refused and type(opened) is Mistral4ForCausalLM and not has_images, "it behaves otherwise now"
PYTHON
# Seen:
# AutoModelForCausalLM: Unrecognized configuration class <class '...Mistral4Config'> for this kind of AutoModel: ...
# AutoModelForImageTextToText: Mistral4ForCausalLM
