"""`TextModel`: what its words mean, what comes back, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kit.dimensions import LEAST_DECODER
from kit.letters import END, FIRST, VOCAB, Letters
from kit.scripted_runtimes import Model, RecomputingRuntime, random_model, spelling
from kit.text_models import refused, same
from kvcast.errors import KvcastError
from kvcast.text.model import TextGeneration, TextModel

RANDOM = random_model(VOCAB, 0)
POSITIONS = 40
HOT = {"temperature": 1.0, "max_new_tokens": 12, "logprobs": True}


def text_model(model: Model = RANDOM, **tokenizer: Any) -> TextModel:
    dimensions = replace(LEAST_DECODER, vocab_size=VOCAB, max_positions=POSITIONS)
    return TextModel(RecomputingRuntime(model), Letters(**tokenizer), dimensions)


def speaking(prompt: str, text: str, **tokenizer: Any) -> TextModel:
    letters = Letters(**tokenizer)
    return text_model(spelling({tuple(letters.encode(prompt)): text}, VOCAB, FIRST, END))


def test_a_prompt_gives_a_text():
    text = speaking("hello", "world").generate("hello", logprobs=True)
    assert isinstance(text, TextGeneration)
    assert (text.text, text.finish_reason) == ("world", "stop")
    assert text.tokens == tuple(Letters(begins=False).encode("world"))
    assert len(text.logprobs) == 5
    assert speaking("hello", "world").generate("hello").logprobs is None
    assert text.prompt_tokens == 6
    assert 0 < text.timings.first_token < text.timings.seconds
    assert text.timings.per_token > 0


def test_a_space_between_prompt_and_text_is_not_lost():
    letters = Letters()
    text = [*letters.encode("ab")[1:], END]

    def spaced(written: tuple[int, ...]) -> np.ndarray:
        logits_sv = np.zeros((len(written), VOCAB), np.float32)
        said = [letters.encode(" ")[1], *text]
        logits_sv[-1, said[max(0, len(written) - 3)]] = 10
        return logits_sv

    assert text_model(spaced).generate("he").text == " ab"


def test_several_prompts_give_a_list_in_their_order():
    model = text_model()
    prompts = ["a", "hello there", "how are you?", "b"]
    texts = model.generate(prompts, **HOT)
    assert same(texts) == same([model.generate(prompt, **HOT) for prompt in prompts])


@pytest.mark.parametrize("options", [{"batch": 1}, {"batch": 3, "chunk": 2}, {"chunk": 1}])
def test_neither_batch_nor_chunk_nor_order_changes_a_text(options: dict[str, int]):
    model = text_model()
    prompts = ["a", "hello there", "how are you?", "a", "b.", "a"]
    texts = same(model.generate(prompts, **HOT))
    assert same(model.generate(prompts, **HOT, **options)) == texts
    backwards = same(model.generate(prompts[::-1], **HOT, **options))[::-1]
    unlike = [1, 2, 4]
    assert [backwards[i] for i in unlike] == [texts[i] for i in unlike]
    assert sorted(backwards) == sorted(texts)
    assert len({texts[i] for i in (0, 3, 5)}) == 3, "the same prompt thrice is three samples"


def test_texts_are_there_as_soon_as_their_turn_is_done():
    prompts = ["a", "b", "c"]
    model = text_model()
    each = model.generate_each(prompts, batch=1, max_new_tokens=3)
    assert not model.runtime.calls
    seen = []
    for texts in each:
        assert len(texts) == 1
        seen.append(len(model.runtime.calls))
    assert len(seen) == 3
    assert seen == sorted(set(seen))


def test_n_samples_share_the_prompt_and_differ():
    model = text_model()
    texts = model.generate("hello", n=5, batch=2, **HOT)
    assert len({text.tokens for text in texts}) == 5
    prompt = Letters().encode("hello")
    assert [call.get(0) for call in model.runtime.calls].count(prompt) == 1
    assert same(model.generate(["hello"] * 5, **HOT)) == same(texts)
    several = model.generate(["hello", "you"], n=5, **HOT)
    assert same(several) == same([texts, model.generate("you", n=5, **HOT)])


def test_token_ids_are_prompts_as_text_is():
    model = text_model()
    ids = [Letters().encode(prompt) for prompt in ("hello", "you")]
    for options in ({}, HOT, {"beam": 2}, {"n": 2, **HOT}):
        texts = same(model.generate(["hello", "you"], **options))
        assert same(model.generate(ids, **options)) == texts
        assert same(model.generate([np.array(ids[0]), "you"], **options)) == texts
        assert same(model.generate(ids[0], **options)) == texts[0]
        assert same(model.generate(np.array(ids[0], np.int32), **options)) == texts[0]
    assert "".join(model.stream(ids[0])) == "".join(model.stream("hello"))
    session = model.session(ids[0])
    assert session.tokens == tuple(ids[0])
    assert same(session.generate(Letters(begins=False).encode("you"))) == same(
        session.generate("you")
    )


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([2, VOCAB], f"the model has no token {VOCAB}: give ids from 0 to {VOCAB - 1}"),
        ([[2], [3, -1]], f"the model has no token -1: give ids from 0 to {VOCAB - 1}"),
        ([[2.5]], "a prompt is text, or a sequence of token ids"),
        ([[[2]]], "a prompt is text, or a sequence of token ids"),
        ([[2], []], "the prompt is empty"),
    ],
)
def test_token_ids_that_cannot_be_read_are_refused(prompt: Any, says: str):
    model = text_model()
    refused(lambda: model.generate(prompt), says)
    if not isinstance(prompt[0], list):
        for say in (model.stream, model.session, model.score, model.session("a").generate):
            refused(lambda say=say: say(prompt), says)


def test_a_conversation_is_written_as_text():
    says = "chat needs text: token ids are continued as they are"
    refused(lambda: text_model().generate([2, 3], chat=True), says)


def test_seeds_differ_and_are_reproducible():
    model = text_model()
    texts = [same(model.generate("hello", seed=seed, **HOT)) for seed in (0, 1, 0)]
    assert texts[0] == texts[2] != texts[1]


def test_beams_come_best_first_and_the_first_is_what_n_1_gives():
    model = text_model()
    options = {"beam": 4, "max_new_tokens": 6, "logprobs": True}
    texts = model.generate("hello", n=3, **options)
    assert len({text.tokens for text in texts}) == 3
    assert same(model.generate("hello", **options)) == same(texts[0])
    assert same(model.generate(["you", "hello"], n=3, **options)[1]) == same(texts)
    assert {text.finish_reason for text in texts} == {"length"}
    totals = [sum(text.logprobs) for text in texts]
    assert totals == sorted(totals, reverse=True)
    assert all(text.timings.first_token > 0 for text in texts)


def test_beams_are_searched_in_batches_and_that_changes_nothing():
    model = text_model()
    prompts = ["a", "hello there", "how are you?", "b."]
    options = {"beam": 3, "n": 2, "max_new_tokens": 9, "length_penalty": 0.6}
    texts = same(model.generate(prompts, **options))
    for batch in (1, 3):
        model.runtime.caches.clear()
        assert same(model.generate(prompts, batch=batch, **options)) == texts
        assert [rows for rows, _ in model.runtime.caches] == [3 * batch]


def test_scores_are_those_of_the_search_and_only_with_beams():
    model = text_model()
    options = {"beam": 4, "n": 3, "max_new_tokens": 6, "length_penalty": 2.0}
    for text in model.generate("hello", logprobs=True, **options):
        assert text.finish_reason == "length"
        assert text.score == pytest.approx(sum(text.logprobs) / 6**2)
    assert model.generate("hello", max_new_tokens=6).score is None


def test_no_end_token_comes_before_the_minimum():
    model = speaking("hello", "ab")
    for options in ({}, {"temperature": 0.1}, {"beam": 2}):
        assert model.generate("hello", max_new_tokens=9, **options).text == "ab"
        text = model.generate("hello", max_new_tokens=9, min_new_tokens=6, **options)
        assert (len(text.tokens), text.finish_reason) == (6, "stop")
        assert text.text.startswith("ab")
    pieces = model.stream("hello", max_new_tokens=9, min_new_tokens=6)
    assert "".join(pieces) == "ab"
    assert len(pieces.result.tokens) == 6


def test_the_minimum_gives_way_where_there_is_no_room():
    prompt = "a" * (POSITIONS - 4)
    assert len(text_model().generate(prompt, min_new_tokens=9).tokens) == 3


def test_early_stopping_ends_a_search_sooner():
    model = text_model(random_model(VOCAB, 3, scale=1.0))
    steps = []
    for early_stopping in (False, True):
        model.runtime.calls.clear()
        options = {"beam": 3, "max_new_tokens": 30, "length_penalty": 2.0}
        model.generate("hello", early_stopping=early_stopping, **options)
        steps.append(len(model.runtime.calls))
    assert steps[1] < steps[0]


def test_a_stop_string_ends_beams_too():
    model = speaking("hello", "abcdefgh")
    text = model.generate("hello", beam=3, stop="de", max_new_tokens=8)
    assert (text.text, text.finish_reason) == ("abc", "stop")
    assert len(text.tokens) == 5


def test_streamed_pieces_make_the_text_and_leave_the_result():
    model = text_model()
    for options in (HOT, {"stop": ["a", "b"], **HOT}, {"max_new_tokens": 1}):
        pieces = model.stream("hello", **options)
        with pytest.raises(KvcastError, match="not finished"):
            _ = pieces.result
        taken = list(pieces)
        assert all(taken)
        assert "".join(taken) == pieces.result.text
        assert same(pieces.result) == same(model.generate("hello", **options))


def test_a_piece_is_there_before_the_next_token_is_computed():
    model = speaking("hello", "abc")
    pieces = model.stream("hello")
    assert [(piece, len(model.runtime.calls)) for piece in pieces] == [("a", 1), ("b", 2), ("c", 3)]
    assert pieces.result.text == "abc"


@pytest.mark.parametrize("options", [{}, HOT, {"n": 3, **HOT}, {"beam": 3, "n": 2}])
def test_a_session_continues_as_if_all_had_been_computed_at_once(options: dict[str, Any]):
    model = text_model()
    session = model.session("hello", chunk=2)
    assert session.tokens == tuple(Letters().encode("hello"))
    rests = [" you", "", " there?", "."]
    for _ in range(2):
        whole = model.generate([f"hello{rest}" for rest in rests], **options)
        assert same(session.generate(rests, **options)) == same(whole)
        assert same(session.generate(" you", **options)) == same(whole[0])
    if "n" not in options:
        pieces = session.stream(" you", **options)
        assert "".join(pieces) == whole[0].text
        assert same(pieces.result) == same(whole[0])


def test_a_session_computes_its_prefix_once():
    model = text_model()
    session = model.session("hello")
    model.runtime.calls.clear()
    for rest in ("a", "", "b"):
        session.generate(rest, max_new_tokens=2)
    assert all(len(fed) == 1 for call in model.runtime.calls for fed in call.values())


def test_an_empty_rest_samples_several_without_feeding_anything_first():
    session = text_model(begins=False).session("hello")
    texts = session.generate(n=3, **HOT)
    assert len({text.tokens for text in texts}) == 3
    assert all(text.prompt_tokens == 5 for text in texts)


def test_chat_writes_the_conversation_as_the_model_expects_it():
    model = speaking("s.be kind!u.hello!a.", "hi")
    assert model.generate("hello", chat=True, system="be kind").text == "hi"
    assert "".join(model.stream("hello", chat=True, system="be kind")) == "hi"
    assert speaking("u.hello!a.", "hi").generate("hello", chat=True).text == "hi"


@pytest.mark.parametrize("options", [{"temperature": 1.0}, {}, {"beam": 3}])
@pytest.mark.parametrize("chunk", [1, 3, 128])
def test_a_text_scored_in_one_pass_has_the_log_probabilities_it_was_generated_with(
    options: dict[str, Any], chunk: int
):
    model = text_model()
    text = model.generate("hello", logprobs=True, **options)
    prompt = Letters().encode("hello")
    scores = model.score([*prompt, *text.tokens], chunk=chunk)
    assert scores.dtype == np.float32
    assert len(scores) == len(prompt) + len(text.tokens) - 1
    np.testing.assert_allclose(scores[len(prompt) - 1 :], text.logprobs, atol=1e-5)


def test_a_text_is_scored_as_its_tokens():
    model = text_model()
    assert (model.score("hello") == model.score(Letters().encode("hello"))).all()


def test_the_last_room_is_used_and_then_a_text_ends_for_its_length():
    model = text_model(random_model(VOCAB, 3, scale=0.01))
    prompt = "a" * (POSITIONS - 4)
    text = model.generate(prompt, temperature=1.0)
    assert (len(text.tokens), text.finish_reason) == (3, "length")
    assert text.prompt_tokens == POSITIONS - 3
    assert len(model.generate(prompt, beam=2).tokens) == 3
    assert len(model.session(prompt[:-2]).generate("aa", temperature=1.0).tokens) == 3


ALWAYS = [
    ({"beam": 0}, "beam must be 1 or more, not 0"),
    ({"n": 0}, "n must be 1 or more, not 0"),
    ({"batch": 0}, "batch must be 1 or more, not 0"),
    ({"beam": 4, "temperature": 0.5}, "beam needs temperature 0"),
    ({"beam": VOCAB + 1}, f"beam must be at most {VOCAB}, the model's tokens, not {VOCAB + 1}"),
    ({"length_penalty": 2.0}, "length_penalty needs a beam of 2 or more"),
    ({"early_stopping": True}, "early_stopping needs a beam of 2 or more"),
    ({"n": 2}, "n needs a temperature above 0, or a beam of n or more"),
    ({"beam": 2, "n": 3}, "n must be at most 2, the beam, not 3"),
]
OF_ONE_TEXT = [
    ({"max_new_tokens": 0}, "max_new_tokens must be 1 or more, not 0"),
    ({"min_new_tokens": -1}, "min_new_tokens must be 0 or more, not -1"),
    (
        {"max_new_tokens": 3, "min_new_tokens": 4},
        "min_new_tokens must be from 0 to 3, which is max_new_tokens, not 4",
    ),
    ({"temperature": -1.0}, "temperature must be 0 or more, not -1.0"),
    ({"top_k": 0}, "top_k must be 1 or more, not 0"),
    ({"top_p": 0.0}, "top_p must be above 0 and at most 1, not 0.0"),
    ({"min_p": 2.0}, "min_p must be from 0 to 1, not 2.0"),
    ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0, not 0.0"),
    ({"seed": -1}, "seed must be 0 or more, not -1"),
    ({"chunk": 0}, "chunk must be 1 or more, not 0"),
    ({"stop": ["a", ""]}, "stop is empty"),
    ({"top_k": 2.5}, "top_k must be a whole number, not 2.5"),
    ({"top_p": "all"}, "top_p must be a number, not 'all'"),
]
OF_A_PROMPT = [({"system": "be kind"}, "system needs chat")]


@pytest.mark.parametrize(("options", "says"), [*ALWAYS, *OF_ONE_TEXT, *OF_A_PROMPT])
def test_what_cannot_be_served_is_refused_before_anything_is_computed(
    options: dict[str, Any], says: str
):
    model = text_model()
    refused(lambda: model.generate("hello", **options), says)
    refused(lambda: model.generate_each(["hello"], **options), says)
    if (options, says) not in ALWAYS:
        refused(lambda: model.stream("hello", **options), says)
    assert not model.runtime.calls
    if "system" not in options:
        session = model.session("hello")
        refused(lambda: session.generate("a", **options), says)


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers():
    model = text_model()
    says = f"the prompt has {POSITIONS} tokens and the model takes {POSITIONS - 1} at most"
    prompt = "a" * (POSITIONS - 1)
    refused(lambda: model.generate(["a", prompt]), says)
    refused(lambda: model.generate_each(["a", prompt]), says)
    refused(lambda: model.stream(prompt), says)
    refused(lambda: model.session(prompt), says)
    assert not model.runtime.calls
    refused(lambda: model.session(prompt[2:]).generate("aa"), says)


def test_no_prompts_are_refused():
    model = text_model()
    for say in (model.generate, model.generate_each, model.session("a").generate):
        refused(lambda say=say: say([]), "there is no prompt: give at least one")


def test_an_empty_prompt_is_refused_unless_the_model_has_a_token_to_begin_with():
    model = text_model(begins=False)
    for say in (model.generate, model.stream, model.session):
        refused(lambda say=say: say(""), "the prompt is empty")
    refused(lambda: model.generate(["a", ""]), "the prompt is empty")
    assert text_model().generate("", max_new_tokens=3).prompt_tokens == 1


@pytest.mark.parametrize("text", ["", "a" * POSITIONS])
def test_a_text_that_cannot_be_scored_is_refused(text: str):
    refused(lambda: text_model().score(text), "a score needs 2, and the model takes 40 at most")


def test_turns_become_tokens_that_are_a_prompt():
    model = speaking("u.hello!a.hi!u.and you?!a.", "well")
    turns = {"user": "hello", "assistant": "hi"}
    messages = [{"role": role, "content": content} for role, content in turns.items()]
    messages.append({"role": "user", "content": "and you?"})
    tokens = model.chat_tokens(messages)
    assert tokens.dtype == np.int64
    assert model.generate(tokens).text == "well"
    messages = [{"role": "user", "content": "hello"}]
    assert same(model.generate(model.chat_tokens(messages))) == same(
        model.generate("hello", chat=True)
    )


def test_chat_answers_messages_as_generate_does_their_tokens():
    model = speaking("s.be kind!u.hello!a.", "hi")
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    assert model.chat(messages).text == "hi"
    assert model.chat(messages[1:], system="be kind").text == "hi"
    best, _ = model.chat(messages, beam=2, n=2)
    assert best.text == "hi"


@pytest.mark.parametrize("several", [True, False])
def test_messages_as_a_prompt_are_refused_with_the_way_to_ask(several: bool):
    message = {"role": "user", "content": "hello"}
    prompt = [message] if several else message
    refused(lambda: text_model().generate(prompt), "messages are answered by model.chat(messages)")


def test_a_model_without_a_template_cannot_chat():
    with pytest.raises(KvcastError, match="no chat template"):
        text_model(chat=False).generate("hello", chat=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n": 2, "temperature": 1.0}, "a stream is one text: leave out n"),
        ({"batch": 4}, "a stream is one text: leave out batch"),
        (
            {"beam": 3, "length_penalty": 0.5},
            "a stream is one text: leave out beam and length_penalty",
        ),
    ],
)
def test_a_stream_takes_no_options_about_several_texts(options: dict[str, Any], says: str):
    model = text_model()
    for say in (model.stream, model.session("hello").stream):
        refused(lambda say=say: say("hello", **options), says)
    assert "".join(model.stream("hello", n=1, batch=8)) == model.generate("hello").text


@pytest.mark.parametrize("options", [{}, {"beam": 2}, {"n": 2, "temperature": 1.0}], ids=str)
@pytest.mark.parametrize("prompt", ["hello", ["hello", "a"]], ids=str)
def test_a_text_that_fails_is_its_error(prompt: Any, options: dict[str, Any]):
    model = text_model(lambda written: np.full((len(written), VOCAB), np.nan, np.float32))
    with pytest.raises(KvcastError, match="logits are NaN or infinite"):
        model.generate(prompt, **options)
    with pytest.raises(KvcastError, match="logits are NaN or infinite"):
        list(model.stream("hello"))
