"""A page about a schedule, of one layer of each kind or of a model. Knows no command."""

from kvcast.checkpoints.source import locate
from kvcast.errors import UsageError
from kvcast.families.table import family_with
from kvcast.inspect.cache import Texts
from kvcast.inspect.cost import CostQuery
from kvcast.inspect.page.costs import ASSUMED_BYTES, cost_lines
from kvcast.inspect.page.kinds import Prompts, model_kinds, other_caches, plain_kinds
from kvcast.inspect.page.story import story
from kvcast.inspect.page.writing import html
from kvcast.inspect.schedule import Schedule
from kvcast.inspect.work import ModelWork
from kvcast.loading.components import dimensions_of


def page(
    schedule: Schedule, window: int | None, capacity: int | None, texts: Texts, model: str | None
) -> str:
    """Return the page of a schedule.

    Args:
        schedule: its prompts, chunks and steps.
        window: of rings; None: those of the model, or no ring.
        capacity: slots of rings; None: as few as serve.
        texts: words of each row's tokens; may be empty.
        model: as `kvcast inspect cost` takes it; None: one layer of each kind, without a model.

    Raises:
        UsageError: sizes, texts or the model do not fit.
        KvcastError: the model cannot be read.

    """
    again = "Without a cache, each call computes all positions of its rows again."
    prompts = Prompts(lengths=schedule.lengths, chunk=schedule.chunk, new=schedule.new)
    if model is None:
        kinds = plain_kinds(prompts, window, capacity)
        return html(story(kinds, texts, cost_lines(kinds, None), [again]))
    dimensions = dimensions_of(locate(model))
    work, family = ModelWork(dimensions=dimensions), family_with(dimensions)
    CostQuery(prompt=max(schedule.lengths), new=schedule.new + 1).check(work)
    if family.interface == "prefix":
        raise UsageError(
            f"{model} reads a source in one call, and a page shows prompts in chunks: draw it with "
            "kvcast inspect masks --unilm"
        )
    kinds = model_kinds(family.caches(dimensions), prompts, window, capacity)
    if not kinds:
        raise UsageError(f"{model} has no layer with attention over its text")
    notes = [
        again,
        f"Operations and bytes are {model}'s, in all layers, with its own windows: "
        f"{ASSUMED_BYTES:g} bytes a weight and a cached number.",
        *other_caches(work.cache(max(schedule.lengths) + schedule.new)),
    ]
    return html(story(kinds, texts, cost_lines(kinds, work), notes))
