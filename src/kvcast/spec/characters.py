"""Helpers for characters and bytes that all tokenizers share. Knows no vocabulary."""


def _bytes_by_character() -> dict[str, int]:
    """Invert GPT-2's printable stand-ins for bytes (openai/gpt-2, src/encoder.py)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {chr(256 + i): byte for i, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | stand_ins


BYTES_BY_CHARACTER = _bytes_by_character()
"""The byte that each character of a byte-level vocabulary stands for."""


def whole_characters(text: str) -> str:
    """Replace lone surrogates, which undecodable command-line arguments contain, by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
