"""Text that arrives token by token."""

from typing import Protocol


class TextStream(Protocol):
    def push(self, token: int) -> str:
        """Take one token; return the text that is now complete, possibly none.

        Bytes of an incomplete character are held back until the rest arrives.
        """

    def finish(self) -> str:
        """Return the withheld text, with U+FFFD for bytes that make no character."""
