"""Tiny encoder-decoder models of transformers with random weights, and decoding with them."""

import torch
import transformers
from torch import Tensor, nn

# 13 and 14, the places for it, are sizes of nothing else.
ROWS, SOURCE, TARGET, VOCABULARY, WIDTH = 3, 13, 17, 50, 16
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
LAYERS = {
    "d_model": WIDTH,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "vocab_size": VOCABULARY,
    **SPECIAL,
}


def whisper():
    config = transformers.WhisperConfig(
        num_mel_bins=8, max_source_positions=SOURCE, max_target_positions=TARGET, **LAYERS
    )
    return transformers.WhisperForConditionalGeneration(config)


def t5():
    config = transformers.T5Config(
        d_model=WIDTH,
        d_kv=6,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        n_positions=SOURCE,
        vocab_size=VOCABULARY,
        **SPECIAL,
    )
    return transformers.T5ForConditionalGeneration(config)


def bart():
    config = transformers.BartConfig(max_position_embeddings=TARGET, **LAYERS)
    return transformers.BartForConditionalGeneration(config)


def marian():
    config = transformers.MarianConfig(max_position_embeddings=TARGET, **LAYERS)
    return transformers.MarianMTModel(config)


MODELS = {"whisper": whisper, "t5": t5, "bart": bart, "marian": marian}


class Decoder(nn.Module):
    """The module to export: the model's decoder, with the reset as one of its inputs."""

    def __init__(self, model, caches=None):
        super().__init__()
        self.model = model
        self.caches = caches

    def forward(self, tokens: Tensor, states: Tensor, fresh: Tensor) -> Tensor:
        if self.caches is not None:
            self.caches.reset(fresh)
        return self.model(
            encoder_outputs=(states,), decoder_input_ids=tokens, use_cache=False
        ).logits


def random_model(name):
    """In evaluation mode, with weights so large that attending to other keys shows."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for parameter in model.parameters():
        parameter.data.mul_(4)
    return model


FRESH, SAME = torch.tensor(True), torch.tensor(False)


def sources(rows=ROWS, positions=SOURCE):
    """Two encoder's outputs."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, positions, WIDTH, generator=generator) for _ in range(2)]


def steps(rows=ROWS):
    """Target prefixes of a decode: the source is fresh at the first."""
    tokens = torch.randint(3, VOCABULARY, (rows, 7), generator=torch.Generator().manual_seed(2))
    return [tokens[:, :count].contiguous() for count in (2, 3, 7)]


def assert_as_stock(run, stock, given):
    """Check that `run` gives the unmodified model's logits, for one source and then another."""
    reference = Decoder(stock)
    for source in given:
        for index, prefix in enumerate(steps(source.shape[0])):
            logits = run(prefix, source, SAME if index else FRESH)
            expected = reference(prefix, source, FRESH)
            torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
