"""A tiny T5 for benchmarks, and what its contenders are given."""

from pathlib import Path

from kvcast.bench.sources.peers.base import Task
from kvcast.spec.t5 import T5Dimensions

TINY = T5Dimensions(
    architecture="t5",
    vocab_size=64,
    width=32,
    inner=48,
    heads=4,
    head_dim=8,
    encoder_layers=1,
    decoder_layers=2,
    logit_scale=32**-0.5,
)


def task(folder: Path) -> Task:
    return Task(folder=str(folder), threads=1, vocab_size=TINY.vocab_size)
