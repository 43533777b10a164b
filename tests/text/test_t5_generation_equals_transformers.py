"""Greedy, beam search and its options find what transformers' `generate` finds, on each runtime."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from kit.in_transformers import random_t5, read_t5
from kit.models import open_folder, write
from kit.small_tokenizers import Numbers, random_sources
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder
from kvcast.text.text2text import T5Model

PAD, EOS, VOCAB = 0, 1, 160
STEPS = 10
SOURCES = random_sources(20, VOCAB, longest=9)
NUMBERS = Numbers(VOCAB, end=EOS, after=[EOS], special=[PAD])

Scored = list[tuple[tuple[int, ...], float]]


@cache
def theirs_model() -> Any:
    model = random_t5("T5_11")
    with torch.no_grad():
        model.lm_head.weight[EOS] *= 2.5  # or nothing ends before its length
    return model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, T5Model]:
    read = read_t5(theirs_model())
    programs = TorchModel.from_tensors(read.dimensions, read.tensors)
    folder = tmp_path_factory.mktemp("bundles") / "t5"
    write(programs, folder)
    runtimes = {"eager": EagerEncoderDecoder(programs), "onnx": open_folder(folder)}
    return {kind: T5Model(runtime, NUMBERS, read.dimensions) for kind, runtime in runtimes.items()}


@pytest.fixture(params=["eager", pytest.param("onnx", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest, models: dict[str, T5Model]) -> T5Model:
    return models[request.param]


@dataclass(frozen=True)
class SearchOptions:
    beam: int = 1
    n: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    no_repeat_ngram_size: int | None = None
    forced_bos_token_id: int | None = None

    def keywords(self) -> dict[str, Any]:
        return vars(self) | {"max_new_tokens": STEPS}


@cache
def theirs(asked: SearchOptions) -> list[Scored]:
    texts: list[Scored] = []
    for first in range(0, len(SOURCES), 5):
        sources = [NUMBERS.encode(source) for source in SOURCES[first : first + 5]]
        longest = max(map(len, sources))
        padded = [[*source, *[PAD] * (longest - len(source))] for source in sources]
        mask = [[1] * len(source) + [0] * (longest - len(source)) for source in sources]
        output = theirs_model().generate(
            torch.tensor(padded),
            attention_mask=torch.tensor(mask),
            num_beams=asked.beam,
            num_return_sequences=asked.n,
            repetition_penalty=asked.repetition_penalty,
            min_new_tokens=asked.min_new_tokens,
            no_repeat_ngram_size=asked.no_repeat_ngram_size or 0,
            forced_bos_token_id=asked.forced_bos_token_id,
            max_new_tokens=STEPS,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **(
                {"length_penalty": asked.length_penalty, "early_stopping": asked.early_stopping}
                if asked.beam > 1
                else {}
            ),
        )
        sequences = [_cut(tokens) for tokens in output.sequences[:, 1:].tolist()]
        scores = output.sequences_scores.tolist() if asked.beam > 1 else [None] * len(sequences)
        rows = list(zip(sequences, scores, strict=True))
        texts += [rows[i : i + asked.n] for i in range(0, len(rows), asked.n)]
    return texts


def _cut(tokens: list[int]) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(EOS)] if EOS in tokens else tokens)


def ours(model: T5Model, asked: SearchOptions, batch: int) -> list[Scored]:
    each = model.generate_each(SOURCES, batch=batch, **asked.keywords())
    return [[(text.tokens, text.score) for text in texts] for texts in each]


def assert_equal(texts: list[Scored], expected: list[Scored]) -> None:
    for our, their in zip(texts, expected, strict=True):
        assert [tokens for tokens, _ in our] == [tokens for tokens, _ in their]
        for (_, score), (_, other) in zip(our, their, strict=True):
            assert score == (None if other is None else pytest.approx(other, abs=1e-4))


# test_text_beams.py has further penalties; a batch and a runtime change no text, as others prove.
BEAMS = [
    (SearchOptions(beam=4, n=4, length_penalty=0.6, early_stopping=True), 5),
    (SearchOptions(beam=8, n=8, length_penalty=2.0), 1),
]
OTHERS = [
    (SearchOptions(), 1),
    (SearchOptions(repetition_penalty=1.3), 5),
    (SearchOptions(min_new_tokens=6), 1),
    (SearchOptions(no_repeat_ngram_size=2, forced_bos_token_id=77), 5),
    (SearchOptions(beam=4, n=2, no_repeat_ngram_size=1, forced_bos_token_id=77), 1),
    (SearchOptions(beam=4), 5),
    (SearchOptions(beam=4, n=2, repetition_penalty=1.3), 1),
    (SearchOptions(beam=4, n=3, min_new_tokens=6, length_penalty=0.6), 5),
]


@pytest.mark.parametrize(("asked", "batch"), [*BEAMS, *OTHERS], ids=str)
def test_sequences_and_scores_are_those_of_transformers(
    model: T5Model, asked: SearchOptions, batch: int
):
    texts = ours(model, asked, batch)
    assert_equal(texts, theirs(asked))
    lengths = {len(tokens) for several in texts for tokens, _ in several}
    assert min(lengths) >= asked.min_new_tokens
    assert len(lengths) > 2 or asked.beam < 8
    assert asked.min_new_tokens or min(lengths) < STEPS
