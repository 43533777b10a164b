"""Options of the public methods, besides those of `kvcast.decoding.params`.

Knows no library of numbers, so that the command line can show its help at once.
"""

from dataclasses import dataclass
from typing import Annotated

from kvcast.decoding.params import SamplingParams
from kvcast.spec.options import Option, Text

CONVERSATION = "conversation"


@dataclass(frozen=True, kw_only=True)
class PromptParams(SamplingParams):
    """How prompts are understood, and how texts are written after them."""

    chat: Annotated[
        bool,
        Option(
            group=CONVERSATION,
            help="the prompt is what a user says, in the model's own chat template",
        ),
    ] = False
    system: Annotated[
        str | None,
        Option(
            group=CONVERSATION,
            help="with chat, what the model is told before",
            check=Text(),
            metavar="TEXT",
        ),
    ] = None
