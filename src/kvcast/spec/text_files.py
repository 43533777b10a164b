"""Names and limits of the text files in checkpoints and bundles, and byte-level characters."""

CHAT_TEMPLATES = {"": "chat_template.jinja", "tool_use": "chat_template.tool_use.jinja"}
"""Files of chat templates by name: the usual one, and the one for conversations with tools."""

MOST_SENTINELS = 1000
"""Limit on the extra ids of a SentencePiece model."""

VOCABULARY, MERGES = "vocab.json", "merges.txt"
"""The numbers of pieces, and their merges if no other file has them."""

MARIAN_PIECES, MARIAN_TARGETS = "source.spm", "target_vocab.json"
"""A Marian's SentencePiece model of sources, and the numbers of a target's pieces if others."""

FAIRSEQ_PIECES = "sentencepiece.bpe.model"
"""The SentencePiece model of an M2M-100, whose vocabulary numbers its pieces, or of an mBART."""

UNIGRAM_PIECES = "spiece.model"
"""The SentencePiece model of a T5 or a Pegasus."""


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
