"""kvcast as another process imports it, from some checkout, through its public API alone.

Imports nothing else of kvcast, whose parts may have other names there.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Subject:
    """A model in a process that imports one checkout's kvcast, through its public API alone."""

    def __init__(self, model: str, threads: int, inputs: Mapping[str, Any]) -> None:
        self._model, self._threads, self._inputs = model, threads, inputs
        self._opened: Any = None

    def load(self) -> str:
        """Open the model; return the folder that kvcast was imported from."""
        import kvcast

        self._opened = kvcast.load(self._model, quantize="int8", threads=self._threads)
        return str(Path(kvcast.__file__).parent)

    def transcribe(self, beam: int) -> dict[str, Any]:
        """Turn the recording into text."""
        start = time.perf_counter()
        segments = self._opened.transcribe(
            self._inputs["samples"],
            language="en",
            beam=beam,
            temperature=0.0,
            condition_on_previous_text=False,
        )
        output = "".join(segment.text for segment in segments)
        return {"transcribe": time.perf_counter() - start, "output": output}

    def generate(self, new: int) -> dict[str, Any]:
        """Continue the prompt greedily."""
        text = self._opened.generate(
            self._inputs["prompt"], max_new_tokens=new, min_new_tokens=new, temperature=0.0
        )
        timings = text.timings
        return {
            "first token": timings.first_token,
            "step": timings.per_token,
            "output": list(text.tokens),
        }
