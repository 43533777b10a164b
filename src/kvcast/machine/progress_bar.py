"""A progress bar for Python's callers, on standard error or in a notebook; drawn by tqdm."""

import warnings
from typing import Any


class ProgressBar:
    def __init__(self, what: str, total: float, unit: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a notebook without ipywidgets gets a bar of text
            from tqdm.auto import tqdm

        amount = "{n:.0f} of {total:.0f} " + unit
        layout = "{desc}: {percentage:.0f}% |{bar}| " + amount + " [{elapsed}<{remaining}]"
        self._bar: Any = tqdm(desc=what, total=total, bar_format=layout)

    def reach(self, amount: float) -> None:
        """Show that this much of the total is done."""
        self._bar.update(min(amount, self._bar.total) - self._bar.n)

    def close(self) -> None:
        self._bar.close()
