"""Folders that optimum-executorch writes: one program, `model.pte`. Imports ExecuTorch on use."""

from collections.abc import Sequence
from pathlib import Path

from kvcast.errors import KvcastError
from kvcast.loading.exporting import require
from kvcast.spec.runtimes import RUNTIMES
from kvcast.verification.foreign.base import ForeignModel, Reader

_FILE = "model.pte"


def _programs(folder: Path) -> Sequence[Path]:
    files = sorted(folder.glob("*.pte"))
    return [folder / _FILE] if folder / _FILE in files else files


def _open(folder: Path, threads: int) -> ForeignModel:
    require("verifying .pte files", ["executorch", "torch"], RUNTIMES["executorch"].extra)
    programs = _programs(folder)
    if len(programs) > 1:
        names = ", ".join(path.name for path in programs[:4])
        raise KvcastError(f"{folder} has several programs ({names}), none of which is {_FILE}")
    from kvcast.verification.foreign.executorch_decoder import ExecutorchProgram

    return ExecutorchProgram(programs[0], threads)


READER = Reader(
    name=f"optimum-executorch ({_FILE})",
    detect=lambda folder: bool(_programs(folder)),
    open=_open,
    native=_programs,
)
