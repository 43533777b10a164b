"""Every form of every model, in turns, to the JSON object that docs/bench-gpu.md describes."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._inductor import select_algorithm

from kvcast.bench.command import say
from kvcast.bench.contender import installed_versions
from kvcast.bench.device.clock import COPIED, memory_rates, seconds_of
from kvcast.bench.device.facts import device_facts
from kvcast.bench.device.forms import Compile, Steps, Writer, ways
from kvcast.bench.device.subjects import (
    MISTRAL_7B,
    TURBO,
    Subject,
    decoder_subject,
    whisper_subject,
)
from kvcast.bench.figures import absent_facts, summary
from kvcast.bench.machine import machine_facts
from kvcast.errors import KvcastError, UsageError

FORMAT = "kvcast.bench.gpu"
VERSION = 1
NUMBERS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model that can be measured.

    Attributes:
        make: its subject, from prompt, numbers and device.
        positions: most tokens of a text.
        prompt: tokens before the first step.
        new: steps of a run.

    """

    make: Callable[[int, torch.dtype, str], Subject]
    positions: int
    prompt: int
    new: int

    def check(self, name: str) -> None:
        """Raise UsageError where the text would be too long for the model."""
        if self.prompt + self.new > self.positions:
            raise UsageError(
                f"{self.prompt} + {self.new} tokens are more than the {self.positions} of {name}: "
                "lower --prompt or --new"
            )


MODELS: Mapping[str, Entry] = {
    "whisper-large-v3-turbo": Entry(
        make=partial(whisper_subject, "whisper-large-v3-turbo", TURBO),
        positions=TURBO.target_positions,
        prompt=4,
        new=200,
    ),
    "mistral-7b": Entry(
        make=partial(decoder_subject, "mistral-7b", MISTRAL_7B),
        positions=MISTRAL_7B.max_positions,
        prompt=512,
        new=128,
    ),
}


def measure(
    entries: Mapping[str, Entry],
    device: str,
    compile_step: Compile,
    *,
    dtype: str,
    runs: int,
    copied: int = COPIED,
) -> dict[str, Any]:
    """Return the object, of numbers, strings, lists and objects alone.

    Args:
        entries: what to measure, by name.
        device: "cuda" or, for tests, "cpu".
        compile_step: makes kernels of a step.
        dtype: one of NUMBERS, of weights and caches.
        runs: after one to warm up.
        copied: bytes to measure the memory's rate with.

    Raises:
        KvcastError: a model that the device has no room for.

    """
    rates = [memory_rates(device, copied)]
    found = []
    for name, entry in entries.items():
        say(f"{name}: random weights")
        with _room_for(name), _quiet(), torch.no_grad():
            subject = entry.make(entry.prompt, NUMBERS[dtype], device)
            found.append(_model(subject, entry, compile_step, device, runs))
            del subject
    rates.append(memory_rates(device, copied))
    best = {name: max(measured[name] for measured in rates) for name in rates[0]}
    return {
        "format": FORMAT,
        "version": VERSION,
        "settings": {"dtype": dtype, "batch": 1, "runs": runs, "warm_up": 1, "decoding": "greedy"},
        "machine": machine_facts(),
        "device": device_facts(device),
        "versions": installed_versions(("torch",)),
        "rates": best,
        "models": [_held(model, max(best.values())) for model in found],
    }


def _model(
    subject: Subject, entry: Entry, compile_step: Compile, device: str, runs: int
) -> dict[str, Any]:
    writers: dict[str, Writer] = {}
    steps = Steps(compile_step)
    forms, absent = ways(subject)
    for name, way in forms.items():
        say(f"{subject.name}: compiling {name}")
        writers[name] = Writer(subject, way, steps)
        writers[name].prepare(entry.new)
    seconds: dict[str, list[float]] = {name: [] for name in writers}
    for turn in range(1 + runs):
        say(f"{subject.name}: run {turn} of {runs}")
        for name, writer in writers.items():
            writer.begin()
            took = seconds_of(lambda writer=writer: writer.write(entry.new), device)  # type: ignore[misc]
            if turn:
                seconds[name].append(took / entry.new)
    tokens = {name: writer.tokens(entry.new) for name, writer in writers.items()}
    held = range(entry.prompt + 1, entry.prompt + entry.new + 1)
    return {
        "name": subject.name,
        "dimensions": dict(subject.dimensions),
        "prompt": entry.prompt,
        "new": entry.new,
        "step_bytes": sum(map(subject.step_bytes, held)) / entry.new,
        "forms": [
            {
                "name": name,
                "step_seconds": summary(seconds[name]),
                "agreeing": _agreeing(tokens[name], tokens["programs"]),
            }
            for name in writers
        ],
        "absent": absent_facts(absent),
    }


def _held(model: Mapping[str, Any], rate: float) -> dict[str, Any]:
    """Add what a form could do at most, and what it does of it."""
    least = model["step_bytes"] / rate
    forms = []
    for form in model["forms"]:
        step = form["step_seconds"]["median"]
        forms.append({**form, "tokens_per_second": 1 / step, "fraction": least / step})
    return {**model, "floor_seconds": least, "forms": forms}


def _agreeing(tokens: Sequence[int], others: Sequence[int]) -> int:
    """Count the tokens before the first that differs."""
    pairs = zip(tokens, others, strict=True)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), len(tokens))


@contextmanager
def _room_for(name: str) -> Iterator[None]:
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise KvcastError(
            f"{name} needs more memory than the device has free; name another with --model"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep notes for torch's own developers from a user's terminal."""
    printed = select_algorithm.PRINT_AUTOTUNE
    select_algorithm.PRINT_AUTOTUNE = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        select_algorithm.PRINT_AUTOTUNE = printed
