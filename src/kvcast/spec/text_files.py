"""The files of text that checkpoints and bundles have: names and limits. Knows no contents."""

CHAT_TEMPLATES = {"": "chat_template.jinja", "tool_use": "chat_template.tool_use.jinja"}
"""Files of chat templates by name: the usual one, and the one for conversations with tools."""

MOST_SENTINELS = 1000
"""Limit on the extra ids of a SentencePiece model."""

MARIAN_PIECES, MARIAN_SOURCES, MARIAN_TARGETS = "source.spm", "vocab.json", "target_vocab.json"
"""A Marian's SentencePiece model of sources, and the numbers of its pieces and of the target's."""

M2M_PIECES = "sentencepiece.bpe.model"
"""An M2M-100's SentencePiece model; its pieces have the numbers of a Marian's sources."""
