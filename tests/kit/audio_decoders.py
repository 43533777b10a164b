"""Tiny random audio decoders of transformers, saved with a tokenizer."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import (
    GraniteSpeechConfig,
    GraniteSpeechForConditionalGeneration,
    Qwen3ASRConfig,
    Qwen3ASRForConditionalGeneration,
    VoxtralConfig,
    VoxtralForConditionalGeneration,
    VoxtralRealtimeConfig,
    VoxtralRealtimeForConditionalGeneration,
)
from transformers.audio_utils import mel_filter_bank
from transformers.models.granite_speech import feature_extraction_granite_speech
from transformers.models.granite_speech.feature_extraction_granite_speech import (
    GraniteSpeechFeatureExtractor,
)

from kit.small_tokenizers import byte_level

VOCAB = 520
SOUND = 510  # the placeholder of an audio position, which no text has
_SPECIAL = [
    *("<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>"),
    *("[INST]", "[/INST]", "[BEGIN_AUDIO]", "[TRANSCRIBE]", "<|audio|>", "<|role|>"),
    *("[STREAMING_PAD]", "[STREAMING_WORD]"),
]
TEMPLATE = (
    "{% for message in messages %}<|role|>{{ message.role }}: {{ message.content }}<|im_end|>\n"
    "{% endfor %}<|role|>assistant:"
)
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
}
AUDIO: dict[str, dict[str, Any]] = {
    "qwen3_asr": {
        "num_mel_bins": 32,
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 40,
        "downsample_hidden_size": 6,
        "n_window_infer": 800,
        "output_dim": 48,
    },
    "granite_speech": {
        "input_dim": 32,
        "num_layers": 2,
        "hidden_dim": 32,
        "feedforward_mult": 2,
        "num_heads": 2,
        "output_dim": 10,
        "context_size": 40,
        "max_pos_emb": 50,
        "conv_kernel_size": 7,
    },
    "voxtral_realtime": {
        "num_mel_bins": 32,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 16,
        "sliding_window": 50,
    },
    "voxtral": {
        "num_mel_bins": 32,
        "hidden_size": 16,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    },
}


PROJECTOR = {
    "model_type": "blip_2_qformer",
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "encoder_hidden_size": 32,
}
FACTORS = {
    "embedding_multiplier": 0.8,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.3,
    "logits_scaling": 0.6,
}


def random_granite_speech(
    seed: int = 3, text: Any = None, projector: Any = None, outer: Any = None, **audio: Any
) -> Any:
    """Return a Granite Speech without an adapter; arguments change sizes."""
    torch.manual_seed(seed)
    end = ids()["<|im_end|>"]
    given = {**TEXT, **FACTORS, "model_type": "granite", "eos_token_id": end, "pad_token_id": end}
    config = GraniteSpeechConfig(
        text_config={**given, **(text or {})},
        encoder_config={**AUDIO["granite_speech"], **audio},
        projector_config={**PROJECTOR, **(projector or {})},
        **{
            "audio_token_index": SOUND,
            "has_lora_adapter": False,
            "tie_word_embeddings": False,
            **(outer or {}),
        },
    )
    model: Any = GraniteSpeechForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _vary(name, parameter)
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
        model.get_input_embeddings().weight.normal_(0, 1)
    return model.eval()


def random_voxtral_realtime(
    seed: int = 3, text: Any = None, outer: Any = None, **audio: Any
) -> Any:
    """Return a Voxtral Realtime whose decoder's window is shorter than its prompt."""
    torch.manual_seed(seed)
    end = ids()["<|im_end|>"]
    given = {**TEXT, "eos_token_id": end, "pad_token_id": end, "sliding_window": 30}
    config = VoxtralRealtimeConfig(
        text_config={"model_type": "voxtral_realtime_text", **given, **(text or {})},
        audio_config={**AUDIO["voxtral_realtime"], **audio},
        eos_token_id=end,
        **{"tie_word_embeddings": False, **(outer or {})},
    )
    model: Any = VoxtralRealtimeForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _vary("norm" if name.endswith("norm.weight") else name.replace("norm", ""), parameter)
        spread = 0.3 if config.tie_word_embeddings else 1  # of logits, too
        model.get_input_embeddings().weight.normal_(0, spread)
    return model.eval()


def _vary(name: str, parameter: torch.Tensor) -> None:
    if "norm" in name or "Norm" in name:
        parameter.normal_(1, 0.2)
    elif "embed_positions" not in name:
        inputs = parameter[0].numel() if parameter.ndim > 1 else 100
        parameter.normal_(0, 1.5 / inputs**0.5)


def random_audio_decoder(
    kind: str, seed: int = 3, text: Any = None, *, tied: bool = False, **audio: Any
) -> Any:
    """Return a model whose texts depend on the audio and end; `text` and `audio` change sizes."""
    torch.manual_seed(seed)
    end = ids()["<|im_end|>"]
    common = {
        "audio_config": {**AUDIO[kind], **audio},
        "text_config": {**TEXT, "eos_token_id": end, "pad_token_id": end, **(text or {})},
        "audio_token_id": SOUND,
        "tie_word_embeddings": tied,
    }
    if kind == "voxtral":
        model: Any = VoxtralForConditionalGeneration(VoxtralConfig(**common))
    else:
        config = Qwen3ASRConfig(**common, eos_token_id=[ids()["</s>"], end], pad_token_id=end)
        model = Qwen3ASRForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _vary(name, parameter)
        model.get_input_embeddings().weight.normal_(0, 1)
    return model.eval()


def granite_features(samples: Any, n_mels: int) -> torch.Tensor:
    """Return Granite Speech's features, [1, frames, 2 * n_mels], without torchaudio."""
    filters = mel_filter_bank(257, n_mels, 0.0, 8000.0, 16_000, norm=None, mel_scale="htk")

    def spectrogram(waves: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(400)
        spectrum = torch.stft(waves, 512, 160, 400, window, return_complex=True)
        return torch.from_numpy(filters).float().T @ spectrum.abs().square()

    extractor: Any = object.__new__(GraniteSpeechFeatureExtractor)
    extractor.mel_filters = spectrogram
    with patch.object(feature_extraction_granite_speech, "requires_backends"):
        features: torch.Tensor = extractor._extract_mel_spectrograms(
            torch.from_numpy(samples)[None], device=None
        )
    return features


def save_audio_decoder(model: Any, folder: Path) -> Path:
    """Save a whole Hugging Face folder."""
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def tokenizer_json() -> dict[str, Any]:
    """Return a byte-level tokenizer with the special tokens of both, and no token before texts."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.add_tokens(["<asr_text>"])
    description: dict[str, Any] = json.loads(tokenizer.to_str())
    description["post_processor"] = None
    return description


def ids() -> dict[str, int]:
    """Return the ids of added tokens."""
    return {token["content"]: token["id"] for token in tokenizer_json()["added_tokens"]}
