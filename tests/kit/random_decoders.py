"""Decoder-only models of transformers with random weights, and kvcast's reading of their files."""

import json

import torch
import transformers

from kit.decoder_cases import CASES, LAYER_NORM_CASES, SIZES
from kit.other_fields import OTHER_FIELDS
from kit.seeing_cases import AROUND, SEEING_CASES, SIGHTS
from kvcast.checkpoints.source import open_checkpoint

MODELS = {**CASES, **LAYER_NORM_CASES, **SEEING_CASES}
for _kind, _fields in OTHER_FIELDS.items():
    _last = max((model for model in MODELS if MODELS[model][0] == _kind), key=[*MODELS].index)
    MODELS[_last] = (_kind, {**MODELS[_last][1], **_fields})
_LESS_ONE = (
    *("gemma", "gemma2", "gemma3_text", "nemotron"),
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
)
_WHOLE = (
    *("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight", "ln_attn.weight"),
    *("ln_mlp.weight", "norm_f.weight", "softmax_scaling.bias"),
    *("layernorm_1.weight", "layernorm_2.weight", "router.scale", "per_expert_scale"),
)


def configuration(model):
    """Return transformers' configuration of a case: its decoder and vision encoder, if any."""
    kind, settings = MODELS[model]
    fields = {
        name: value
        for name, value in {**SIZES, **settings}.items()
        # Some follow from others.
        if not isinstance(getattr(transformers.CONFIG_MAPPING[kind], name, None), property)
    }
    if kind in SIGHTS:
        of_text = transformers.AutoConfig.for_model(kind).get_text_config().model_type
        fields = {"text_config": {**fields, "model_type": of_text}, "vision_config": SIGHTS[kind]}
        fields |= AROUND.get(kind, {})
    return transformers.AutoConfig.for_model(kind, **fields, attn_implementation="eager")


def oracle_and_checkpoint(model, folder):
    """Return transformers' model with random weights, and the checkpoint read from its files."""
    kind, _ = MODELS[model]
    torch.manual_seed(0)
    to_text = transformers.AutoModelForCausalLM
    # transformers counts Mistral 4, of text alone, among models with images.
    seeing = kind in SIGHTS or kind == "mistral4"
    auto = transformers.AutoModelForImageTextToText if seeing else to_text
    oracle = auto.from_config(configuration(model)).eval()
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            # Gemma and Qwen 3.5 keep their norms' weights less one.
            less_one = kind in _LESS_ONE and "linear_attn" not in name
            is_whole = name.endswith(_WHOLE) and not less_one
            parameter.normal_(mean=float(is_whole), std=0.15)
        for name, buffer in oracle.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.normal_(mean=1.0, std=0.15)
            elif name.endswith(("e_score_correction_bias", "expert_bias", "rotary_emb.alpha")):
                buffer.normal_(std=0.15)
            elif name.endswith("act_fn.beta"):
                buffer.fill_(0.7)
    oracle.save_pretrained(folder / "checkpoint")
    (folder / "checkpoint" / "tokenizer.json").write_text("{}")
    about = json.loads((folder / "checkpoint" / "config.json").read_text("utf-8"))
    # Some configurations have no end token, which a checkpoint needs.
    about["eos_token_id"] = about.get("eos_token_id") or 2
    (folder / "checkpoint" / "config.json").write_text(json.dumps(about), "utf-8")
    return oracle, open_checkpoint(folder / "checkpoint")
