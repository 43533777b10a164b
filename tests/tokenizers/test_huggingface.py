"""The call that turns text into ids: as the library's own, and beside other threads."""

import threading
import time

import pytest

from kvcast.tokenizers.vocabulary import ids_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    letters = {letter: number for number, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    pairs = [("1", "1"), ("11", "11"), ("a", "b")]
    words = {"".join(pair): len(letters) + number for number, pair in enumerate(pairs)}
    tokenizer = Tokenizer(models.BPE(vocab=letters | words, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", begin)]
    )
    return tokenizer


@pytest.mark.parametrize("text", ["", " ", "ab 1111 ab", "<s>ab", "é\n漢😀", "a\0b"])
@pytest.mark.parametrize("special", [True, False])
def test_ids_are_those_of_the_library(tokenizer: Tokenizer, text: str, special: bool):
    expected = tokenizer.encode(text, add_special_tokens=special).ids
    assert ids_of(tokenizer, text, add_special_tokens=special) == expected


def test_other_threads_go_on_meanwhile(tokenizer: Tokenizer):
    turns, over = 0, threading.Event()

    def tick() -> None:
        nonlocal turns
        while not over.wait(0.001):
            turns += 1

    other = threading.Thread(target=tick)
    other.start()
    seconds, length = 0.0, 100_000
    while seconds < 0.2:  # on a fast processor the text must be longer
        length *= 2
        before, began = turns, time.perf_counter()
        ids_of(tokenizer, "1" * length, add_special_tokens=False)
        seconds, during = time.perf_counter() - began, turns - before
    over.set()
    other.join()
    assert during > 10
