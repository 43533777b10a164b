"""Compare the conditional with two programs and with recomputing: the table in docs/conditional.md.

Whisper tiny.en in fp32, a recording's first window, one thread: the same greedy tokens from each
form, compiled by AOTInductor. Needs kvcast[export,demo] and transformers; takes a few minutes,
mostly to compile. Figures are medians of interleaved rounds, with minimum and maximum.

    python benchmarks/scripts/compare_conditional.py recording.ogg [--steps 64] [--rounds 7]
        [--kept FOLDER]
"""

import argparse
import math
import re
import statistics
import sys
import time
import zipfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

PROMPT = (50257, 50362)  # start of transcript, no timestamps
SOURCE, WIDTH, CAPACITY = 1500, 384, 448
FORMS = ("recompute", "conditional", "two programs")
Decode = Callable[[int, int], np.ndarray]


def demo() -> Any:
    """Return the packaged model as transformers' module."""
    from kit.in_transformers import demo_in_transformers
    from kvcast.checkpoints.source import locate, open_checkpoint

    return demo_in_transformers(open_checkpoint(locate("demo"))).float().eval()


class StaticCacheStep(nn.Module):
    """One token through transformers' decoder with its static self cache, as in its own export.

    As in transformers/integrations/executorch.py, every step recomputes cross keys and values,
    unless the model's cross-attention was replaced.
    """

    def __init__(self, model: Any, caches: Any = None) -> None:
        super().__init__()
        from transformers import StaticCache

        self.model, self.caches = model, caches
        config = model.config
        self.own = StaticCache(config=config, max_cache_len=CAPACITY)
        heads = config.decoder_attention_heads
        self.own.early_initialization(1, heads, WIDTH // heads, torch.float32, torch.device("cpu"))
        for index, layer in enumerate(self.own.layers):
            for name in ("keys", "values", "cumulative_length"):
                self.register_buffer(f"{name}_{index}", getattr(layer, name), persistent=False)

    def forward(self, tokens: Tensor, position: Tensor, states: Tensor, fresh: Tensor) -> Tensor:
        """Logits [1, vocabulary] of a token [1, 1] at a position [1] of its text."""
        from transformers import DynamicCache, EncoderDecoderCache

        for index, layer in enumerate(self.own.layers):
            for name in ("keys", "values", "cumulative_length"):
                setattr(layer, name, getattr(self, f"{name}_{index}"))  # as they are traced
            layer.cumulative_length.copy_(position[0])
        if self.caches is not None:
            self.caches.reset(fresh)
        hidden = self.model.model.decoder(
            input_ids=tokens,
            encoder_hidden_states=states,
            past_key_values=EncoderDecoderCache(self.own, DynamicCache()),
        )[0]
        return self.model.proj_out(hidden[:, -1])


def compile_step(form: str, path: Path) -> None:
    """Write one program of transformers' decoder."""
    from kvcast.conditional.cross_attention import use_cached_cross_attention

    model = demo()
    caches = use_cached_cross_attention(model) if form == "conditional" else None
    given = (
        torch.zeros(1, 1, dtype=torch.long),
        torch.zeros(1, dtype=torch.long),
        torch.zeros(1, SOURCE, WIDTH),
        torch.tensor(True),
    )
    with torch.no_grad():
        program = torch.export.export(StaticCacheStep(model, caches), given, strict=False)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def two_program_source() -> str:
    """Return the C++ of kvcast's `decode`, which bundles do not contain."""
    from kvcast.checkpoints.source import locate, open_checkpoint
    from kvcast.models.executor import TorchModel
    from kvcast.runtimes.aoti import lowering as aoti
    from kvcast.runtimes.aoti.inductor import compile_program
    from kvcast.runtimes.aoti.precision import Precision
    from kvcast.runtimes.lowering.torch_export import signatures_of

    checkpoint = open_checkpoint(locate("demo"))
    programs = TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    signature = signatures_of(programs)["decode"]
    traced = aoti.trace_program(signature, Precision())
    files, _ = compile_program(*aoti.export_program(traced, signature, Precision(), "decode"))
    return "".join(Path(file).read_text() for file in files if file.endswith(".wrapper.cpp"))


def wrapper_source(path: Path) -> str:
    """Return the C++ in a package."""
    with zipfile.ZipFile(path) as package:
        (name,) = (name for name in package.namelist() if name.endswith("wrapper.cpp"))
        return package.read(name).decode()


def count(source: str) -> tuple[int, int]:
    """Return a step's number of tensors of the size of a layer's keys, and of source projections.

    The computing branch is not part of a step. Dynamic sizes count as 1, like rows and tokens.
    """
    sizes = dict(re.findall(r"int64_t (int_array_\d+)\[\] = \{([^}]*)\}", source))
    body = source[source.index("::run_impl(") :]
    body = re.sub(r"// subgraph: false_graph_\d+\n.*?\n    \}", "", body, flags=re.DOTALL)

    def elements(name: str) -> int:
        return math.prod(int(size) for size in re.findall(r"(\d+)L", sizes.get(name, "")))

    made = [elements(name) for name in re.findall(r"empty_strided\w*\(\d+, (int_array_\d+),", body)]
    products = [line for line in body.splitlines() if "mm_out(" in line]
    weights = r"(?:encoder_attn_[kv]|cross_attention_key)\w*_weight"
    projected = [line for line in products if re.search(weights, line)]
    return sum(size >= SOURCE * WIDTH for size in made), len(projected)


def window(recording: Path) -> np.ndarray:
    """Return the first window of log-mel features, [1, 80, 3000]."""
    from kvcast.audio.features import open_features

    with open_features(recording, 80) as features:
        return features.first_window()[None]


def encoded(features: np.ndarray) -> Tensor:
    """Return the output of transformers' encoder for a window, [1, 1500, 384]."""
    with torch.no_grad():
        states: Tensor = demo().model.encoder(torch.from_numpy(features)).last_hidden_state
    return states


def opened(form: str, folder: Path, features: np.ndarray, states: Tensor) -> Decode:
    """Return a function that decodes a token at a position of a recording's text."""
    if form == "two programs":
        from kvcast.bundle.manifest import read_bundle
        from kvcast.runtimes.aoti.runtime import AotiEncoderDecoder

        runtime = AotiEncoderDecoder(folder / "bundle", read_bundle(folder / "bundle"), threads=1)
        caches = [runtime.encode(runtime.new_cache(1, CAPACITY, 1), [0], features)]

        def decode(token: int, position: int) -> np.ndarray:
            if position == 0:
                caches[0] = runtime.reset(caches[0], [0], [0])
            logits, caches[0] = runtime.decode(np.array([[token]]), caches[0])
            return logits[0, 0]

        return decode
    package = str(folder / f"{form}.pt2")
    program = torch._inductor.aoti_load_package(package, run_single_threaded=True)
    fresh, same = torch.tensor(True), torch.tensor(False)

    def decode_states(token: int, position: int) -> np.ndarray:
        given = torch.tensor([[token]]), torch.tensor([position]), states
        logits: np.ndarray = program(*given, same if position else fresh)[0].numpy()
        return logits

    return decode_states


def greedy(decode: Decode, steps: int) -> tuple[list[int], float]:
    """Return tokens, and the seconds per token after the prompt."""
    tokens = list(PROMPT)
    logits = [decode(token, position) for position, token in enumerate(tokens)][-1]
    begin = time.perf_counter()
    for _ in range(steps):
        tokens.append(int(logits.argmax()))
        logits = decode(tokens[-1], len(tokens) - 1)
    return tokens, (time.perf_counter() - begin) / steps


def taken(form: str, folder: Path, features: np.ndarray, states: np.ndarray) -> float:
    """Return the MB by which a process grows when it loads a form and decodes."""
    import kvcast.runtimes.aoti.runtime  # noqa: F401  what is imported is no part of it

    torch.set_num_threads(1)
    torch.nn.functional.linear(torch.zeros(9, 9), torch.zeros(9, 9))
    before = resident()
    decode = opened(form, folder, features, torch.from_numpy(states))
    greedy(decode, 8)
    return resident() - before


def resident() -> float:
    """Return this process's memory in MB."""
    (line,) = re.findall(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) / 1024


def main() -> None:
    """Parse arguments, run the comparison and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recording", type=Path)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kept", type=Path, help="a folder that keeps what was compiled")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as temporary:
        folder = asked.kept or Path(temporary)
        folder.mkdir(exist_ok=True)
        print_table(folder, asked)


def print_table(folder: Path, asked: argparse.Namespace) -> None:
    """Compile what has not been compiled yet, run all forms and print the table."""
    import kvcast

    for form in FORMS[:2]:
        if not (folder / f"{form}.pt2").exists():
            compile_step(form, folder / f"{form}.pt2")
    if not (folder / "bundle").exists():
        kvcast.export_bundle("demo", folder / "bundle", runtime="aoti")
    sources = {form: wrapper_source(folder / f"{form}.pt2") for form in FORMS[:2]}
    sources["two programs"] = two_program_source()
    counts = {form: count(source) for form, source in sources.items()}
    features = window(asked.recording)
    source = features, encoded(features)
    decoders = {form: opened(form, folder, *source) for form in FORMS}
    written = {form: greedy(decode, asked.steps)[0] for form, decode in decoders.items()}
    if len({tuple(tokens) for tokens in written.values()}) != 1:
        raise SystemExit("the forms wrote different tokens")
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    for _ in range(asked.rounds):
        for form, decode in decoders.items():
            seconds[form].append(greedy(decode, asked.steps)[1])
    given = folder, features, source[1].numpy()
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        memory = {form: pool.apply(taken, (form, *given)) for form in FORMS}
    print("| | recompute | conditional | two programs |\n| --- | --- | --- | --- |")
    rows = {
        "projections of the source per step": lambda form: str(counts[form][1]),
        "tensors of the size of a layer's keys per step": lambda form: str(counts[form][0]),
        "ms per token": lambda form: spread([1000 * each for each in seconds[form]]),
        "memory for loading and decoding, MB": lambda form: f"{memory[form]:.0f}",
    }
    for name, cell in rows.items():
        print(f"| {name} | " + " | ".join(cell(form) for form in FORMS) + " |")


def spread(values: list[float]) -> str:
    """Format median, minimum and maximum."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
