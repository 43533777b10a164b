"""Sizes of published models, for counts that are worked out by hand."""

from kvcast.families.decoder import DecoderDimensions
from kvcast.families.t5 import T5Dimensions
from kvcast.families.whisper import WhisperDimensions
from kvcast.spec.rotary import Rotary

TINY_EN = WhisperDimensions(
    n_mels=80,
    vocab_size=51864,
    d_model=384,
    encoder_layers=4,
    encoder_heads=6,
    decoder_layers=4,
    decoder_heads=6,
)
SMOL = DecoderDimensions(
    architecture="llama",
    vocab_size=49152,
    width=576,
    inner=1536,
    heads=9,
    kv_heads=3,
    head_dim=64,
    windows=(None,) * 30,
    max_positions=8192,
    rotary=Rotary(base=1e5),
    norm_eps=1e-5,
    attention_scale=0.125,
)
T5_SMALL = T5Dimensions(
    architecture="t5",
    vocab_size=32128,
    width=512,
    inner=2048,
    heads=8,
    head_dim=64,
    encoder_layers=6,
    decoder_layers=6,
    logit_scale=512**-0.5,
)
