"""`POST /v1/text2text`: models that read a source whole."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from kvcast.server.dispatch import State, check_room
from kvcast.server.errors import ApiError
from kvcast.server.model_registry import CHAT, COMPLETION, TEXT2TEXT, Served
from kvcast.server.prompts import NOT_GENERATING, each, keywords, limited
from kvcast.server.request_models import Text2TextRequest
from kvcast.server.text_responses import DONE, Answer, event, head, usage
from kvcast.text.requests import TextDelta
from kvcast.text.texts import TextGeneration

_CONTINUES = "continues texts: use /v1/chat/completions or /v1/completions"


async def text2text(state: State, request: Request, body: Text2TextRequest) -> Response:
    others = NOT_GENERATING | {CHAT: _CONTINUES, COMPLETION: _CONTINUES}
    served = state.models.of_kind(body.model, others)
    assert served.kind == TEXT2TEXT
    state.check_texts(served, body.n)
    sources = each(body.input, "input")
    if body.stream and (len(sources) > 1 or (body.n or 1) > 1):
        raise ApiError(400, "a stream is of one source and one text", param="stream")
    options = keywords(
        body,
        served,
        body.max_tokens,
        temperature=0.0,
        beam=body.beam,
        length_penalty=body.length_penalty,
        source_language=body.source_language,
        target_language=body.target_language,
        sentences=body.sentences,
    )
    state.journal.content(request, asked=body.input)
    check_room(served.engine, len(sources))
    made = [limited(served, source, state.limits.max_prompt) for source in sources]
    jobs = await state.generate_each(request, served, made, options)
    return await _SourceAnswer(served).send(state, request, jobs, stream=body.stream)


class _SourceAnswer(Answer):
    def __init__(self, served: Served) -> None:
        super().__init__(served)
        self._head = head("t2t", "text2text", served)

    @override
    def whole(self, texts: Sequence[list[TextGeneration]], cached: Sequence[int]) -> Any:
        choices = [
            {
                "input_index": source,
                "text": text.text,
                "score": text.score,
                "similarity": text.similarity,
                "finish_reason": text.finish_reason,
            }
            for source, several in enumerate(texts)
            for text in several
        ]
        used = usage(texts, cached)
        del used["prompt_tokens_details"]
        return self._head | {
            "choices": [{"index": index, **choice} for index, choice in enumerate(choices)],
            "usage": used,
        }

    @override
    def events(self, delta: TextDelta) -> list[str]:
        if not (delta.text or delta.finish_reason):
            return []
        choice = {
            "index": 0,
            "input_index": 0,
            "text": delta.text,
            "finish_reason": delta.finish_reason,
        }
        return [event(self._head | {"choices": [choice], "usage": None})]

    @override
    def ended(self, texts: list[TextGeneration], cached: int) -> list[str]:
        return [event(self.whole([texts], [cached]) | {"choices": []}), DONE]
