"""Languages of a source and its text, and texts sentence by sentence."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MBart50Tokenizer, MBartTokenizer, NllbTokenizer

import kvcast
from kit.errors import one_line
from kit.random_barts import END, random_bart
from kvcast.errors import UsageError
from kvcast.text.text2text import T5Model
from kvcast.tokenizers.languages import Languages
from kvcast.tokenizers.opening import open_text
from text.test_generate import text_model
from text.test_source_models import END as LAST
from text.test_source_models import POSITIONS, answering

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
PIECES = [*SPECIAL, "▁", *"abcdehilmnorstuw", "▁the", "▁house"]
SCORED = [(piece, -float(i)) for i, piece in enumerate(PIECES)]
KINDS_OF_TOKENIZER: dict[str, tuple[Any, tuple[str, str]]] = {
    "mbart": (lambda: MBartTokenizer(vocab=SCORED), ("de_DE", "fr_XX")),
    "mbart50": (lambda: MBart50Tokenizer(vocab=SCORED, src_lang="en_XX"), ("de_DE", "fr_XX")),
    "nllb": (
        lambda: NllbTokenizer(vocab={p: i for i, p in enumerate(PIECES)}, src_lang="eng_Latn"),
        ("deu_Latn", "fra_Latn"),
    ),
}


@pytest.mark.parametrize("kind", KINDS_OF_TOKENIZER)
def test_sources_have_their_languages_as_in_transformers(kind: str, tmp_path: Path):
    make, (source, target) = KINDS_OF_TOKENIZER[kind]
    theirs = make()
    theirs.save_pretrained(tmp_path)
    settings = {"end_tokens": [2], "translates": True}
    files = {"tokenizer.json": (tmp_path / "tokenizer.json").read_bytes()}
    ours = open_text({**files, "text.json": json.dumps(settings).encode()})
    assert ours.languages is not None
    for text in ("the house", "a mouse in the house"):
        usual = ours.encode(text)
        assert usual == theirs(text).input_ids
        theirs.src_lang = source
        assert ours.languages.before(usual, source, target) == theirs(text).input_ids
        assert ours.languages.before(usual, source.split("_")[0], None) == theirs(text).input_ids
        theirs.src_lang = "en_XX" if "mbart" in kind else "eng_Latn"
    assert ours.languages.forced(target) == theirs.convert_tokens_to_ids(target)


def test_a_class_decides_where_the_language_is_whatever_tokenizer_json_says():
    """As in transformers, which makes the template of these classes anew."""
    description = json.loads(KINDS_OF_TOKENIZER["nllb"][0]().backend_tokenizer.to_str())
    first, text, end = description["post_processor"]["single"]
    description["post_processor"]["single"] = [text, end, first]  # as older files have it
    content = {"tokenizer.json": json.dumps(description).encode()}
    about = {"end_tokens": [2], "translates": True, "eos_token": "</s>"}
    theirs = KINDS_OF_TOKENIZER["nllb"][0]()
    for place, legacy in (("first", False), ("last", True)):
        for language in ("eng_Latn", "deu_Latn"):
            told = {"language_place": place, "source_language": language}
            ours = open_text({**content, "text.json": json.dumps(about | told).encode()})
            theirs.legacy_behaviour, theirs.src_lang = legacy, language
            assert ours.encode("the house") == theirs("the house").input_ids
            assert ours.languages is not None
            assert (ours.languages.place, ours.source_language) == (place, language)


CODES = Languages(tokens={"eng_Latn": 3, "zho_Hans": 4, "zho_Hant": 5}, place="first")


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("zho", "support language 'zho': it has zho_Hans, zho_Hant and 1 more"),
        ("en_Latn", "it has eng_Latn, zho_Han[st], zho_Han[st]$"),
        ("x" * 200, "support language 'x{40}': it has"),
    ],
)
def test_an_unknown_language_is_one_line_with_the_nearest(language: str, said: str):
    assert re.search(said, one_line(UsageError, CODES.token, language))
    assert CODES.token("eng") == 3


def translating(place: Any, answers: dict[str, str]) -> T5Model:
    model = answering(answers)
    model.tokenizer.languages = Languages(tokens={"a_A": 2, "b_B": 3}, place=place)
    model.tokenizer.translates = True
    return model


def test_a_target_language_is_the_first_token_of_a_text():
    model = translating("first", {"bc": "xyz", "ac": "pq"})
    texts = [
        model.generate("ac", source_language="b_B", target_language="a_A"),
        "".join(model.stream("ac", source_language="b", target_language="a_A")),
        model.generate(["ac", "ac"], target_language="a", beam=2)[1],
    ]
    assert [getattr(text, "text", text) for text in texts] == ["ayz", "ayz", "aq"]
    with pytest.raises(UsageError, match="does not support language"):
        model.generate("ac", target_language="no")
    with pytest.raises(UsageError, match="name the text's with target_language"):
        model.generate("ac", source_language="b")
    with pytest.raises(UsageError, match="first token"):
        model.generate("ac", target_language="a", forced_bos_token_id=9)


def test_a_target_language_may_precede_the_source():
    model = translating("target", {"bac": "xyz", "ac": "pq"})
    assert model.generate("ac", target_language="b").text == "xyz"
    assert model.generate("ac").text == "pq"
    with pytest.raises(UsageError, match="knows its source's language"):
        model.generate("ac", source_language="a")


def test_a_model_whose_texts_begin_with_a_language_is_for_that_one():
    model = translating("first", {"bc": "xyz"})
    model.tokenizer.languages = Languages(tokens={"a_A": model._sizes.start_token}, place="first")
    for options in ({}, {"target_language": "a_A"}, {"target_language": "a"}):
        assert model.generate("bc", **options).text == "xyz"
    model.tokenizer.languages = Languages(
        tokens={"a_A": model._sizes.start_token, "b_B": 3}, place="first"
    )
    with pytest.raises(UsageError, match="into a_A alone"):
        model.generate("bc", target_language="b")


@pytest.mark.parametrize("option", [{"source_language": "a"}, {"target_language": "a"}])
def test_a_model_of_no_languages_takes_none(option: dict[str, str]):
    with pytest.raises(UsageError, match="does not translate"):
        answering({"a": "b"}).generate("a", **option)


def test_a_model_of_two_languages_needs_none_of_them_named():
    model = answering({"a": "b"})
    model.tokenizer.translates = True
    with pytest.raises(UsageError, match="into one: name neither"):
        model.generate("a", target_language="de")


SENTENCES = {"how are you?": "fine.", "and you?": "so so.", "a. b!": "c."}
LONG = "how are you? and you?   a. b! "


@pytest.mark.parametrize("options", [{}, {"beam": 2}, {"beam": 3, "n": 2}, {"batch": 1}], ids=str)
def test_a_long_source_is_split_into_sentences(options: dict[str, int]):
    model = translating("target", SENTENCES)
    assert len(LONG) > POSITIONS
    texts = model.generate([LONG, "and you?"], logprobs=True, **options)
    whole, alone = (some[0] if isinstance(some, list) else some for some in texts)
    assert (whole.text, alone.text) == ("fine. so so.   c. ", "so so.")
    assert whole.prompt_tokens == sum(len(sentence) + 1 for sentence in SENTENCES)
    assert len(whole.logprobs or ()) == len(whole.tokens)
    assert LAST not in whole.tokens


def test_pieces_of_a_long_source_and_of_one_that_is_split_on_request():
    model = translating("target", SENTENCES)
    pieces = model.stream(LONG)
    assert "".join(pieces) == pieces.result.text == "fine. so so.   c. "
    short = "and you? a. b!"
    assert model.generate(short, sentences=True).text == "so so. c."
    with pytest.raises(UsageError, match="a sentence of the source has 31 tokens and the model"):
        model.generate("a" * 30)


@pytest.mark.parametrize("options", [{}, {"beam": 2}, {"beam": 3, "n": 2}], ids=str)
def test_an_engine_tells_a_text_of_several_parts_as_one(options: dict[str, int]):
    model = translating("target", SENTENCES)
    expected = model.generate(LONG, **options)
    with kvcast.Engine(model, rows=4) as engine:
        job = engine.submit(LONG, **options)
        deltas, result = list(job), job.result(timeout=600)
    texts = result if isinstance(result, list) else [result]
    assert [text.text for text in texts] == [
        text.text for text in (expected if isinstance(expected, list) else [expected])
    ]
    told = {delta.index: "" for delta in deltas}
    for delta in deltas:
        told[delta.index] += delta.text
    assert told == {index: text.text for index, text in enumerate(texts)}
    status = engine.status()
    assert status.prompt_tokens == texts[0].prompt_tokens


def test_without_the_library_one_line_tells_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentencex", None)
    with pytest.raises(UsageError, match=r"kvcast\[translation\]"):
        translating("target", SENTENCES).generate(LONG)


def test_other_models_take_sources_as_they_are():
    with pytest.raises(UsageError, match="at most: shorten it"):
        answering(SENTENCES).generate(LONG)
    with pytest.raises(UsageError, match="leave out sentences"):
        text_model().generate("a", sentences=True)


def test_a_translation_equals_transformers(tmp_path: Path):
    theirs = random_bart("m2m_100")
    tokenizer = NllbTokenizer(
        vocab={p: i for i, p in enumerate(PIECES)},
        extra_special_tokens=["eng_Latn", "deu_Latn", "fra_Latn"],
        src_lang="eng_Latn",
    )
    theirs.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = kvcast.load(tmp_path, runtime="native", quantize="none", threads=1)
    tokenizer.src_lang = "deu_Latn"
    forced = tokenizer.convert_tokens_to_ids("fra_Latn")
    tokens = theirs.generate(
        torch.tensor([tokenizer("the house").input_ids]),
        attention_mask=torch.ones(1, len(tokenizer("the house").input_ids)),
        forced_bos_token_id=forced,
        max_new_tokens=8,
    )[0, 1:].tolist()
    text = model.generate(
        "the house", source_language="deu", target_language="fra", max_new_tokens=8
    )
    assert text.tokens == tuple(tokens[: tokens.index(END)] if END in tokens else tokens)
    assert text.tokens[0] == forced
