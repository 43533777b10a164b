"""Methods whose result depends on their options, as type checkers see them.

`n` makes a list of texts out of one, several prompts make a list of results, and `stream` an
iterator of pieces. At run time the decorators change nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, overload

if TYPE_CHECKING:
    from dataclasses import dataclass
    from typing import Literal

    from kvcast.chat.conversation import Message
    from kvcast.decoding.params import SamplingParams
    from kvcast.text.generation import TextPieces, TextPrompt
    from kvcast.text.params import ChatParams, PromptParams
    from kvcast.text.texts import TextGeneration

One = ParamSpec("One")
Several = ParamSpec("Several")
Streamed = ParamSpec("Streamed")


class Generates(Protocol[One, Several]):
    @overload
    def __call__(  # type: ignore[overload-overlap]  # a str is a sequence of str
        self, prompt: "TextPrompt" = ..., /, *args: One.args, **options: One.kwargs
    ) -> "TextGeneration": ...
    @overload
    def __call__(
        self, prompt: "Sequence[TextPrompt]", /, *args: One.args, **options: One.kwargs
    ) -> "list[TextGeneration]": ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, prompt: "TextPrompt" = ..., /, *args: Several.args, **options: Several.kwargs
    ) -> "list[TextGeneration]": ...
    @overload
    def __call__(
        self, prompt: "Sequence[TextPrompt]", /, *args: Several.args, **options: Several.kwargs
    ) -> "list[list[TextGeneration]]": ...


class AsyncGenerates(Protocol[One, Several]):
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, prompt: "TextPrompt", /, *args: One.args, **options: One.kwargs
    ) -> "Awaitable[TextGeneration]": ...
    @overload
    def __call__(
        self, prompt: "Sequence[TextPrompt]", /, *args: One.args, **options: One.kwargs
    ) -> "Awaitable[list[TextGeneration]]": ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, prompt: "TextPrompt", /, *args: Several.args, **options: Several.kwargs
    ) -> "Awaitable[list[TextGeneration]]": ...
    @overload
    def __call__(
        self, prompt: "Sequence[TextPrompt]", /, *args: Several.args, **options: Several.kwargs
    ) -> "Awaitable[list[list[TextGeneration]]]": ...


class Chats(Protocol[One, Several, Streamed]):
    @overload
    def __call__(
        self, messages: "Sequence[Message]", /, *args: One.args, **options: One.kwargs
    ) -> "TextGeneration": ...
    @overload
    def __call__(
        self, messages: "Sequence[Message]", /, *args: Several.args, **options: Several.kwargs
    ) -> "list[TextGeneration]": ...
    @overload
    def __call__(
        self, messages: "Sequence[Message]", /, *args: Streamed.args, **options: Streamed.kwargs
    ) -> "TextPieces": ...


class AsyncChats(Protocol[One, Several, Streamed]):
    @overload
    def __call__(
        self, messages: "Sequence[Message]", /, *args: One.args, **options: One.kwargs
    ) -> "Awaitable[TextGeneration]": ...
    @overload
    def __call__(
        self, messages: "Sequence[Message]", /, *args: Several.args, **options: Several.kwargs
    ) -> "Awaitable[list[TextGeneration]]": ...
    @overload
    def __call__(
        self, messages: "Sequence[Message]", /, *args: Streamed.args, **options: Streamed.kwargs
    ) -> "Awaitable[TextPieces]": ...


if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class _OneText(PromptParams):
        n: Literal[1] = 1

    @dataclass(frozen=True, kw_only=True)
    class _SeveralTexts(PromptParams):
        n: int

    @dataclass(frozen=True, kw_only=True)
    class _OneRest(SamplingParams):
        n: Literal[1] = 1

    @dataclass(frozen=True, kw_only=True)
    class _SeveralRests(SamplingParams):
        n: int

    @dataclass(frozen=True, kw_only=True)
    class _OneAnswer(ChatParams):
        n: Literal[1] = 1
        stream: Literal[False] = False

    @dataclass(frozen=True, kw_only=True)
    class _SeveralAnswers(ChatParams):
        n: int
        stream: Literal[False] = False

    @dataclass(frozen=True, kw_only=True)
    class _StreamedAnswer(ChatParams):
        n: Literal[1] = 1
        stream: Literal[True]

    def _generates(
        one: Callable[One, Any], several: Callable[Several, Any]
    ) -> Callable[[Any], Generates[One, Several]]:
        raise NotImplementedError

    def _generates_later(
        one: Callable[One, Any], several: Callable[Several, Any]
    ) -> Callable[[Any], AsyncGenerates[One, Several]]:
        raise NotImplementedError

    def _chats(
        one: Callable[One, Any],
        several: Callable[Several, Any],
        streamed: Callable[Streamed, Any],
    ) -> Callable[[Any], Chats[One, Several, Streamed]]:
        raise NotImplementedError

    def _chats_later(
        one: Callable[One, Any],
        several: Callable[Several, Any],
        streamed: Callable[Streamed, Any],
    ) -> Callable[[Any], AsyncChats[One, Several, Streamed]]:
        raise NotImplementedError

    generates = _generates(_OneText, _SeveralTexts)
    generates_later = _generates_later(_OneText, _SeveralTexts)
    continues = _generates(_OneRest, _SeveralRests)
    chats = _chats(_OneAnswer, _SeveralAnswers, _StreamedAnswer)
    chats_later = _chats_later(_OneAnswer, _SeveralAnswers, _StreamedAnswer)
else:

    def generates(method: Any) -> Any:
        return method

    generates_later = continues = chats = chats_later = generates
