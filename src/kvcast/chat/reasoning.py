"""Reasoning: what a model writes between <think> and </think>, before its answer.

Knows no tokens and no protocol.
"""

BEGIN = "<think>"
END = "</think>"


class ReasoningParser:
    """Divides one text, which comes in pieces, into reasoning and answer.

    White space around reasoning belongs to neither.
    """

    def __init__(self, *, begun: bool = False) -> None:
        """Begin; where the prompt itself ends with `BEGIN`, the text has begun with reasoning."""
        self._awaits = END if begun else BEGIN  # nothing in the answer
        self._held = ""
        self._strips = begun  # white space that comes next

    @property
    def reasons(self) -> bool:
        """Whether the text is within its reasoning."""
        return self._awaits == END

    def push(self, piece: str, *, last: bool = False) -> tuple[str, str]:
        """Take a piece; return the reasoning and the answer that are certain now."""
        self._held += piece
        if self._awaits == BEGIN:
            begun = self._held.lstrip()
            if begun.startswith(BEGIN):
                self._held = begun.removeprefix(BEGIN)
                self._awaits, self._strips = END, True
            elif last or not BEGIN.startswith(begun):
                self._awaits = ""
            else:
                return "", ""
        reasoning = ""
        if self._awaits == END:
            reasoning, ended, rest = self._held.partition(END)
            kept = _spaces(reasoning) if ended or last else _uncertain(reasoning)
            certain = len(reasoning) - kept
            self._held = rest if ended else reasoning[certain:]
            reasoning = self._stripped(reasoning[:certain])
            if not ended:
                return reasoning, ""
            self._awaits, self._strips = "", True
        answer, self._held = self._stripped(self._held), ""
        return reasoning, answer

    def _stripped(self, text: str) -> str:
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        return text


def _uncertain(text: str) -> int:
    """Return how many characters at the end are white space, or may begin `END`."""
    for length in range(min(len(END) - 1, len(text)), 0, -1):
        if END.startswith(text[-length:]):
            return length + _spaces(text[:-length])
    return _spaces(text)


def _spaces(text: str) -> int:
    return len(text) - len(text.rstrip())
