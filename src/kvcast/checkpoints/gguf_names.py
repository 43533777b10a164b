"""Names of tensors in GGUF files, by canonical name. Knows no architecture's numbers."""

from collections.abc import Mapping, Sequence

_LAYER = "decoder.layers.{i}"
NAMES: Mapping[str, Sequence[str]] = {
    "decoder.embedding.weight": ("token_embd.weight",),
    "decoder.norm.weight": ("output_norm.weight",),
    "decoder.head.weight": ("output.weight",),
    f"{_LAYER}.attention_norm.weight": ("blk.{i}.attn_norm.weight",),
    f"{_LAYER}.attention.qkv.weight": tuple(f"blk.{{i}}.attn_{x}.weight" for x in "qkv"),
    f"{_LAYER}.attention.qkv.bias": tuple(f"blk.{{i}}.attn_{x}.bias" for x in "qkv"),
    f"{_LAYER}.attention.out.weight": ("blk.{i}.attn_output.weight",),
    f"{_LAYER}.attention.out.bias": ("blk.{i}.attn_output.bias",),
    f"{_LAYER}.attention.query_norm.weight": ("blk.{i}.attn_q_norm.weight",),
    f"{_LAYER}.attention.key_norm.weight": ("blk.{i}.attn_k_norm.weight",),
    f"{_LAYER}.attention_post_norm.weight": ("blk.{i}.post_attention_norm.weight",),
    f"{_LAYER}.feed_forward_norm.weight": ("blk.{i}.ffn_norm.weight",),
    f"{_LAYER}.feed_forward.gate_up.weight": (
        "blk.{i}.ffn_gate.weight",
        "blk.{i}.ffn_up.weight",
    ),
    f"{_LAYER}.feed_forward.up.weight": ("blk.{i}.ffn_up.weight",),
    f"{_LAYER}.feed_forward.down.weight": ("blk.{i}.ffn_down.weight",),
    f"{_LAYER}.feed_forward_post_norm.weight": ("blk.{i}.post_ffw_norm.weight",),
    f"{_LAYER}.feed_forward.router.weight": ("blk.{i}.ffn_gate_inp.weight",),
    # Files stack the experts; `_stored` splits them.
    f"{_LAYER}.feed_forward.gate_up": (
        "blk.{i}.ffn_gate_exps.weight.{e}",
        "blk.{i}.ffn_up_exps.weight.{e}",
    ),
    f"{_LAYER}.feed_forward.down": ("blk.{i}.ffn_down_exps.weight.{e}",),
    f"{_LAYER}.feed_forward.shared.gate_up.weight": (
        "blk.{i}.ffn_gate_shexp.weight",
        "blk.{i}.ffn_up_shexp.weight",
    ),
    f"{_LAYER}.feed_forward.shared.down.weight": ("blk.{i}.ffn_down_shexp.weight",),
    f"{_LAYER}.feed_forward.shared.gate.weight": ("blk.{i}.ffn_gate_inp_shexp.weight",),
    f"{_LAYER}.feed_forward.router.bias": ("blk.{i}.ffn_gate_inp.bias",),
    f"{_LAYER}.feed_forward.gate_up_bias": (
        "blk.{i}.ffn_gate_exps.bias.{e}",
        "blk.{i}.ffn_up_exps.bias.{e}",
    ),
    f"{_LAYER}.feed_forward.down_bias": ("blk.{i}.ffn_down_exps.bias.{e}",),
    f"{_LAYER}.attention.sinks": ("blk.{i}.attn_sinks.weight",),
    "decoder.norm.bias": ("output_norm.bias",),
    f"{_LAYER}.attention_norm.bias": ("blk.{i}.attn_norm.bias",),
    f"{_LAYER}.feed_forward_norm.bias": ("blk.{i}.ffn_norm.bias",),
    f"{_LAYER}.feed_forward.up.bias": ("blk.{i}.ffn_up.bias",),
    f"{_LAYER}.feed_forward.down.bias": ("blk.{i}.ffn_down.bias",),
    "decoder.head.bias": ("output.bias",),
    "decoder.positions": ("position_embd.weight",),
}
"""Names of the files' tensors, by canonical name."""
FUSED_GATE_UP = {f"{_LAYER}.feed_forward.gate_up.weight": ("blk.{i}.ffn_up.weight",)}
FUSED_QKV = {
    f"{_LAYER}.attention.qkv.{leaf}": (f"blk.{{i}}.attn_qkv.{leaf}",) for leaf in ("weight", "bias")
}
NORM_AFTER_ATTENTION = {
    f"{_LAYER}.feed_forward_norm.weight": ("blk.{i}.post_attention_norm.weight",)
}
FUSED_EXPERTS = {f"{_LAYER}.feed_forward.gate_up": ("blk.{i}.ffn_gate_up_exps.weight.{e}",)}
STATE_SPACE_NAMES = {
    **NAMES,
    **{
        f"{_LAYER}.state_space.{ours}": (f"blk.{{i}}.{theirs}",)
        for ours, theirs in {
            "in.weight": "ssm_in.weight",
            "kernel": "ssm_conv1d.weight",
            "kernel_bias": "ssm_conv1d.bias",
            "decay": "ssm_a",
            "step_bias": "ssm_dt.bias",
            "skip": "ssm_d",
            "norm.weight": "ssm_norm.weight",
            "out.weight": "ssm_out.weight",
        }.items()
    },
}
LFM2_NAMES = {
    **NAMES,
    "decoder.norm.weight": ("token_embd_norm.weight",),
    f"{_LAYER}.convolution.kernel": ("blk.{i}.shortconv.conv.weight",),
    f"{_LAYER}.convolution.bias": ("blk.{i}.shortconv.conv.bias",),
    **{
        f"{_LAYER}.convolution.{ours}.{leaf}": (f"blk.{{i}}.shortconv.{theirs}_proj.{leaf}",)
        for ours, theirs in (("input", "in"), ("out", "out"))
        for leaf in ("weight", "bias")
    },
}
QWEN35_NAMES = {
    **NAMES,
    **NORM_AFTER_ATTENTION,
    f"{_LAYER}.attention.gate.weight": ("blk.{i}.attn_q_gate.weight",),
    f"{_LAYER}.delta.input.weight": tuple(
        f"blk.{{i}}.{name}.weight" for name in ("ssm_qkv", "attn_gate", "ssm_beta", "ssm_alpha")
    ),
    f"{_LAYER}.delta.kernel": ("blk.{i}.ssm_conv1d.weight",),
    f"{_LAYER}.delta.decay": ("blk.{i}.ssm_a",),
    f"{_LAYER}.delta.step_bias": ("blk.{i}.ssm_dt.bias",),
    f"{_LAYER}.delta.norm.weight": ("blk.{i}.ssm_norm.weight",),
    f"{_LAYER}.delta.out.weight": ("blk.{i}.ssm_out.weight",),
}
GEMMA4_NAMES = {
    **NAMES,
    "decoder.layer_embedding.weight": ("per_layer_token_embd.weight",),
    "decoder.layer_projection.weight": ("per_layer_model_proj.weight",),
    "decoder.layer_projection_norm.weight": ("per_layer_proj_norm.weight",),
    f"{_LAYER}.layer_input.gate.weight": ("blk.{i}.inp_gate.weight",),
    f"{_LAYER}.layer_input.out.weight": ("blk.{i}.proj.weight",),
    f"{_LAYER}.layer_input_norm.weight": ("blk.{i}.post_norm.weight",),
    f"{_LAYER}.scale": ("blk.{i}.layer_output_scale.weight",),
    f"{_LAYER}.feed_forward_own_norm.weight": ("blk.{i}.post_ffw_norm_1.weight",),
    f"{_LAYER}.experts_norm.weight": ("blk.{i}.pre_ffw_norm_2.weight",),
    f"{_LAYER}.experts_post_norm.weight": ("blk.{i}.post_ffw_norm_2.weight",),
    f"{_LAYER}.experts.router.weight": ("blk.{i}.ffn_gate_inp.weight",),
    f"{_LAYER}.experts.router_norm.weight": ("blk.{i}.ffn_gate_inp.scale",),
    f"{_LAYER}.experts.scales": ("blk.{i}.ffn_down_exps.scale",),
    f"{_LAYER}.experts.gate_up": ("blk.{i}.ffn_gate_up_exps.weight.{e}",),
    f"{_LAYER}.experts.down": ("blk.{i}.ffn_down_exps.weight.{e}",),
}
QUERY_NORM, KEY_NORM = ".attn_q_norm.weight", ".attn_k_norm.weight"
