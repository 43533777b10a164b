#!/bin/bash
# auto-round 0.16.1: exported in GPTQ's packing, a group whose zero point is 0 is a whole step off.
#
# One would expect: GPTQ's first version stores zero points less one, modulo 16: 0 becomes 15, or borrows, and readers
# that add 1 back in the same arithmetic get 0. The two packings of one model differ in layout alone.
# What happens: the export clamps at 0 after it has subtracted 1, so a zero point of 0 is stored as that of 1. Every
# weight of such a group (all of one sign, sym=False) is read one scale too low; in AWQ's packing it is within half.
# Why it matters: no file says so, and no reader can put it back. Which packing a model was exported in decides whether
# it is right; the default for 4 bits with zero points is AWQ's.
set -eu
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.23.0 auto-round==0.16.1
"$folder/venv/bin/python" - "$folder" 2> "$folder/log" <<'PYTHON' || { tail "$folder/log"; exit 1; }
import json
import sys
from pathlib import Path

import auto_round
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, models

folder = Path(sys.argv[1])
config = transformers.LlamaConfig(
    hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=64
)
name = "model.layers.0.mlp.up_proj"
torch.manual_seed(0)
weight = torch.empty(64, 64).uniform_(0.1, 1)  # all above 0, so that code 0 stands for 0
words = {f"w{i}": i for i in range(64)}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))


def unpacked(words, along):
    codes = torch.stack([words >> 4 * i & 15 for i in range(8)], dim=along + 1)
    return codes.flatten(along, along + 1)


apart = {}
for packing in ("auto_gptq", "auto_awq"):
    model = transformers.LlamaForCausalLM(config)
    model.get_submodule(name).weight.data.copy_(weight)
    rounding = auto_round.AutoRound(
        model, tokenizer, bits=4, group_size=32, sym=False, iters=0, disable_opt_rtn=True, device_map="cpu"
    )
    rounding.quantize_and_save(str(folder / packing), format=f"auto_round:{packing}")
    (path,) = (folder / packing).rglob("*.safetensors")
    stored = {key.removeprefix(f"{name}."): value for key, value in load_file(path).items() if key.startswith(name)}
    scales = stored["scales"].float()
    if packing == "auto_gptq":  # qzeros are less one
        codes, zeros = unpacked(stored["qweight"], 0), unpacked(stored["qzeros"], 1) + 1
    else:
        order = [8 * i + k for i in range(8) for k in (0, 4, 1, 5, 2, 6, 3, 7)]
        codes, zeros = (unpacked(stored[part], 1)[:, order] for part in ("qweight", "qzeros"))
    values = (codes - zeros.repeat_interleave(32, 0)) * scales.repeat_interleave(32, 0)
    apart[packing] = ((values.T - weight) / scales.repeat_interleave(32, 0).T).abs().max().item()
    print(f"{packing}: zero points {sorted(set(zeros.flatten().tolist()))}, a weight is at most {apart[packing]:.2f} steps off")
print("auto-round", auto_round.__version__, "torch", torch.__version__)
assert apart["auto_gptq"] > 0.9 > 0.6 > apart["auto_awq"], "it behaves otherwise now"
PYTHON
# Seen:
# auto_gptq: zero points [1], a weight is at most 1.50 steps off
# auto_awq: zero points [0], a weight is at most 0.50 steps off
# auto-round 0.16.1 torch 2.13.0+cpu
