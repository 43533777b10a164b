"""Heads for words' times: named by files, in openai-whisper's table, or the upper half."""

import base64
import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from whisper.model import ModelDimensions

import whisper
from checkpoints.tiny_whisper import (
    TIED,
    ct2_bytes,
    ct2_folder,
    ct2_variables,
    edit_json,
    random_model,
    save,
)
from kit.dimensions import TINY_EN
from kvcast.checkpoints.source import open_checkpoint
from kvcast.checkpoints.speech.whisper import alignment_heads
from kvcast.errors import KvcastError
from kvcast.families.whisper import Heads, WhisperDimensions
from kvcast_bench.writing.ggml import openai_sizes

# Layers of encoder and decoder, heads, vocabulary, mel bins.
OPENAI = {
    "tiny.en": (4, 4, 6, 51864, 80),
    "tiny": (4, 4, 6, 51865, 80),
    "base.en": (6, 6, 8, 51864, 80),
    "base": (6, 6, 8, 51865, 80),
    "small.en": (12, 12, 12, 51864, 80),
    "small": (12, 12, 12, 51865, 80),
    "medium.en": (24, 24, 16, 51864, 80),
    "medium": (24, 24, 16, 51865, 80),
    "large-v1": (32, 32, 20, 51865, 80),
    "large-v2": (32, 32, 20, 51865, 80),
    "large-v3": (32, 32, 20, 51866, 128),
    "large-v3-turbo": (32, 4, 20, 51866, 128),
}
UPPER_HALF = tuple((layer, head) for layer in (1, 2) for head in range(4))


def sized(encoder: int, decoder: int, heads: int, vocab: int, mels: int) -> WhisperDimensions:
    return replace(
        TINY_EN,
        n_mels=mels,
        vocab_size=vocab,
        d_model=64 * heads,
        encoder_layers=encoder,
        encoder_heads=heads,
        decoder_layers=decoder,
        decoder_heads=heads,
        alignment_heads=(),
    )


def openais(name: str) -> Heads:
    _, layers, heads, *_ = OPENAI[name]
    packed = gzip.decompress(base64.b85decode(whisper._ALIGNMENT_HEADS[name]))
    mask = np.frombuffer(packed, bool).reshape(layers, heads)
    return tuple((int(layer), int(head)) for layer, head in np.argwhere(mask))


@pytest.mark.parametrize("name", OPENAI)
def test_openais_own_models_have_openais_heads(name: str):
    assert alignment_heads(sized(*OPENAI[name]), None, f"openai/whisper-{name}") == openais(name)


def test_none_of_openais_models_is_missing():
    same = {"large": "large-v3", "turbo": "large-v3-turbo"}
    assert {same.get(name, name) for name in whisper._ALIGNMENT_HEADS} == OPENAI.keys()


def test_the_first_two_large_models_are_told_apart_by_name_alone():
    for name in ("large-v1", "large-v2"):
        assert alignment_heads(sized(*OPENAI[name]), None) == ()


def test_a_fine_tuned_model_with_more_words_keeps_its_heads():
    assert alignment_heads(sized(6, 6, 8, 52000, 80), None) == openais("base")


def test_what_files_name_comes_first():
    named = [[3, 5], [0, 1], [3, 5]]
    assert alignment_heads(sized(*OPENAI["tiny"]), named) == ((3, 5), (0, 1))


def test_a_students_files_may_name_its_teachers_heads():
    named = list(map(list, openais("large-v3")))
    assert alignment_heads(sized(32, 2, 20, 51866, 128), named) == ()


def test_a_model_of_other_sizes_has_openais_default():
    sizes = sized(2, 3, 2, 51866, 80)
    default = whisper.Whisper(ModelDimensions(**openai_sizes(sizes))).alignment_heads
    assert sizes.alignment_heads == tuple(map(tuple, default.indices().T.tolist()))


def test_hugging_face_names_them_in_the_generation_config(tmp_path: Path):
    folder = save(random_model(), tmp_path / "model")
    assert open_checkpoint(folder).dimensions.alignment_heads == UPPER_HALF
    edit_json(folder / "generation_config.json", alignment_heads=[[2, 3], [0, 1]])
    assert open_checkpoint(folder).dimensions.alignment_heads == ((2, 3), (0, 1))
    edit_json(folder / "generation_config.json", alignment_heads=[[2, 3], [25, 1]])
    assert open_checkpoint(folder).dimensions.alignment_heads == UPPER_HALF
    edit_json(folder / "generation_config.json", alignment_heads=[2, 3])
    with pytest.raises(KvcastError, match=r"config\.json: .*pairs of a layer and a head"):
        open_checkpoint(folder)


def test_ctranslate2_names_them_in_its_configuration(tmp_path: Path):
    folder = ct2_folder(tmp_path / "ct2", ct2_bytes(ct2_variables(decoder=2), TIED))
    assert open_checkpoint(folder).dimensions.alignment_heads == ((0, 1),)
    (folder / "config.json").unlink()
    assert open_checkpoint(folder).dimensions.alignment_heads == ((1, 0), (1, 1))
