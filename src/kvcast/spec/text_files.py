"""The files of text that checkpoints and bundles have: names and limits. Knows no contents."""

CHAT_TEMPLATES = {"": "chat_template.jinja", "tool_use": "chat_template.tool_use.jinja"}
"""Files of chat templates by name: the usual one, and the one for conversations with tools."""

MOST_SENTINELS = 1000
"""Limit on the extra ids of a SentencePiece model."""

VOCABULARY, MERGES = "vocab.json", "merges.txt"
"""The numbers of pieces, and the merges that make them where no other file tells."""

MARIAN_PIECES, MARIAN_TARGETS = "source.spm", "target_vocab.json"
"""A Marian's SentencePiece model of sources, and the numbers of a target's pieces if others."""

FAIRSEQ_PIECES = "sentencepiece.bpe.model"
"""The SentencePiece model of an M2M-100, whose vocabulary numbers its pieces, or of an mBART."""

UNIGRAM_PIECES = "spiece.model"
"""The SentencePiece model of a T5 or a Pegasus."""
