"""Writes a page: one HTML file with its style, its script and its story within it.

A policy lets only this style and this script count, and nothing be fetched, so a token that spells
HTML is text. Knows nothing of the story.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

_SPELLED = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


def html(story: Mapping[str, Any]) -> str:
    """Return the page of a story, whose `title` is its title."""
    template, style, script = (
        (files("kvcast.inspect.page") / f"page.{kind}").read_text(encoding="utf-8")
        for kind in ("html", "css", "js")
    )
    parts = {
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}",
        "title": escape(story["title"]),
        "style": style,
        "script": script,
        "story": json.dumps(story).translate(_SPELLED),
    }
    before, *others = template.split("{")
    return before + "".join(
        parts[name] + rest for name, rest in (part.split("}", 1) for part in others)
    )


def _hash(text: str) -> str:
    """Return how a policy names a text that is within the page (CSP 3)."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
