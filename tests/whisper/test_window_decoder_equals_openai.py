"""A window's result is that of openai-whisper's DecodingTask over the same scripted logits.

Prompts, filters, search, ranking and the probability of no speech are put together by each side
from its own parts; only the model is replaced.
"""

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import whisper.decoding as openai
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kit.openai_whisper import openai_tokenizer, openai_tokenizer_json
from kit.scripted_runtimes import Script, ScriptedRuntime, windows
from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast.whisper.windows import WindowDecoder

# openai-whisper sorts torch tensors with NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

VOCAB = {False: 51864, True: 51865}


@cache
def our_tokenizer(multilingual: bool) -> WhisperTokenizer:
    return WhisperTokenizer(openai_tokenizer_json(multilingual), VOCAB[multilingual])


@cache
def speech(multilingual: bool, seed: int) -> Script:
    """Logits as uneven as a model's: a few texts stand out, sometimes timestamps or the end."""
    ids = openai_tokenizer(multilingual)

    @cache
    def logits(number: int, written: tuple[int, ...]) -> NDArray[np.float32]:
        generator = np.random.default_rng((seed, number, len(written), *written[-3:]))
        logits_v = generator.standard_normal(VOCAB[multilingual], np.float32)
        logits_v[generator.integers(0, ids.eot, 12)] += generator.uniform(6, 12, 12)
        logits_v[ids.timestamp_begin :] += generator.uniform(-8, 6)
        logits_v[ids.eot] += generator.uniform(0, 12)
        logits_v[ids.no_speech] += generator.uniform(0, 12)
        logits_v[[*ids.non_speech_tokens[:5], ids.sot, ids.no_timestamps]] += 9
        return logits_v

    return logits


class ScriptedWhisper:
    """What DecodingTask needs of openai-whisper's model; its audio features are input numbers."""

    detect_language = openai.detect_language

    def __init__(self, multilingual: bool, script: Script, context: int) -> None:
        self.is_multilingual = multilingual
        self.num_languages = 99
        self.dims = SimpleNamespace(n_audio_ctx=1500, n_audio_state=1, n_text_ctx=context)
        self.script = script

    def logits(self, tokens: torch.Tensor, audio_features: torch.Tensor) -> torch.Tensor:
        numbers = audio_features[:, 0, 0].int().tolist()
        group = len(tokens) // len(numbers)
        rows = [
            [self.script(numbers[r // group], (*row[: i + 1],)) for i in range(len(row))]
            if len(row) == 1
            else self._all_positions(numbers[r // group], row)
            for r, row in enumerate(tokens.tolist())
        ]
        return torch.tensor(np.array(rows))

    def _all_positions(self, number: int, row: list[int]) -> list[NDArray[np.float32]]:
        """Only the start of the transcript and the last position are read; repeat the former."""
        sot = openai_tokenizer(self.is_multilingual).sot
        at_sot = self.script(number, (*row[: row.index(sot) + 1],))
        return [at_sot] * (len(row) - 1) + [self.script(number, tuple(row))]


class ScriptedInference(openai.Inference):
    def __init__(self, model: ScriptedWhisper, initial_token_length: int) -> None:
        self.logits = model.logits

    def rearrange_kv_cache(self, source_indices: list[int]) -> None:
        """Scripted logits follow from the tokens."""


def exact_log_softmax(logits: torch.Tensor, dim: int) -> torch.Tensor:
    """In fp32 PyTorch's is off by up to 3e-5 over a vocabulary, thirty times as much as ours."""
    return torch.log_softmax(logits.double(), dim).float()


@pytest.fixture(autouse=True, scope="module")
def _scripted_inference():
    exact = SimpleNamespace(log_softmax=exact_log_softmax, pad=torch.nn.functional.pad)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openai, "PyTorchInference", ScriptedInference)
        patch.setattr(openai, "F", exact)
        openai_tokenizer(False)
        openai_tokenizer(True)
        yield


def openai_features(*inputs: int) -> torch.Tensor:
    return torch.tensor(inputs, dtype=torch.float32).reshape(-1, 1, 1).expand(-1, 1500, 1)


def assert_equal(
    multilingual: bool,
    *,
    seed: int = 0,
    inputs: Sequence[int] = (1,),
    prompt: Sequence[int] = (),
    context: int = 448,
    **options: Any,
) -> list[DecodingResult]:
    script = speech(multilingual, seed)
    renamed = dict(options)
    for ours, theirs in (("beam", "beam_size"), ("max_new_tokens", "sample_len")):
        if ours in renamed:
            renamed[theirs] = renamed.pop(ours)
    renamed["without_timestamps"] = not renamed.pop("timestamps", True)
    if renamed.get("beam_size") == 1:
        del renamed["beam_size"]
    if not multilingual:
        renamed["language"] = "en"  # its transcribe() says so; DecodingTask would try to detect
    if isinstance(renamed.get("suppress_tokens"), list):
        renamed["suppress_tokens"] = renamed["suppress_tokens"].copy()  # it is extended
    task = openai.DecodingTask(
        ScriptedWhisper(multilingual, script, context),
        openai.DecodingOptions(fp16=False, prompt=list(prompt), **renamed),
    )
    # One by one: with several inputs and beams DecodingTask fails an assertion.
    expected = [task.run(openai_features(number))[0] for number in inputs]
    asked, count = DecodingOptions(**options), len(inputs)
    decoder = WindowDecoder(
        ScriptedRuntime(script, context),
        our_tokenizer(multilingual),
        context,
        rows=asked.strategy().width * count,
        windows=count,
    )
    results = decoder.decode(windows(*inputs), asked, prompt=prompt)
    for ours, theirs in zip(results, expected, strict=True):
        assert list(ours.tokens) == theirs.tokens
        assert ours.text == theirs.text
        assert ours.language == theirs.language
        assert ours.temperature == theirs.temperature
        assert ours.compression_ratio == theirs.compression_ratio
        assert ours.avg_logprob == pytest.approx(theirs.avg_logprob, abs=1e-5)
        assert ours.no_speech_prob == pytest.approx(theirs.no_speech_prob, abs=1e-5)
    return results


SEARCHES = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"beam": st.integers(2, 5)}),
    st.fixed_dictionaries(
        {
            "beam": st.integers(2, 4),
            "patience": st.sampled_from([0.5, 1.0, 2.0]),
            "length_penalty": st.none() | st.sampled_from([0.0, 0.4, 1.0]),
        }
    ),
)
OPTIONS = st.fixed_dictionaries(
    {"max_new_tokens": st.integers(1, 12), "timestamps": st.booleans()},
    optional={
        "suppress_tokens": st.sampled_from(["-1", "", None, "11,13", "-1,11"])
        | st.lists(st.integers(0, 50256), min_size=1, max_size=3),
        "max_initial_timestamp": st.sampled_from([None, 0.0, 0.5, 3.0]),
        "language": st.sampled_from(["en"]),
    },
)


@given(
    multilingual=st.booleans(),
    seed=st.integers(0, 50),
    inputs=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    prompt=st.lists(st.integers(0, 50255), max_size=8),
    search=SEARCHES,
    options=OPTIONS,
)
@settings(deadline=None, max_examples=60)
def test_any_options(multilingual, seed, inputs, prompt, search, options):
    assert_equal(multilingual, seed=seed, inputs=inputs, prompt=prompt, **(options | search))


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("timestamps", [True, False])
def test_to_the_end(beam: int, timestamps: bool):
    """No limit is given: scripts end by themselves, or at half the context."""
    results = assert_equal(False, inputs=range(4), beam=beam, timestamps=timestamps, context=64)
    assert {len(result.tokens) for result in results}


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("length", [0, 5, 18, 19, 20, 300])
@pytest.mark.parametrize("multilingual", [True, False])
def test_a_long_prompt_is_cut_to_half_the_context(multilingual: bool, length: int, beam: int):
    prompt = range(1000, 1000 + length)
    assert_equal(multilingual, prompt=prompt, context=40, beam=beam, max_new_tokens=6)


@pytest.mark.parametrize("beam", [1, 2])
@pytest.mark.parametrize("timestamps", [True, False])
def test_the_context_ends_the_search(beam: int, timestamps: bool):
    """The last token that fits is sampled though it could not be fed."""
    never = {"suppress_tokens": [50256]}  # the end
    for wanted in (16, 17, 18, 19, 20, 448):
        [result] = assert_equal(
            False,
            prompt=range(30),
            context=32,
            beam=beam,
            timestamps=timestamps,
            max_new_tokens=wanted,
            **never,
        )
        prompt = 16 + (1 if timestamps else 2)
        assert len(result.tokens) == min(wanted, 32 + 1 - prompt)


def test_a_window_is_encoded_once_however_often_it_is_decoded():
    runtime = ScriptedRuntime(speech(True, 2))
    decoder = WindowDecoder(runtime, our_tokenizer(True), 448, rows=5)
    first, second = windows(1, 2)
    decoder.detect_languages([first])
    for options in ({}, {"beam": 5}, {"temperature": 0.6, "best_of": 5}):
        decoder.decode([first], DecodingOptions(max_new_tokens=4, **options))
    assert runtime.encoded == [[1]]
    decoder.decode([second], DecodingOptions(max_new_tokens=4, language="en"))
    assert runtime.encoded == [[1], [2]]


@pytest.mark.parametrize("task", ["transcribe", "translate"])
@pytest.mark.parametrize("language", ["de", "haw"])
def test_language_and_task_as_asked(language: str, task: str):
    assert_equal(True, language=language, task=task, max_new_tokens=5, inputs=[1, 2])


def test_detected_languages_have_openais_probabilities():
    script = speech(True, 5)
    decoder = WindowDecoder(ScriptedRuntime(script), our_tokenizer(True), 448, rows=2, windows=2)
    ours = decoder.detect_languages(windows(3, 4))
    _, theirs = ScriptedWhisper(True, script, 448).detect_language(openai_features(3, 4))
    for our_input, their_input in zip(ours, theirs, strict=True):
        assert our_input == pytest.approx(their_input, abs=1e-6)
        assert sum(our_input.values()) == pytest.approx(1, abs=1e-5)
