"""A process that opens one model, answers once and ends: `python -m kvcast_bench.fresh JSON`.

Writes a line when the model is ready, and another, with the answer and the memory, when it has
answered; the parent reads the clock. Imports the standard library and the program that is timed.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def kvcast(path: str, threads: int, *, quantize: str | None) -> Callable[[str, str | None], str]:
    """Open with kvcast; the answer is a recording's whole text, or a prompt's first token."""
    import kvcast as package

    model: Any = package.load(path, threads=threads, quantize=quantize)

    def answer(prompt: str, audio: str | None) -> str:
        if audio is None:
            return str(model.generate(prompt, max_new_tokens=1).text)
        return "".join(segment.text for segment in model.transcribe(audio))

    return answer


def llama(path: str, threads: int, *, quantize: str | None) -> Callable[[str, str | None], str]:
    """Open a GGUF file with llama.cpp; the answer is a prompt's first token."""
    import llama_cpp

    del quantize  # a file's own types
    model: Any = llama_cpp.Llama(
        path, n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False
    )

    def answer(prompt: str, audio: str | None) -> str:
        del audio
        text = model.create_completion(prompt, max_tokens=1, temperature=0.0)
        return str(text["choices"][0]["text"])

    return answer


def memory() -> Mapping[str, int]:
    """Return this process's bytes: the peak, the current ones, and the anonymous share of these."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    names = {"peak_bytes": "VmHWM", "held_bytes": "VmRSS", "own_bytes": "RssAnon"}
    return {name: int(fields[field].split()[0]) * 1024 for name, field in names.items()}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    open_with = {"kvcast": kvcast, "llama": llama}[asked["program"]]
    answer = open_with(asked["path"], asked["threads"], quantize=asked["quantize"])
    print(json.dumps({}), flush=True)
    text = answer(asked["prompt"], asked["audio"])
    print(json.dumps({"text": text, **memory()}), flush=True)
