"""Base class of tokenizers without chat templates."""

from collections.abc import Sequence

from typing_extensions import override

from kvcast.chat.conversation import Message, Tool
from kvcast.chat.templates import NO_TEMPLATE
from kvcast.chat.tool_calls import ToolForm
from kvcast.errors import KvcastError, UsageError
from kvcast.tokenizers.base import TextTokenizer


class PlainTokenizer(TextTokenizer):
    """Text to tokens and back, without a chat template and tokens that control anything."""

    @override
    def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> list[int]:
        """Raise KvcastError: there is no chat template."""
        raise KvcastError(NO_TEMPLATE)

    @property
    @override
    def tool_form(self) -> ToolForm:
        raise UsageError(NO_TEMPLATE)

    @override
    def control_tokens(self, texts: Sequence[str]) -> dict[str, int]:
        return {}
