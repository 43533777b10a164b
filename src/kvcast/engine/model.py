"""The base class of every model that `kvcast.load` returns."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from typing_extensions import override

from kvcast.engine.callers import JobCaller
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import UsageError
from kvcast.runtimes.base import close_runtime, is_closed

if TYPE_CHECKING:
    from kvcast.audio.decode import AudioInput
    from kvcast.audio.vad import VoiceDetector
    from kvcast.chat.conversation import Message, Tool
    from kvcast.families.base import Task
    from kvcast.keywords import keywords_of
    from kvcast.runtimes.base import Float32, Int64
    from kvcast.speech.abilities import Abilities
    from kvcast.speech.channels import AnyTranscription
    from kvcast.speech.live import LiveTranscription
    from kvcast.speech.params import LanguageParams, LiveParams, TranscribeParams
    from kvcast.text.encoders import RankedDocument
    from kvcast.text.generation import TextPrompt
    from kvcast.text.params import EmbedParams, PromptParams
    from kvcast.text.session import TextSession
    from kvcast.text.signatures import chats, chats_later, generates, generates_later
    from kvcast.text.texts import TextGeneration, TextStream
    from kvcast.whisper.forced_alignment import Alignment
    from kvcast.whisper.language_detection import DetectedLanguage

_METHODS = frozenset(
    {
        *("transcribe", "atranscribe", "transcribe_all", "live", "align", "detect_language"),
        *("generate", "agenerate", "generate_each", "stream", "chat", "achat", "chat_tokens"),
        *("session", "score", "embed", "rerank"),
    }
)
_ADVICE: "Mapping[Task, str]" = {
    "transcribe": "use transcribe, or load a text model",
    "generate": "use generate, or load another model",
    "embed": "use embed, or load another model",
    "rerank": "use rerank, or load another model",
}


class MissingMethodError(UsageError, AttributeError):
    """A method that models of another kind have."""


class Model(ABC):
    """A loaded model: it transcribes recordings, generates or embeds texts, or ranks documents.

    `task` says which. A method that only other models have raises a UsageError, and `hasattr` does
    not find it. In a `with` statement it is closed at the end.
    """

    task: "ClassVar[Task]"
    runtime: Any
    tokenizer: Any
    dimensions: Any

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name in _METHODS:
                raise MissingMethodError(f"{kind} has no {name}: {_ADVICE[self.task]}")
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")

    else:  # what models of either kind have, so that one of an unknown kind can be called

        @property
        def abilities(self) -> Abilities:
            raise NotImplementedError

        @property
        def languages(self) -> tuple[str, ...]:
            raise NotImplementedError

        @property
        def is_multilingual(self) -> bool:
            raise NotImplementedError

        @property
        def notices(self) -> Sequence[str]:
            raise NotImplementedError

        @keywords_of(TranscribeParams)
        def transcribe(self, audio: AudioInput, params: TranscribeParams) -> AnyTranscription:
            raise NotImplementedError

        @keywords_of(TranscribeParams)
        async def atranscribe(
            self, audio: AudioInput, params: TranscribeParams
        ) -> AnyTranscription:
            raise NotImplementedError

        @keywords_of(TranscribeParams)
        def transcribe_all(
            self, audio: Iterable[AudioInput], params: TranscribeParams
        ) -> list[AnyTranscription]:
            raise NotImplementedError

        @keywords_of(LiveParams)
        def live(
            self, listener: VoiceDetector | None = None, *, params: LiveParams
        ) -> LiveTranscription:
            raise NotImplementedError

        def align(
            self,
            audio: AudioInput,
            text: str,
            *,
            language: str | None = None,
            audio_track: str | int | None = None,
            sampling_rate: int = 16_000,
        ) -> Alignment:
            raise NotImplementedError

        @keywords_of(LanguageParams)
        def detect_language(self, audio: AudioInput, params: LanguageParams) -> DetectedLanguage:
            raise NotImplementedError

        @generates
        def generate(self) -> None:
            raise NotImplementedError

        @generates_later
        def agenerate(self) -> None:
            raise NotImplementedError

        @chats
        def chat(self) -> None:
            raise NotImplementedError

        @chats_later
        def achat(self) -> None:
            raise NotImplementedError

        @keywords_of(PromptParams)
        def generate_each(
            self, prompts: Sequence[TextPrompt], params: PromptParams
        ) -> Iterator[list[TextGeneration]]:
            raise NotImplementedError

        @keywords_of(PromptParams)
        def stream(self, prompt: TextPrompt, params: PromptParams) -> TextStream:
            raise NotImplementedError

        def chat_tokens(
            self, messages: Sequence[Message], *, tools: Sequence[Tool] | None = None
        ) -> Int64:
            raise NotImplementedError

        def session(self, prefix: TextPrompt, *, chunk: int = ...) -> TextSession:
            raise NotImplementedError

        def score(self, text: TextPrompt, *, chunk: int = ...) -> Float32:
            raise NotImplementedError

        @keywords_of(EmbedParams)
        def embed(self, texts: str | Sequence[TextPrompt], params: EmbedParams) -> Float32:
            raise NotImplementedError

        def rerank(
            self,
            query: str,
            documents: Sequence[str],
            *,
            top_n: int | None = None,
            truncate: bool = False,
        ) -> list[RankedDocument]:
            raise NotImplementedError

    @abstractmethod
    def scheduler(self, rows: int, budget: int, chunk: int) -> Scheduler:
        """Return a scheduler over a new cache of up to `budget` bytes.

        `chunk`: approximate number of prompt positions computed between two steps.
        """

    @abstractmethod
    def caller(self, given: Any, options: Mapping[str, Any], scheduler: Scheduler) -> JobCaller:
        """Return a caller, on any thread; raises UsageError for a request that cannot be served."""

    def close(self) -> None:
        """Release the model's memory, threads and files; later calls raise KvcastError.

        A call under way ends first. Close an engine of the model before. The caches of streams,
        sessions and transcriptions go with these.
        """
        close_runtime(self.runtime)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @override
    def __repr__(self) -> str:
        state = "closed" if is_closed(self.runtime) else type(self.runtime).__name__
        return f"<{type(self).__name__}: {self._described}, {state}>"

    @property
    @abstractmethod
    def _described(self) -> str:
        """Its family, and what it knows."""
