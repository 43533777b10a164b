"""Dimensions for tests: of small models of each family, of the smallest, and of published ones.

Tests vary them with `dataclasses.replace`. Needs no torch.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcast.families.alternating import Alternating
from kvcast.families.audio_decoder import AudioDecoderDimensions
from kvcast.families.audio_encoder import WhisperEncoder
from kvcast.families.bart import BartDimensions
from kvcast.families.block_conformer import BlockConformer, QueryFormer
from kvcast.families.canary import CanaryDimensions
from kvcast.families.causal_encoder import CausalEncoder
from kvcast.families.conformer import Conformer
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.feed_forwards import Routing
from kvcast.families.gemma_stack import GemmaStack
from kvcast.families.latents import Indexer, Latents
from kvcast.families.mixers import DeltaNet, StateSpace
from kvcast.families.moonshine import MoonshineDimensions
from kvcast.families.parakeet import ParakeetDimensions
from kvcast.families.t5 import T5Dimensions
from kvcast.families.t5gemma import T5GemmaDimensions
from kvcast.families.unilm import UnilmDimensions
from kvcast.families.whisper import WhisperDimensions
from kvcast.spec.position_encodings import Rotary

SMALL = WhisperDimensions(
    n_mels=80,
    vocab_size=300,
    d_model=64,
    encoder_layers=1,
    encoder_heads=4,
    decoder_layers=2,
    decoder_heads=4,
    source_positions=25,
    target_positions=32,
    # Of two layers, and not in their order.
    alignment_heads=((1, 3), (0, 1), (1, 0)),
)
# For compilers, which take longer with each layer; has words enough for quantising to show.
SHALLOW = replace(SMALL, vocab_size=2000, decoder_layers=1, alignment_heads=((0, 2), (0, 0)))

# Sizes that all quantisation schemes support.
SMALL_T5 = T5Dimensions(
    architecture="t5",
    vocab_size=320,
    width=64,
    inner=128,
    heads=4,
    head_dim=16,
    encoder_layers=1,
    decoder_layers=2,
    buckets=8,
    max_distance=12,
    gated=True,
    activation="gelu_tanh",
    tied=False,
    target_positions=32,
)
# bert4keras's: a bias in cross-attention too, and a head that is the embedding.
CROSS_BIASED_T5 = replace(
    SMALL_T5, cross_bias=True, gated=False, activation="relu", tied=True, logit_scale=0.5
)

CONFORMER = Conformer(
    n_mels=16, width=32, inner=48, heads=4, layers=1, kernel=5, channels=8, halvings=2, positions=30
)
CANARY = CanaryDimensions(
    architecture="canary",
    encoder=CONFORMER,
    vocab_size=300,
    width=64,
    inner=96,
    decoder_heads=4,
    decoder_layers=2,
    target_positions=32,
    before=(7,),
    projected=True,
)
CTC = ParakeetDimensions(
    architecture="parakeet_ctc", encoder=CONFORMER, tokens=300, blank=299, width=32, vocab_size=300
)
TDT = replace(
    CTC,
    architecture="parakeet_tdt",
    width=24,
    vocab_size=303,
    prediction_layers=2,
    durations=(0, 1, 2),
)
PARAKEETS = (CTC, TDT)

MARIAN = BartDimensions(
    architecture="marian",
    vocab_size=320,
    width=64,
    encoder_inner=96,
    decoder_inner=128,
    encoder_heads=2,
    decoder_heads=4,
    encoder_layers=1,
    decoder_layers=2,
    source_positions=48,
    target_positions=32,
    start_token=3,
    activation="silu",
    embedding_scale=8.0,
    head_bias=True,
)
# Firefox's, whose decoder has states in place of self-attention.
BERGAMOT = replace(
    MARIAN,
    architecture="bergamot",
    activation="relu",
    zero_start=True,
    recurrent=True,
    norm_eps=0.01,
)
NLLB = replace(
    MARIAN,
    architecture="nllb",
    source_vocab_size=330,
    activation="relu",
    norm_first=True,
    embedding_norm=True,
    final_norm=True,
    embedding_scale=1.0,
    tied=False,
    head_bias=False,
)

T5GEMMA_DECODER = GemmaStack(
    width=64,
    inner=96,
    heads=4,
    kv_heads=2,
    head_dim=16,
    windows=(5, None),
    positions=64,
    rotary=Rotary(base=100.0),
    norm_eps=1e-5,
    activation="gelu_tanh",
    attention_scale=0.3,
    attention_softcap=5.0,
)
T5GEMMA = T5GemmaDimensions(
    architecture="t5gemma",
    vocab_size=160,
    source_vocab_size=170,
    encoder=replace(T5GEMMA_DECODER, width=48, heads=2, kv_heads=1, windows=(7,)),
    decoder=T5GEMMA_DECODER,
    start_token=2,
    logit_softcap=20.0,
)
T5GEMMA2_DECODER = replace(
    T5GEMMA_DECODER, window_rotary=Rotary(base=30.0), attention_softcap=0.0, query_key_norm=True
)
T5GEMMA2 = replace(
    T5GEMMA,
    architecture="t5gemma2",
    source_vocab_size=160,
    encoder=replace(T5GEMMA2_DECODER, heads=2, kv_heads=1, windows=(None, 6)),
    decoder=T5GEMMA2_DECODER,
    merged=True,
    one_embedding=True,
    eoi_token=9,
)
MOONSHINE = MoonshineDimensions(
    vocab_size=320,
    width=64,
    inner=96,
    heads=4,
    head_dim=16,
    decoder_layers=2,
    encoder_width=64,
    encoder_inner=96,
    encoder_heads=4,
    encoder_head_dim=16,
    encoder_layers=1,
    rotary=Rotary(base=10000.0, partial=0.75),
    start_token=3,
    source_positions=1248,
    target_positions=32,
)
MOONSHINE_STREAMING = replace(
    MOONSHINE,
    encoder_width=48,
    encoder_layers=3,
    tied=False,
    frame=80,
    windows=((4, 2), (3, 0), (2, 3)),
)

LLAMA = DecoderDimensions(
    architecture="llama",
    vocab_size=160,
    width=64,
    inner=96,
    heads=4,
    kv_heads=2,
    head_dim=16,
    windows=(None, None),
    max_positions=4096,
    rotary=Rotary(base=10000.0),
    norm_eps=1e-5,
    attention_scale=16**-0.5,
)
MISTRAL = replace(LLAMA, architecture="mistral", windows=(7, 7), tied=False)
QWEN2 = replace(LLAMA, architecture="qwen2", qkv_bias=True)
QWEN3 = replace(LLAMA, architecture="qwen3", query_key_norm=True)
MINISTRAL3 = replace(
    LLAMA,
    architecture="ministral3",
    rotary=Rotary(
        base=10000.0,
        scaling="yarn",
        factor=4.0,
        high_frequency=32.0,
        trained_positions=6,
        partial=0.75,
        query_beta=0.5,
    ),
)
GEMMA3 = replace(
    LLAMA,
    architecture="gemma3_text",
    windows=(5, None, 5),
    window_rotary=Rotary(base=100.0),
    activation="gelu_tanh",
    query_key_norm=True,
    post_norms=True,
    embedding_scale=8.0,
    attention_softcap=5.0,
    logit_softcap=20.0,
)
MIXTRAL = replace(MISTRAL, architecture="mixtral", experts=4, experts_per_token=2)
QWEN2_MOE = replace(
    QWEN2,
    architecture="qwen2_moe",
    inner=32,
    experts=4,
    experts_per_token=2,
    experts_normalised=False,
    shared_inner=64,
    dense_layers=(0,),
    dense_inner=96,
)
DOTS1 = replace(
    QWEN2_MOE,
    architecture="dots1",
    experts_normalised=True,
    shared_gated=False,
    routing=Routing(
        score="sigmoid", bias=True, groups=2, groups_per_token=1, epsilon=1e-20, scale=2.5
    ),
)
GPT_OSS = replace(
    MIXTRAL,
    architecture="gpt_oss",
    windows=(7, None),
    qkv_bias=True,
    out_bias=True,
    sinks=True,
    expert_bias=True,
    swiglu_alpha=1.702,
    swiglu_limit=0.5,
)
# All components that a layer may have, in as few models as possible.
COHERE2 = replace(
    LLAMA,
    architecture="cohere2",
    windows=(5, None),
    rotary=None,
    window_rotary=Rotary(base=100.0),
    norm="layer",
    parallel=True,
    shared_norm=True,
    logit_scale=0.5,
)
NEOX = replace(
    LLAMA,
    architecture="gpt_neox",
    kv_heads=4,
    learned_positions=True,
    rotary=Rotary(base=10000.0, partial=0.5),
    norm="layer",
    norm_bias=True,
    query_key_norm=True,
    activation="gelu",
    gated=False,
    qkv_bias=True,
    out_bias=True,
    feed_forward_bias=True,
    head_bias=True,
    parallel=True,
    tied=False,
)
OLMO2 = replace(
    LLAMA,
    architecture="olmo2",
    unrotated=(1,),
    query_key_norm=True,
    whole_query_key_norm=True,
    pre_norms=False,
    post_norms=True,
    feed_forward_bias=True,
    activation="relu",
)
BLOCKS = (COHERE2, NEOX, OLMO2)
DECODERS = (LLAMA, MISTRAL, QWEN2, QWEN3, MINISTRAL3, QWEN2_MOE, GPT_OSS, GEMMA3, MIXTRAL)
# Not on every runtime.
LFM2 = replace(
    QWEN3,
    architecture="lfm2",
    windows=(None,) * 3,
    mixers=("convolution", "attention", "convolution"),
    convolution=4,
    convolution_bias=True,
)
QWEN3_5 = replace(
    QWEN3,
    architecture="qwen3_5_text",
    windows=(None,) * 3,
    mixers=("delta", "attention", "delta"),
    delta=DeltaNet(key_heads=2, value_heads=4, key_dim=8, value_dim=40, convolution=4),
    attention_gate=True,
)
GRANITE4 = replace(
    MIXTRAL,
    architecture="granitemoehybrid",
    windows=(None,) * 3,
    mixers=("state_space", "attention", "state_space"),
    state_space=StateSpace(
        key_heads=2, value_heads=4, key_dim=8, value_dim=40, convolution=4, norm_eps=1e-5, bias=True
    ),
    rotary=None,
    shared_inner=24,
    shared_gated=False,
)
YOUTU = replace(
    LLAMA,
    architecture="youtu",
    kv_heads=4,
    head_dim=24,
    attention_scale=24**-0.5,
    latents=Latents(
        rank=48,
        query_rank=40,
        plain_dim=16,
        rotated_dim=8,
        value_dim=20,
        norm_eps=1e-6,
        bias=True,
    ),
    out_bias=True,
)
_SIZES = YOUTU.latents
assert _SIZES is not None
# An indexer, and what Mistral Large 4 has: layer 1 has no cache, layer 3 only that of its index.
DSA = replace(
    YOUTU,
    architecture="mistral_large4",
    windows=(None,) * 4,
    rotary=replace(YOUTU.rotary, learned=True),
    unrotated=(2,),
    latents=replace(
        _SIZES,
        indexer=Indexer(heads=3, dim=12, count=6, followers=(1,)),
        sources=(0, 0, 2, 0),
        scaled_queries=True,
    ),
)
FALCON_H1 = replace(
    LLAMA,
    architecture="falcon_h1",
    windows=(None,) * 4,
    mixers=("attention", "state_space") * 2,
    without_feed_forward=(0, 2),
    beside=(1, 3),
    state_space=replace(GRANITE4.state_space, norm="before"),
)
KIMI = replace(
    YOUTU,
    architecture="bailing_hybrid",
    windows=(None,) * 3,
    mixers=("delta", "attention", "delta"),
    latents=replace(_SIZES, query_rank=0, head_gate=True),
    delta=DeltaNet(
        key_heads=2,
        value_heads=2,
        key_dim=8,
        value_dim=40,
        convolution=4,
        by_channel=True,
        rank=12,
        gate="sigmoid",
    ),
    rotary=None,
)

GEMMA4 = replace(
    GEMMA3,
    architecture="gemma4_text",
    windows=(5, None, 5, None, 5),
    rotary=Rotary(base=10000.0, scaling="proportional", partial=0.5),
    layer_head_dims=(16, 32, 16, 32, 16),
    layer_kv_heads=(2, 1, 2, 1, 2),
    layer_inners=(96, 96, 96, 128, 128),
    sources=(0, 1, 2, 1, 2),
    keys_as_values=(1,),
    value_norm=True,
    layer_embedding=8,
    layer_scales=True,
)
GEMMA3N = replace(
    GEMMA4,
    architecture="gemma3n_text",
    rotary=Rotary(base=10000.0),
    layer_head_dims=(),
    layer_kv_heads=(),
    layer_inners=(96, 64, 96, 64, 96),
    keys_as_values=(),
    layer_scales=False,
    layer_vocabulary=100,
    sparsities=(0.75, 0.0, 0.0, 0.5, 0.0),
    alternating=Alternating(streams=3, active=1, scaled=True, rank=8),
)
GEMMA4_EXPERTS = replace(
    GEMMA3,
    architecture="gemma4_text",
    value_norm=True,
    layer_scales=True,
    experts=4,
    experts_per_token=2,
    expert_inner=32,
)

ROFORMER = UnilmDimensions(
    architecture="roformer",
    vocab_size=160,
    segments=2,
    width=64,
    embedding_width=64,
    inner=96,
    heads=4,
    layers=2,
    max_positions=128,
    rotary=Rotary(base=10000.0),
    pooled=True,
)
SMALL_ROFORMER = replace(
    ROFORMER, architecture="small roformer", embedding_width=32, pooled=False, activation="relu"
)
SIMBERT = replace(ROFORMER, architecture="simbert", rotary=None, activation="gelu_tanh")
UNILMS = (ROFORMER, SMALL_ROFORMER, SIMBERT)

# Small enough for ExecuTorch, which takes seconds to lower one. MIXED has a ring and a linear cache
# side by side, and the vocabulary of `kit.letters`.
MIXED = replace(MISTRAL, windows=(7, None), vocab_size=32)
EXECUTORCH: Mapping[str, Any] = {
    "whisper": SHALLOW,
    # Several layers of cross-attention caches; no checkpoint has a gate and a cross bias.
    "t5": replace(CROSS_BIASED_T5, heads=2, activation="gelu_tanh", gated=True),
    "decoder": MIXED,
    "unilm": replace(ROFORMER, layers=1),
}

# One layer and one head, for models whose runtime is a script; only vocabulary and positions count.
_LEAST = {"architecture": "fake", "width": 8, "inner": 8, "heads": 1, "head_dim": 8}
LEAST_WHISPER = replace(
    SMALL,
    d_model=8,
    encoder_heads=1,
    decoder_layers=1,
    decoder_heads=1,
    source_positions=1500,
    target_positions=448,
    alignment_heads=(),
)
LEAST_T5 = T5Dimensions(
    **_LEAST, vocab_size=SMALL_T5.vocab_size, encoder_layers=1, decoder_layers=1
)
LEAST_DECODER = replace(LLAMA, **_LEAST, kv_heads=1, windows=(None,), attention_scale=1.0)

# Published, for counts that are worked out by hand.
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

QWEN3_ASR = AudioDecoderDimensions(
    architecture="qwen3_asr",
    vocab_size=320,
    width=64,
    inner=96,
    heads=4,
    kv_heads=2,
    head_dim=16,
    windows=(None, None),
    max_positions=128,
    rotary=Rotary(base=1e6),
    norm_eps=1e-6,
    attention_scale=0.25,
    query_key_norm=True,
    audio=WhisperEncoder(
        n_mels=32,
        width=64,
        inner=96,
        heads=4,
        layers=1,
        chunk=100,
        channels=8,
        window=200,
        projected=64,
        projector_bias=True,
        output=64,
    ),
)
VOXTRAL = replace(
    QWEN3_ASR,
    architecture="voxtral",
    query_key_norm=False,
    tied=False,
    audio=WhisperEncoder(
        n_mels=32, width=32, inner=128, heads=2, layers=1, joined=4, projected=64, output=64
    ),
)
GRANITE_SPEECH = replace(
    QWEN3_ASR,
    architecture="granite_speech",
    query_key_norm=False,
    embedding_scale=2.0,
    audio=BlockConformer(
        n_mels=32,
        width=32,
        inner=64,
        heads=2,
        head_dim=16,
        layers=2,
        kernel=5,
        channels=48,
        block=30,
        characters=10,
        window=15,
        queries=3,
        projector=QueryFormer(width=32, inner=48, heads=2, layers=2, crossing=2, epsilon=1e-12),
        output=64,
    ),
)
VOXTRAL_REALTIME = replace(
    QWEN3_ASR,
    architecture="voxtral_realtime",
    query_key_norm=False,
    windows=(9, 9),
    audio=CausalEncoder(
        n_mels=32,
        width=32,
        inner=48,
        heads=2,
        head_dim=16,
        layers=2,
        window=12,
        rotary=Rotary(base=1e4),
        epsilon=1e-5,
        output=64,
    ),
)
