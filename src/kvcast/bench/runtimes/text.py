"""A decoder-only model on every runtime: time to the first token, and of a token after it."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kvcast.bench.contestant import Contestant, peak_bytes
from kvcast.bench.cost import Cost
from kvcast.bench.runtimes.contenders import CONTENDERS, Cached, Task
from kvcast.bench.runtimes.forms import PRECISIONS, Form
from kvcast.bench.runtimes.plan import in_form
from kvcast.bench.text.floor import Floor
from kvcast.bench.text.peers.ours import generate
from kvcast.bench.text.trials import Ticks, Trial
from kvcast.spec.decoder import DecoderDimensions

FIRST, TOKEN = "first", "token"
_CONTINUE = "continue"


@dataclass(frozen=True, kw_only=True)
class TextPlan:
    """Meets `kvcast.bench.runtimes.plan.Plan`.

    There is no cross-attention, so nothing is recomputed.

    Attributes:
        dimensions: of the model.
        prompt: tokens of the prompt.
        new: tokens after the first.

    """

    dimensions: DecoderDimensions
    prompt: int
    new: int

    contestant: ClassVar[str] = "kvcast.bench.runtimes.text:Continuer"
    kinds: ClassVar[Sequence[type[Cached]]] = (Cached,)
    figures: ClassVar[Mapping[str, str]] = {FIRST: _CONTINUE, TOKEN: _CONTINUE}
    step: ClassVar[str] = TOKEN

    @property
    def arguments(self) -> Mapping[str, Any]:
        """See the protocol."""
        return {"prompt": self.prompt, "new": self.new}

    @property
    def work(self) -> Mapping[str, str]:
        """See the protocol."""
        return {
            FIRST: f"the first token: a prompt of {self.prompt} random tokens, 1 row, greedy",
            TOKEN: f"a token after it: the mean of {self.new}, 1 row, greedy, end tokens ignored",
        }

    @property
    def widest(self) -> tuple[int, int]:
        """See the protocol."""
        return self.prompt, self.dimensions.width

    @property
    def settings(self) -> Mapping[str, Any]:
        """See the protocol."""
        return {"beam": 1, "prompt": self.prompt, "new": self.new}

    def costs(self, form: Form, *, recomputes: bool) -> Mapping[str, Cost]:  # noqa: ARG002
        """See the protocol; a token's is that of the one in the middle."""
        floor = Floor(dimensions=self.dimensions, quantize=PRECISIONS[form.precision])
        middle = self.prompt + self.new // 2
        return {
            FIRST: in_form(form, floor.decode(rows=1, new=self.prompt, held=0)),
            TOKEN: in_form(form, floor.decode(rows=1, new=1, held=middle)),
        }

    def facts(self, figure: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the protocol."""
        return {"tokens": answer["tokens"]} if figure == TOKEN else {}


class Continuer(Contestant):
    """A form of a decoder-only model, on the far side of `kvcast.bench.remote`."""

    def __init__(self, name: str, task: dict[str, Any], prompt: int, new: int) -> None:
        """Take the contender's name and the fields of `Task`."""
        self._contender = CONTENDERS[name](Task(**task))
        self._trial = Trial(rows=1, prompt=prompt, steps=new)
        super().__init__(self._contender)

    def take(self, measure: str) -> dict[str, Any]:  # noqa: ARG002 - there is one
        """Return seconds to the first token and of a token, the tokens, and peak memory."""
        model, trial = self._contender.model, self._trial
        prompts = trial.prompts(model.dimensions.vocab_size)
        gc.collect()
        ticks = Ticks()
        texts = generate(model.runtime, model.tokenizer, prompts, trial.new, ticks.tick)
        trial.check(texts)
        figures = ticks.figures()
        return {
            FIRST: figures["first"],
            TOKEN: figures["step"],
            "tokens": texts[0],
            "peak_bytes": peak_bytes(),
        }
