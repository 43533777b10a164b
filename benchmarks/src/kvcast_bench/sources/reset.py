"""Two clips, one after the other, through one exported decoder of Whisper tiny.en.

The published form has a flag that nothing resets, so a program that stays loaded answers the second
clip with the first one's keys. Real weights, greedy.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from kvcast.audio.features import window_features
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.conditional.cross_attention import fill, keep
from kvcast.families.table import family_with
from kvcast.loading.components import programs_of
from kvcast.models.executor import TorchModel, TorchProgram
from kvcast.models.ops.attention import cross_attention
from kvcast.whisper.tokenizer import open_tokenizer
from kvcast_bench.gpu import Conditional, WhisperAttention
from kvcast_bench.recompute.programs import STATES, encoded_states
from kvcast_bench.sources.figures import Figures
from kvcast_bench.sources.models import self_caches

RECORDING = Path(__file__).parents[4] / "examples" / "sense-and-sensibility.flac"
RATE = 16_000
CLIPS = ((0, 6), (12, 19))
"""Seconds of the recording."""
PROMPT, END, LONGEST = (50257, 50362), 50256, 40  # start of transcript, no timestamps


class Published(nn.Module):
    """kvcast's decoder with the published form of cross-attention: nothing resets the flag."""

    def __init__(self, model: TorchModel) -> None:
        super().__init__()
        self.decode, of = model["decode"], model.dimensions
        layers = range(of.decoder_layers)
        self.layers = nn.ModuleList(WhisperAttention(model, layer) for layer in layers)
        shape = (1, of.decoder_heads, of.source_positions, of.head_dim)
        for layer in layers:
            for name in ("keys", "values"):
                self.register_buffer(f"{name}_{layer}", torch.zeros(shape), persistent=False)
            filled = torch.zeros((), dtype=torch.bool)
            self.register_buffer(f"filled_{layer}", filled, persistent=False)

    @override
    def forward(self, *arguments: Tensor) -> Tensor:
        """Take the program's arguments, with states for cross caches; return the logits."""
        *given, states, _ = arguments
        layers = iter(range(len(self.layers)))

        def attend(query: Tensor, states: Tensor, _: Tensor, scale: float) -> Tensor:
            mixed: Tensor = cross_attention(query, *self._caches(next(layers), states), scale)
            return mixed

        sources = [states] * (2 * len(self.layers))
        logits: Tensor = self.decode.run([*given, *sources], cross_attention=attend)[0]
        return logits

    def _caches(self, layer: int, states: Tensor) -> tuple[Tensor, Tensor]:
        attention: Any = self.layers[layer]
        held = [getattr(self, f"{name}_{layer}") for name in ("keys", "values", "filled")]

        def read(keys: Tensor, values: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            return keep(keys), keep(values)

        def compute(keys: Tensor, values: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
            parts = (attention.k_proj(given), attention.v_proj(given))
            key, value = (
                part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for part in parts
            )
            return fill(keys, key), fill(values, value)

        caches: tuple[Tensor, Tensor] = torch.cond(held[2], read, compute, (*held[:2], states))
        held[2].fill_(True)
        return caches


class WithReset(nn.Module):
    def __init__(self, model: TorchModel) -> None:
        super().__init__()
        self.decoder = Conditional(model, model.dimensions.source_positions)

    @override
    def forward(self, *arguments: Tensor) -> Tensor:
        *given, fresh = arguments
        for layer in self.decoder.layers:
            layer.reset(fresh)  # type: ignore[operator]
        logits: Tensor = self.decoder(*given)[0]
        return logits


@cache
def demo() -> tuple[TorchModel, Any]:
    """Return tiny.en and its tokenizer."""
    checkpoint = open_checkpoint(locate("demo"))
    return programs_of(checkpoint), open_tokenizer(checkpoint.text, checkpoint.dimensions)


@torch.no_grad()
def states_of(model: TorchModel) -> list[Tensor]:
    """Return the encoder's output for each clip, [1, 1500, 384]."""
    import soundfile

    of = model.dimensions
    samples, _ = soundfile.read(RECORDING, dtype="float32")
    encode = TorchProgram(
        encoded_states(family_with(of).write_programs(of)["encode"]), [STATES], model.weights
    )
    clips = (samples[first * RATE : last * RATE] for first, last in CLIPS)
    features = (window_features(clip, of.n_mels)[None] for clip in clips)
    return [encode(torch.from_numpy(each))[0] for each in features]


@torch.no_grad()
def exported(form: type[nn.Module], model: TorchModel, states: Tensor) -> Callable[..., Tensor]:
    """Return the program that torch.export makes of a form, with separate self-attention caches."""
    caches = self_caches(model, len(PROMPT) + LONGEST)
    module = form(model).eval()

    def arguments(token: int, position: int, states: Tensor) -> tuple[Tensor, ...]:
        length = torch.tensor([position], dtype=torch.int32)
        given = torch.tensor([[token]]), length, torch.zeros(1, dtype=torch.int64)
        return *given, *caches, states, torch.tensor(position == 0)

    with warnings.catch_warnings(action="ignore"):  # torch's internal ones
        program = torch.export.export(module, arguments(0, 0, states), strict=False).module()
    return lambda *given: program(*arguments(*given))


@torch.no_grad()
def text(step: Callable[..., Tensor], states: Tensor) -> list[int]:
    """Return the tokens of greedy decoding for a source."""
    tokens = list(PROMPT)
    logits = [step(token, position, states) for position, token in enumerate(tokens)][-1]
    while len(tokens) < len(PROMPT) + LONGEST - 1 and (token := int(logits.argmax())) != END:
        tokens.append(token)
        logits = step(token, len(tokens) - 1, states)
    return tokens[len(PROMPT) :]


def texts() -> dict[str, list[str]]:
    """Return each program's texts for the clips in turn, and the texts of fresh programs."""
    model, tokenizer = demo()
    clips = states_of(model)
    made: dict[str, list[list[int]]] = {
        "a program for each clip": [text(exported(Published, model, each), each) for each in clips]
    }
    for name, form in (("without a reset", Published), ("with a reset", WithReset)):
        step = exported(form, model, clips[0])
        made[f"one program {name}"] = [text(step, each) for each in clips]
    return {
        name: [tokenizer.decode(tokens).strip() for tokens in each] for name, each in made.items()
    }


def measure() -> Sequence[Figures]:
    return [
        Figures(
            head=["", "clip 1", "then clip 2"],
            rows=[[name, *each] for name, each in texts().items()],
            note="Whisper tiny.en, fp32, exported by torch.export, greedy; two clips of "
            "`examples/sense-and-sensibility.flac`, of 6 and 7 seconds.",
        )
    ]
