"""Options of the search for a recipe. Knows no tensor library."""

from dataclasses import dataclass
from typing import Annotated

from kvcast.loading.params import AdapterParams
from kvcast.options import Bounds, Choice, Option, Text
from kvcast.spec.runtimes import OnPhase, ignore_phase

SEARCH = "search"


@dataclass(frozen=True, kw_only=True)
class QuantizeParams(AdapterParams):
    """How a recipe is searched for; see `kvcast.quantizing.search.find_recipe`."""

    budget: Annotated[
        float,
        Option(
            group=SEARCH,
            help="largest share of positions whose likeliest token differs from that of fp32",
            check=Bounds(least=0, most=1),
            metavar="FLIPS",
        ),
    ] = 0.01
    on: Annotated[
        str,
        Option(
            group=SEARCH,
            help="what is measured on: a recording for a model of speech; a text, which a "
            "decoder-only model reads, and whose lines are sources of others",
            check=Text(),
            metavar="AUDIO|TEXT",
            default="required",
        ),
    ] = ""
    language: Annotated[
        str | None,
        Option(
            group=SEARCH,
            help="the language spoken in the recording, as kvcast transcribe takes it",
            check=Text(filled=True),
            metavar="LANG",
        ),
    ] = None
    positions: Annotated[
        int,
        Option(
            group=SEARCH,
            help="most tokens to compare",
            check=Bounds(least=16, most=1_000_000),
        ),
    ] = 512
    saving: Annotated[
        str,
        Option(
            group=SEARCH,
            help="what the recipe saves: bytes of weights and caches, time of a token, or both, "
            "each as a share of fp32's",
            check=Choice(lambda: ("both", "bytes", "time")),
        ),
    ] = "both"
    threads: Annotated[
        int | None,
        Option(
            group=SEARCH,
            help="threads of the runtime",
            check=Bounds(least=1, most=1024),
            default="available physical cores",
        ),
    ] = None

    on_phase: OnPhase = ignore_phase
