"""The files of text that checkpoints and bundles have: names and limits. Knows no contents."""

CHAT_TEMPLATES = {"": "chat_template.jinja", "tool_use": "chat_template.tool_use.jinja"}
"""Files of chat templates by name: the usual one, and the one for conversations with tools."""

MOST_SENTINELS = 1000
"""Limit on the extra ids of a SentencePiece model."""
