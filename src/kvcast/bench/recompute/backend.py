"""kvcast with the recomputing programs in place of its own."""

from pathlib import Path

from typing_extensions import override

from kvcast.bench.models import Model
from kvcast.bench.peers.kvcast import EAGER, PRECISIONS, Kvcast
from kvcast.bench.recompute.bundles import open_exported
from kvcast.runtimes.base import EncoderDecoder
from kvcast.tasks.families import family_of


class Recomputing(Kvcast):
    """See `kvcast.bench.recompute`."""

    settings = "cross keys and values of every layer projected anew in every call"

    def __init__(self, model: Model, runtime: str, precision: str) -> None:
        super().__init__(model, runtime, precision, f"{runtime}-{precision}-recompute")
        self.recomputes = True

    @override
    def load(self) -> None:
        checkpoint = self.model.checkpoint()
        family = family_of(checkpoint.family)
        self.engine = family.model(
            self._runtime(), checkpoint.dimensions, family.text_files(checkpoint)
        )

    def _runtime(self) -> EncoderDecoder:
        checkpoint, threads = self.model.checkpoint(), self.model.threads
        if self.runtime != EAGER:
            folder, numbers = Path(self.model.folder), self.bundled
            return open_exported(checkpoint, folder, self.runtime, numbers, threads)
        from kvcast.bench.recompute.programs import RecomputingPrograms, StatesTwice
        from kvcast.runtimes import torch_settings
        from kvcast.runtimes.eager import EagerEncoderDecoder

        torch_settings.use(threads)
        family = family_of(checkpoint.family)
        programs = family.programs(checkpoint)
        if (quantize := PRECISIONS[self.precision]) != "none":
            family.quantize_eager(programs, quantize)
        return EagerEncoderDecoder(StatesTwice(RecomputingPrograms.of(programs)))
