"""The smallest server around a backend that transcribes: `python -m …wrapper PORT`.

Answers one request at a time, as a program does that calls a library. The backend comes pickled
through standard input.
"""

import io
import pickle
import sys
from threading import Lock
from typing import Annotated, Any

import soundfile
import uvicorn
from fastapi import FastAPI, File, Form

from kvcast_bench.backend import Transcriber


def create(backend: Transcriber) -> FastAPI:
    """Return an application with as much of OpenAI's protocol as its clients here need."""
    app, one_at_a_time = FastAPI(), Lock()

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"data": [{"id": backend.name}]}

    @app.post("/v1/audio/transcriptions")
    def transcribe(
        file: Annotated[bytes, File()],
        language: Annotated[str, Form()],
        beam: Annotated[int, Form()],
    ) -> dict[str, str]:
        samples, _ = soundfile.read(io.BytesIO(file), dtype="float32")
        with one_at_a_time:
            return {"text": backend.transcribe(samples, language, beam)}

    return app


if __name__ == "__main__":
    served = pickle.load(sys.stdin.buffer)  # noqa: S301 - from who started this
    served.load()
    uvicorn.run(create(served), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
