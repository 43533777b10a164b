"""Real inputs of a model: recordings and texts, as the cases that rows begin with.

Knows neither families nor runtimes.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvcast.engine.requests import Input, Prompt
from kvcast.errors import UsageError
from kvcast.loading.opening import Model
from kvcast.verification.cases import Case

if TYPE_CHECKING:
    from kvcast.speech.model import SpeechModel
    from kvcast.text.model import TextGenerator
    from kvcast.whisper.model import WhisperModel


def cases_of_recordings(model: Model, paths: Sequence[str]) -> list[Case]:
    """Return the first window of each recording, after the prompt that a transcript begins with.

    Raises:
        UsageError: the model does not listen.
        InputMissingError, InputOutputError: a recording cannot be read.

    """
    if model.task != "transcribe":
        raise UsageError("the model reads text and does not listen: give --prompts")
    from kvcast.whisper.model import WhisperModel

    if isinstance(model, WhisperModel):
        return [_window(model, path) for path in paths]
    return [_excerpt(model, path) for path in paths]


def cases_of_prompts(model: Model, texts: Sequence[str]) -> list[Case]:
    """Return texts as prompts or, where the model has an encoder of text, as sources.

    Raises UsageError where the model reads no text, or a text is longer than it takes.
    """
    if model.task != "generate":
        raise UsageError("the model listens and takes no prompts: give --audio")
    return [_prompt(model, text) for text in texts]


def _window(model: "WhisperModel", path: str) -> Case:
    from kvcast.audio.features import open_features
    from kvcast.whisper.requests import Features

    tokenizer = model.tokenizer
    with open_features(path, model.dimensions.n_mels) as recording:
        window = Features(recording.window(0))
    language = "en" if "en" in model.languages else next(iter(model.languages))
    tokens = tokenizer.sot_sequence(language, "transcribe", timestamps=False)
    return Case(np.array(tokens, np.int64), _source(window))


def _excerpt(model: "SpeechModel", path: str) -> Case:
    from kvcast.speech.params import TranscribeParams
    from kvcast.speech.recognition import Hints
    from kvcast.speech.voice import open_samples

    recognition = model.recognition
    with closing(open_samples(path, TranscribeParams())) as recording:
        end = min(recording.content_frames, recognition.longest)
        sound = recognition.input(recording.samples(0, end))
    request = recognition.request(sound)
    tokens = recognition.prompt(sound.positions, Hints())
    prompt = Prompt(np.array(tokens, np.int64)) if request is None else request.prompt
    return Case(prompt.tokens, _source(sound))


def _prompt(model: "TextGenerator", text: str) -> Case:
    from kvcast.text.params import PromptParams

    tokens = model.prompt_tokens(text, PromptParams())
    limit = model.generation.limits.prompt
    if len(tokens) > limit:
        raise UsageError(f"a prompt has {len(tokens)} tokens and the model takes {limit}")
    read = model.generation.read(tokens)
    return Case(read.tokens, () if read.input is None else _source(read.input))


def _source(given: Input) -> tuple[NDArray[Any], ...]:
    return type(given).batch([given])
