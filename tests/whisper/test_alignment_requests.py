"""A window's text is aligned among other requests, over its encoded window."""

import numpy as np
import pytest

from kit.dimensions import SMALL
from kit.models import opened, random_programs, random_tokens, speech
from kit.openai_whisper import openai_attention
from kit.scripted_runtimes import ScriptedRuntime, added, drain, random_script, windows
from kvcast.engine.requests import Prompt
from kvcast.engine.scheduler import Scheduler
from kvcast.runtimes.alignment import attention_by_token, dtw
from kvcast.runtimes.base import Float32
from kvcast.speech.strategies import BeamSearch, Greedy, SearchRequest, Strategy
from kvcast.whisper.requests import AlignmentRequest, Features

VOCAB, EOT = 12, 7
START = [8, 9]


def among(vocab: int, *text: int) -> Float32:
    """Those before the end of text, and others."""
    among_v = np.full(vocab, -np.inf, np.float32)
    among_v[[*range(EOT), *text]] = 0
    return among_v


AMONG = among(VOCAB)


def scripted() -> ScriptedRuntime:
    return ScriptedRuntime(random_script(VOCAB, 0, lambda _: {}))


def searched(window: Features, strategy: Strategy, new: int) -> SearchRequest:
    return SearchRequest(
        Prompt(np.array(START, np.int64), input=window),
        strategy=strategy,
        filters=(),
        eot=-1,  # which is never chosen
        max_new_tokens=new,
    )


def test_probabilities_are_of_text_after_what_came_before():
    runtime, (window,) = scripted(), windows(5)
    text = [1, 6, 2]
    request = AlignmentRequest(window, START, text, frames=2, eot=EOT, among_v=AMONG)
    assert list(Scheduler(runtime, rows=1, capacity=448, inputs=1).run([request])) == [request]
    assert request.done
    assert runtime.aligned == [(5, (*START, *text, EOT))]
    for i, token in enumerate(text):
        logits_v = runtime.script(5, (*START, *text[:i]))[:EOT].astype(float)
        expected = np.exp(logits_v[token]) / np.exp(logits_v).sum()
        assert request.probabilities_n[i] == pytest.approx(expected, rel=1e-5)
    assert request.attention_st.tolist() == [[5, token] for token in (*START, *text, EOT)]


def test_words_that_fine_tuning_added_are_text():
    """They lie after the end of text, and other tokens between."""
    runtime, (window,), added = scripted(), windows(5), [9, 11]
    text = [1, 11, 9, 2]
    request = AlignmentRequest(window, START, text, frames=2, eot=EOT, among_v=among(VOCAB, *added))
    list(Scheduler(runtime, rows=1, capacity=448, inputs=1).run([request]))
    for i, token in enumerate(text):
        logits_v = runtime.script(5, (*START, *text[:i])).astype(float)
        weights_v = np.exp(logits_v[[*range(EOT), *added]])
        expected = np.exp(logits_v[token]) / weights_v.sum()
        assert request.probabilities_n[i] == pytest.approx(expected, rel=1e-5)


def test_an_input_that_is_still_in_its_slot_is_not_encoded_again():
    runtime, (window, other) = scripted(), windows(0, 1)
    scheduler = Scheduler(runtime, rows=2, capacity=448, inputs=2)
    list(scheduler.run([searched(window, Greedy(), 3), searched(other, Greedy(), 3)]))
    aligned = [
        AlignmentRequest(window, START, [1], frames=2, eot=EOT, among_v=AMONG)
        for window in (other, window)
    ]
    list(scheduler.run(aligned))
    assert runtime.encoded == [[0], [1]]
    assert [number for number, _ in runtime.aligned] == [1, 0]


def test_an_input_that_left_its_slot_is_encoded_again():
    runtime, (window, other) = scripted(), windows(0, 1)
    scheduler = Scheduler(runtime, rows=1, capacity=448, inputs=1)
    list(scheduler.run([searched(window, Greedy(), 3), searched(other, Greedy(), 3)]))
    request = AlignmentRequest(window, START, [1], frames=2, eot=EOT, among_v=AMONG)
    list(scheduler.run([request]))
    assert runtime.encoded == [[0], [1], [0]]
    assert request.attention_st[0, 0] == 0


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(3)], ids=repr)
def test_other_requests_are_unchanged_by_alignments(strategy: Strategy):
    """Alignments wait for a row, come and go, and their rows are others' again."""
    alone = searched(windows(0)[0], strategy, 12)
    list(Scheduler(scripted(), rows=strategy.width, capacity=448, inputs=1).run([alone]))
    runtime, (zero, first) = scripted(), windows(0, 1)
    among = searched(zero, strategy, 12)
    later = searched(first, Greedy(), 4)
    aligned = [
        AlignmentRequest(first, START, [i], frames=2, eot=EOT, among_v=AMONG) for i in range(4)
    ]
    scheduler = Scheduler(runtime, rows=strategy.width + 1, capacity=448, inputs=2)
    added(scheduler, among)
    for request in aligned[:2]:
        scheduler.step()
        added(scheduler, request)
    for request in (later, *aligned[2:]):
        added(scheduler, request)
    drain(scheduler)
    assert all(request.done for request in (among, later, *aligned))
    assert among.search.candidates() == alone.search.candidates()
    assert [tokens for _, tokens in runtime.aligned] == [(*START, i, EOT) for i in range(4)]
    assert runtime.encoded == [[0], [1]]


def test_a_text_without_tokens_is_refused():
    with pytest.raises(ValueError, match="no text"):
        AlignmentRequest(windows(0)[0], START, [], frames=2, eot=EOT, among_v=AMONG)


@pytest.mark.parametrize("runtime", ["eager", "onnx", "native"])
def test_a_model_gives_openais_attention_and_probabilities(runtime: str):
    features_mt = speech(1, 1)[0][0]
    start, eot, (text,) = [290, 291, 292], 280, random_tokens(1, 9, seed=2) % 280
    window = Features(features_mt)
    among_v = np.where(np.arange(SMALL.vocab_size) < eot, 0, -np.inf).astype(np.float32)
    request = AlignmentRequest(window, start, text.tolist(), frames=9, eot=eot, among_v=among_v)
    scheduler = Scheduler(opened(SMALL, runtime=runtime), rows=2, capacity=32, inputs=2)
    list(scheduler.run([request]))
    scores_hst, logits_sv = openai_attention(
        random_programs(SMALL), features_mt, np.array([*start, *text, eot])
    )
    np.testing.assert_allclose(request.attention_st, attention_by_token(scores_hst, 9), atol=0.01)
    heard_nt = request.attention_st[len(start) - 1 : -1]
    assert request.begins_n.tolist() == dtw(heard_nt).tolist()
    # As `find_alignment` in openai-whisper's timing.py; no-timestamps is not in its sot_sequence.
    weights = np.exp(logits_sv[len(start) - 1 :, :eot].astype(float))
    expected = (weights / weights.sum(axis=1, keepdims=True))[np.arange(len(text)), text]
    np.testing.assert_allclose(request.probabilities_n, expected, rtol=1e-3)
