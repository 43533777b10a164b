"""Words are those of openai-whisper's tokenizers."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kit.openai_whisper import openai_tokenizer, openai_tokenizer_json
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast.whisper.word_timestamps import split_words

OURS = {
    multilingual: WhisperTokenizer(openai_tokenizer_json(multilingual), size)
    for multilingual, size in ((True, 51865), (False, 51864))
}
TEXTS = st.lists(
    st.sampled_from(
        [
            *(" Hello", " wor", "ld", ",", ".", " 'tis", "'s", " (", ")", "...", " 42", "%", "-"),
            *(" ", "日本", "語", "。", " Grüße", "é", "👋🏽", "ไทย", "\n", " don't", " U.S.", '"'),
        ]
    )
    | st.text(max_size=3),
    max_size=12,
).map("".join)
LANGUAGES = ["en", "de", "ja", "zh", "th", "yue"]


def both(tokens, language, multilingual):
    theirs = openai_tokenizer(multilingual, num_languages=100, language=language)
    words, word_tokens = theirs.split_to_word_tokens([*tokens, theirs.eot])
    ours = split_words(OURS[multilingual], tokens, language)
    return [(word.text, list(word.tokens)) for word in ours], list(
        zip(words[:-1], word_tokens[:-1], strict=True)
    )


@given(text=TEXTS, language=st.sampled_from(LANGUAGES))
@settings(deadline=None)
def test_texts_are_split_as_theirs(text, language):
    words, expected = both(OURS[True].encode(text), language, True)
    assert words == expected


@given(text=TEXTS)
@settings(deadline=None)
def test_english_models_split_at_spaces(text):
    words, expected = both(OURS[False].encode(text), "en", False)
    assert words == expected


@given(tokens=st.lists(st.integers(0, 50256), max_size=12), language=st.sampled_from(["en", "ja"]))
@settings(deadline=None)
def test_no_token_is_lost_whatever_a_model_says(tokens, language):
    """Tokens may end inside a character; theirs then join the rest to the end of text."""
    words = split_words(OURS[True], tokens, language)
    assert [token for word in words for token in word.tokens] == tokens
    try:
        _, expected = both(tokens, language, True)
    except IndexError:  # theirs, on bytes that are no text
        assume(False)
    if "\ufffd" not in OURS[True].decode(tokens):
        assert [(word.text, list(word.tokens)) for word in words] == expected


def test_a_word_has_its_space_and_marks_are_words():
    tokens = OURS[True].encode(" Well, don't!")
    words = [word.text for word in split_words(OURS[True], tokens, "en")]
    assert words == [" Well", ",", " don", "'t", "!"] or words == [" Well", ",", " don't", "!"]
