"""Export targets: the class of each runtime that the table of runtimes names. Knows no runtime."""

from collections.abc import Mapping

from kvcast.runtimes.target import Target
from kvcast.spec.runtimes import (
    DEFAULT_RUNTIMES,
    RUNTIMES,
    OnPhase,
    PrecisionRequest,
    ignore_phase,
    imported,
)

TARGETS: Mapping[str, Target] = {
    name: imported(runtime.target)() for name, runtime in RUNTIMES.items() if runtime.exports
}


def default_runtime(request: PrecisionRequest, on_phase: OnPhase = ignore_phase) -> str:
    """Return the runtime for a model that is no bundle, if a user names none.

    Args:
        request: the precision that the user asks for.
        on_phase: called before a library is compiled for it, which takes seconds.

    """
    suited = [name for name in DEFAULT_RUNTIMES if TARGETS[name].suits_machine(on_phase)]
    # Where none suits, the first runs slowly or says what it needs.
    fallback = next(iter(suited), DEFAULT_RUNTIMES[0])
    return next((name for name in suited if RUNTIMES[name].offers(request)), fallback)
