#!/bin/bash
# transformers 5.23.0 (torch 2.13.0): a configuration of Ling 3 (bailing_hybrid) does not keep its head_dim.
#
# One would expect: head_dim of a published file is the size of the heads of its delta nets, and saving the
# configuration writes the same number back.
# What happens: reading moves it into linear_head_dim and sets head_dim to qk_rope_head_dim, which is also what
# save_pretrained writes. With both fields the class reads its own file right; whoever copies the known fields alone,
# or drops the one that no published file has, gets delta nets with heads of the rotary part's size, without a word.
# Why it matters: readers outside transformers size the recurrent state (heads x head_dim x head_dim) by head_dim.
set -eu
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.23.0
"$folder/venv/bin/python" - "$folder/saved" <<'PYTHON'
import json
import sys
from pathlib import Path

import transformers
from transformers import AutoConfig

print("transformers", transformers.__version__)
given = AutoConfig.for_model("bailing_hybrid", head_dim=16, qk_rope_head_dim=8, qk_nope_head_dim=8)
given.save_pretrained(sys.argv[1])
path = Path(sys.argv[1], "config.json")
written = json.loads(path.read_text())
again = AutoConfig.from_pretrained(sys.argv[1])
path.write_text(json.dumps({name: value for name, value in written.items() if name != "linear_head_dim"}))
without = AutoConfig.from_pretrained(sys.argv[1])
sizes = {
    "given as 16": (given.head_dim, given.linear_head_dim),
    "written": (written["head_dim"], written["linear_head_dim"]),
    "read again": (again.head_dim, again.linear_head_dim),
    "read without linear_head_dim": (without.head_dim, without.linear_head_dim),
}
for name, pair in sizes.items():
    print(f"{name}: head_dim {pair[0]}, linear_head_dim {pair[1]}")
assert list(sizes.values()) == [(8, 16), (8, 16), (8, 16), (8, 8)], "it behaves otherwise now"
PYTHON
# Seen:
# given as 16: head_dim 8, linear_head_dim 16
# written: head_dim 8, linear_head_dim 16
# read again: head_dim 8, linear_head_dim 16
# read without linear_head_dim: head_dim 8, linear_head_dim 8
