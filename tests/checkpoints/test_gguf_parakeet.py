"""Parakeets in GGUF files as transcribe.cpp writes them: the folder's tensors, sizes and texts.

transcribe-cpp 0.4.1 loads these files if their subsampling factor is 8; its transcripts differ
where the two largest logits nearly tie.
"""

import numpy as np
import pytest

import kvcast
from checkpoints.parakeet_gguf import write_parakeet
from kit.random_conformers import KINDS, random_conformer, save_conformer
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import KvcastError


def without_separate_biases(monkeypatch, kind):
    """A file says once whether there are biases."""
    model_type, encoder, others = KINDS[kind]
    if not encoder.get("convolution_bias", True):
        encoder = {**encoder, "attention_bias": False}
    monkeypatch.setitem(KINDS, kind, (model_type, encoder, others))


@pytest.mark.parametrize(
    "kind", ["parakeet_ctc", "parakeet_rnnt", "parakeet_tdt", "parakeet_tdt-otherwise"]
)
def test_a_file_is_the_folder(kind, tmp_path, monkeypatch):
    without_separate_biases(monkeypatch, kind)
    model = random_conformer(kind)
    changes = {"stt.parakeet.tdt.max_symbols": 10} if "tdt" in kind else {}
    path = write_parakeet(model, tmp_path / "model.gguf", **changes)
    if "rnnt" in kind:  # of which a file does not say it
        model.config.max_symbols_per_step = 10
    folder = open_checkpoint(save_conformer(model, tmp_path / "folder"))
    file = open_checkpoint(path)
    assert file.dimensions == folder.dimensions
    assert file.tensors.keys() == folder.tensors.keys()
    for name, tensor in folder.tensors.items():
        np.testing.assert_array_equal(file.tensors[name], tensor, err_msg=name)
    samples = np.random.default_rng(0).normal(0, 0.1, 32_000).astype(np.float32)
    texts = [
        kvcast.load(each, runtime="native", quantize="none", threads=1).transcribe(samples).text
        for each in (path, tmp_path / "folder")
    ]
    assert texts[0] == texts[1]
    assert texts[0] or kind == "parakeet_tdt"


REFUSED = {
    "stt.parakeet.encoder.att_context_style must be 'regular'": {
        "stt.parakeet.encoder.att_context_style": "chunked_limited"
    },
    "stt.parakeet.encoder.conv_norm_type must be 'batch_norm'": {
        "stt.parakeet.encoder.conv_norm_type": "layer_norm"
    },
    "stt.frontend.hop_length must be 160": {"stt.frontend.hop_length": 128},
    "stt.frontend.pre_emphasis must be 0.97": {"stt.frontend.pre_emphasis": 0.5},
    "stt.parakeet.head_kind 'aed' is not supported": {"stt.parakeet.head_kind": "aed"},
    "stt.parakeet.joint.hidden must be 24": {"stt.parakeet.joint.hidden": 25},
    "stt.parakeet.tdt.durations is missing": {"stt.parakeet.tdt.durations": None},
    "stt.parakeet.tdt.durations must list": {"stt.parakeet.tdt.durations": ["a"]},
    "tdt.durations must list numbers of positions": {"stt.parakeet.tdt.durations": 2},
    "stt.parakeet.encoder.d_model": {"stt.parakeet.encoder.d_model": None},
    "tokenizer.ggml.blank_token_id": {"tokenizer.ggml.blank_token_id": None},
    "but the configuration asks for": {"stt.parakeet.encoder.d_ff": 64},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_supported_is_one_line(words, tmp_path):
    path = write_parakeet(random_conformer("parakeet_tdt"), tmp_path / "m.gguf", **REFUSED[words])
    with pytest.raises(KvcastError, match=rf"m\.gguf: .*{words}") as raised:
        open_checkpoint(path)
    assert "\n" not in str(raised.value)


def test_adapters_are_for_other_architectures(tmp_path):
    path = write_parakeet(random_conformer("parakeet_ctc"), tmp_path / "m.gguf")
    with pytest.raises(KvcastError, match="no LoRA adapter"):
        kvcast.load(path, adapter=path)
