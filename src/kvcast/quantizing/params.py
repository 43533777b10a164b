"""Options of the search for a recipe."""

from dataclasses import dataclass

from kvcast.loading.params import AdapterParams
from kvcast.options import FILLED, Choice, Group, Text
from kvcast.spec.runtimes import OnPhase, ignore_phase

SEARCH = Group("search")


@dataclass(frozen=True, kw_only=True)
class QuantizeParams(AdapterParams):
    budget: float = SEARCH(0.01, least=0, most=1, metavar="FLIPS")(
        "largest share of positions whose likeliest token differs from that of fp32"
    )
    on: str = SEARCH("", check=Text(), metavar="AUDIO|TEXT", shown="required")(
        "what is measured on: a recording for a model of speech; a text, which a "
        "decoder-only model reads, and whose lines are sources of others"
    )
    language: str | None = SEARCH(None, check=FILLED, metavar="LANG")(
        "the language spoken in the recording, as kvcast transcribe takes it"
    )
    positions: int = SEARCH(512, least=16, most=1_000_000)("most tokens to compare")
    saving: str = SEARCH("both", check=Choice(lambda: ("both", "bytes", "time")))(
        "what the recipe saves: bytes of weights and caches, time of a token, or both, "
        "each as a share of fp32's"
    )
    threads: int | None = SEARCH(None, least=1, most=1024, shown="available physical cores")(
        "threads of the runtime"
    )

    on_phase: OnPhase = ignore_phase
