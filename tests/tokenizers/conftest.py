"""Every kind of Whisper vocabulary, each beside openai-whisper's own."""

import pytest

from kit.openai_whisper import Pair, openai_tokenizer, openai_tokenizer_json
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.errors import InputMissingError
from kvcast.whisper.tokenizer import WhisperTokenizer


@pytest.fixture(
    scope="session", params=["English", "multilingual", "large-v3", "demo", "demo-base"]
)
def pair(request: pytest.FixtureRequest) -> Pair:
    """The first three are rewritten from openai-whisper's assets, the others real files."""
    match request.param:
        case "English":
            return _pair(openai_tokenizer_json(False), 51864, 99)
        case "multilingual":
            return _pair(openai_tokenizer_json(True), 51865, 99)
        case "large-v3":
            return _pair(openai_tokenizer_json(True, 100), 51866, 100)
        case name:
            try:
                checkpoint = open_checkpoint(locate(name))
            except InputMissingError as error:
                pytest.skip(str(error))
            return _pair(checkpoint.text["tokenizer.json"], checkpoint.dimensions.vocab_size, 99)


def _pair(tokenizer_json: bytes, vocab_size: int, num_languages: int) -> Pair:
    theirs = openai_tokenizer(vocab_size >= 51865, num_languages=num_languages)
    return Pair(WhisperTokenizer(tokenizer_json, vocab_size), theirs, num_languages)
