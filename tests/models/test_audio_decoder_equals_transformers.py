"""Logits and texts of audio decoders equal transformers', read from what it saves."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Tokenizer, WhisperFeatureExtractor
from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor
from transformers.models.voxtral_realtime.feature_extraction_voxtral_realtime import (
    VoxtralRealtimeFeatureExtractor,
)

import kvcast
from kit.audio_decoders import (
    SOUND,
    VOCAB,
    granite_features,
    ids,
    random_audio_decoder,
    random_granite_speech,
    random_voxtral_realtime,
    save_audio_decoder,
    tokenizer_json,
)
from kit.marks import slow
from kit.rounding import tolerance
from kit.small_tokenizers import PROSE
from kvcast.checkpoints.source import fingerprint, open_checkpoint, read_dimensions
from kvcast.families.audio_decoder import AUDIO_DECODER
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder
from kvcast.speech.audio_decoder import without_repetitions
from kvcast.speech.recognition import SpeechContext
from kvcast.tokenizers.opening import open_text
from tokenizers import Tokenizer

SECONDS = (0.4, 1.0, 3.33, 9.1)  # less than a chunk, a chunk, some, more than a window
SETTINGS = {
    "windows of 8 seconds": {},
    "of 1": {"n_window_infer": 100},
    "of 2": {"n_window_infer": 200, "activation_function": "relu", "encoder_attention_heads": 4},
    "an embedding as head": {"tied": True, "text": {"num_key_value_heads": 4}},
}


TERMS = 1000
"""Terms of the sums on a token's way to its logits: some 20 products of 16 to 64 inputs each."""
KINDS = ("qwen3_asr", "voxtral", "granite_speech", "voxtral_realtime")
GRANITES: dict[str, dict[str, Any]] = {
    "one layer": {"num_layers": 1, "context_size": 17, "conv_kernel_size": 6},
    "other sizes": {
        "num_layers": 3,
        "num_heads": 4,
        "dim_head": 12,
        "feedforward_mult": 3,
        "output_dim": 7,
        "conv_expansion_factor": 1,
        "outer": {"window_size": 8, "downsample_rate": 4, "tie_word_embeddings": True},
    },
    "another projector": {
        "max_pos_emb": 40,
        "projector": {
            "hidden_size": 24,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "intermediate_size": 40,
            "hidden_act": "relu",
            "layer_norm_eps": 0.1,
            "cross_attention_frequency": 1,
        },
        "text": {"embedding_multiplier": 2.0, "residual_multiplier": 0.3, "logits_scaling": 4.0},
    },
}


REALTIMES: dict[str, dict[str, Any]] = {
    "another delay": {
        "num_attention_heads": 3,
        "head_dim": 8,
        "num_hidden_layers": 1,
        "intermediate_size": 32,
        "sliding_window": 9,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        "rms_norm_eps": 0.1,
        "hidden_act": "gelu",
        "outer": {
            "default_num_delay_tokens": 3,
            "downsample_factor": 2,
            "audio_length_per_tok": 4,
            "projector_hidden_act": "relu",
        },
    },
    "an embedding as head": {
        "outer": {"tie_word_embeddings": True},
        "text": {
            "sliding_window": 70,
            "num_key_value_heads": 4,
            "rms_norm_eps": 0.05,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
}


def noise(seconds: float, seed: int = 0) -> Any:
    """Noise whose loudness changes."""
    generator = np.random.default_rng(seed)
    samples = generator.normal(0, 0.1, round(16_000 * seconds))
    return (samples * np.abs(np.sin(np.arange(len(samples)) / 3000))).astype(np.float32)


def their_features(kind: str, samples: Any, theirs: Any) -> dict[str, Any]:
    if kind == "voxtral_realtime":
        config = theirs.config
        delay, each = config.default_num_delay_tokens, 160 * config.audio_length_per_tok
        padded = np.pad(samples, (32 * each, -len(samples) % each + (delay + 11) * each))
        extractor = VoxtralRealtimeFeatureExtractor(feature_size=32)
        given = extractor(padded, sampling_rate=16_000, return_tensors="pt")
        return {"input_features": given["input_features"], "num_delay_tokens": delay}
    if kind == "granite_speech":
        return {"input_features": granite_features(samples, 16)}
    if kind == "voxtral":
        extractor = WhisperFeatureExtractor(feature_size=32)
        given = extractor(samples, sampling_rate=16_000, return_tensors="pt")
        return {"input_features": given["input_features"]}
    extractor = Qwen3ASRFeatureExtractor(feature_size=32)
    given = extractor(samples, sampling_rate=16_000, padding=True, return_attention_mask=True)
    mask = given["attention_mask"]
    return {"input_features": given["input_features"], "input_features_mask": mask}


def theirs_of(tokens: list[int]) -> torch.Tensor:
    """A prompt as transformers takes it."""
    return torch.tensor([[SOUND if token >= VOCAB else token for token in tokens]])


def random_model(kind: str, **settings: Any) -> Any:
    makers = {"granite_speech": random_granite_speech, "voxtral_realtime": random_voxtral_realtime}
    return makers.get(kind, partial(random_audio_decoder, kind))(**settings)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """A model of each type, and where it lies."""
    models = {kind: random_model(kind) for kind in KINDS}
    return {
        kind: (model, save_audio_decoder(model, tmp_path_factory.mktemp(kind)))
        for kind, model in models.items()
    }


def opened(folder: Path) -> Any:
    return kvcast.load(folder, runtime="native", quantize="none", threads=1)


def compare(kind: str, theirs: Any, model: Any, runtime: Any) -> None:
    """Compare the logits of ragged recordings in rows side by side, in chunks and steps."""
    inputs = [model.recognition.input(noise(seconds, i)) for i, seconds in enumerate(SECONDS)]
    generator, texts = np.random.default_rng(0), []
    for each in inputs:
        prompt = model.recognition.prompt(each.positions, SpeechContext(prompt="b"))
        new = each.positions - len(prompt) if model.recognition.frame_synchronous else 6
        texts.append([*prompt, *generator.integers(0, 500, new).tolist()])
    rows = list(range(len(inputs)))
    cache = runtime.new_cache(len(rows), max(map(len, texts)), len(rows))
    for row, each in enumerate(inputs):
        cache = runtime.encode(cache, [row], *type(each).batch([each]))
    cache = runtime.reset(cache, rows, rows)
    logits: list[list[Any]] = [[] for _ in rows]
    for first in range(0, max(map(len, texts)), 17):
        chunks = {row: np.array(texts[row][first : first + 17]) for row in rows}
        for size in {len(chunk) for chunk in chunks.values()} - {0}:
            taking = [row for row in rows if len(chunks[row]) == size]
            given = [chunks[row] for row in taking]
            parts, cache = runtime.decode(given, cache, rows=taking, positions=range(size))
            for row, part in zip(taking, parts, strict=True):
                logits[row].append(part.copy())
    for row, seconds in enumerate(SECONDS):
        features = their_features(kind, noise(seconds, row), theirs)
        with torch.no_grad():
            expected = theirs(input_ids=theirs_of(texts[row]), **features).logits[0].numpy()
        assert expected.std() > 0.3
        allowed = tolerance(TERMS, np.abs(expected).max())
        np.testing.assert_allclose(np.concatenate(logits[row]), expected, atol=allowed, rtol=0)


OTHERS = {
    **{f"qwen, {name}": ("qwen3_asr", settings) for name, settings in SETTINGS.items()},
    **{f"granite, {name}": ("granite_speech", settings) for name, settings in GRANITES.items()},
    **{f"realtime, {name}": ("voxtral_realtime", each) for name, each in REALTIMES.items()},
}
SLOW = ("granite, one layer", "granite, another projector", "realtime, an embedding as head")


@pytest.mark.parametrize("name", [slow(name) if name in SLOW else name for name in OTHERS])
def test_logits_after_ragged_audio_in_chunks(name: str, tmp_path: Path):
    kind, settings = OTHERS[name]
    theirs = random_model(kind, **settings)
    model = opened(save_audio_decoder(theirs, tmp_path))
    compare(kind, theirs, model, model.runtime)


@pytest.mark.parametrize("kind", KINDS)
def test_eager_gives_these_logits_too(kind: str, folders: Any):
    theirs, folder = folders[kind]
    checkpoint = open_checkpoint(folder)
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    assert shapes == AUDIO_DECODER.tensor_shapes(checkpoint.dimensions)
    dimensions = checkpoint.dimensions
    assert replace(read_dimensions(folder), tied=dimensions.tied) == dimensions
    executed = TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    model = opened(folder)
    compare(kind, theirs, model, EagerEncoderDecoder(executed))
    if kind != "qwen3_asr":
        compare(kind, theirs, model, model.runtime)


@pytest.mark.parametrize(
    "fault", [{"norm_eps": 1e-4}, {"attention_scale": 0.2501}, {"attention_scale": 1.0}], ids=str
)
def test_a_wrong_constant_exceeds_the_tolerance(fault: dict[str, float], folders: Any):
    theirs, folder = folders["voxtral"]
    checkpoint = open_checkpoint(folder)
    wrong = replace(checkpoint.dimensions, **fault)
    executed = TorchModel.from_tensors(wrong, checkpoint.tensors)
    model = opened(folder)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        compare("voxtral", theirs, model, EagerEncoderDecoder(executed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("language", [None, "en"])
def test_a_transcription_has_the_tokens_of_generate(kind: str, language: Any, folders: Any):
    theirs, folder = folders[kind]
    model = opened(folder)
    samples = noise(6.2, 3)
    [segment] = model.transcribe(samples, language=language, max_new_tokens=20)
    recognition = model.recognition
    positions = recognition.input(samples).positions
    prompt = theirs_of(recognition.prompt(positions, SpeechContext(language=language)))
    with torch.no_grad():
        whole = theirs.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            **their_features(kind, samples, theirs),
            max_new_tokens=20,
            do_sample=False,
        )
    expected = whole[0, prompt.shape[1] :].tolist()
    ends = [i for i, token in enumerate(expected) if token in recognition.ends]
    assert list(segment.tokens) == expected[: ends[0] if ends else None]
    assert (segment.start, segment.end) == (0, 6.2)


def test_qwens_prompt_is_the_published_one(folders: Any):
    model = opened(folders["qwen3_asr"][1])
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json()))
    tokens = model.recognition.prompt(3, SpeechContext(language="de", prompt="Ahab, Queequeg"))
    first = tokens.index(VOCAB)
    assert tokens[first : first + 3] == [VOCAB, VOCAB + 1, VOCAB + 2]
    before = "<|im_start|>system\nAhab, Queequeg<|im_end|>\n<|im_start|>user\n<|audio_start|>"
    after = "<|audio_end|><|im_end|>\n<|im_start|>assistant\nlanguage German<asr_text>"
    assert tokens[:first] == tokenizer.encode(before, add_special_tokens=False).ids
    assert tokens[first + 3 :] == tokenizer.encode(after, add_special_tokens=False).ids


TRANSLATED = SpeechContext(translates=True, prompt="a, b")


def test_granites_prompt_is_the_templates_with_the_audio_before_the_question(folders: Any):
    model = opened(folders["granite_speech"][1])
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json()))

    def encoded(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    before = (
        "<|role|>system: Knowledge Cutoff Date: April 2024.\nToday's Date: April 9, 2025.\n"
        "You are Granite, developed by IBM. You are a helpful AI assistant<|im_end|>\n"
        "<|role|>user: "
    )
    prompt, good = model.recognition.prompt, "with proper punctuation and capitalization."
    for context, asked in (
        (SpeechContext(language="de"), "can you transcribe the speech into a written format?"),
        (SpeechContext(prompt="Ahab"), "transcribe the speech to text. Keywords: Ahab"),
        (SpeechContext(translates=True), f"translate the speech to English {good}"),
        (TRANSLATED, "translate the speech to English. Keywords: a, b"),
    ):
        after = encoded(f"{asked}<|im_end|>\n<|role|>assistant:")
        assert prompt(2, context) == [*encoded(before), VOCAB, VOCAB + 1, *after]
    spelt = prompt(2, SpeechContext(prompt="<|role|>"))  # and not meant
    assert spelt.count(ids()["<|role|>"]) == 3


def test_granites_own_adapter_is_merged(folders: Any, tmp_path: Path):
    folder = shutil.copytree(folders["granite_speech"][1], tmp_path / "whole")
    config = json.loads((folder / "config.json").read_text()) | {"has_lora_adapter": True}
    (folder / "config.json").write_text(json.dumps(config))
    plain, digest = open_checkpoint(folder), fingerprint(folder)
    assert "has_lora_adapter" in open_text(plain.text).notices[0]
    name, module = "decoder.layers.1.attention.qkv.weight", "layers.1.self_attn.q_proj"
    generator = np.random.default_rng(0)
    factors = {"A": (2, 48), "B": (64, 2)}
    lora = {side: torch.tensor(generator.normal(size=size)) for side, size in factors.items()}
    prefix = f"base_model.model.language_model.model.{module}.lora_"
    tensors = {f"{prefix}{side}.weight": factor.float() for side, factor in lora.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    merged = open_checkpoint(folder)
    assert list(open_text(merged.text).notices) == []
    assert fingerprint(folder) != digest
    expected = plain.tensors[name].copy()
    expected[:64] += (3 * lora["B"] @ lora["A"]).numpy()
    np.testing.assert_allclose(merged.tensors[name], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["granite_speech", "voxtral_realtime"])
def test_a_model_in_int8_transcribes(kind: str, folders: Any):
    model = kvcast.load(folders[kind][1], runtime="native", threads=1)
    [segment] = model.transcribe(noise(2.0), max_new_tokens=5, language="fr")
    assert 0 < len(segment.tokens) <= 5
    assert (segment.language, segment.end) == ("fr", 2.0)


def test_a_realtime_text_is_as_long_as_its_audio_and_silence(folders: Any):
    model = opened(folders["voxtral_realtime"][1])
    recordings = [noise(seconds, 5) for seconds in (3.01, 0.08, 5.2)]
    alone = [list(model.transcribe(each)) for each in recordings]
    for [segment], each in zip(alone, recordings, strict=True):
        # 80 ms each, 6 of delay less those of the prompt, and 11 more.
        most = -(-len(each) // 1280) + 11 - 1 + 6
        ended = set(model.recognition.ends) & set(segment.tokens)
        assert len(segment.tokens) <= most
        assert not ended
    together = model.transcribe_all(recordings, batch=3)
    assert [list(each) for each in together] == alone
    assert all(not each.notices for each in together)
    with kvcast.Engine(model, rows=2) as engine:
        jobs = [engine.submit(each) for each in recordings]
        assert [list(job.result().segments) for job in jobs] == alone
    [cut] = model.transcribe(recordings[0], max_new_tokens=3)
    assert cut.tokens == alone[0][0].tokens[:3]


def test_qwens_language_is_read_from_its_answer(folders: Any):
    model = opened(folders["qwen3_asr"][1])
    tokens = model.tokenizer.encode_ready("language German<asr_text>Nennt mich Ismael.")
    result = model.recognition.read(tokens, SpeechContext())
    assert (result.language, result.text) == ("de", "Nennt mich Ismael.")
    nothing = model.tokenizer.encode_ready("language None<asr_text>")
    assert model.recognition.read(nothing, SpeechContext()).text == ""
    plain = model.recognition.read(model.tokenizer.encode("Ismael"), SpeechContext(language="de"))
    assert (plain.language, plain.text) == ("de", "Ismael")


def test_endless_repetitions_are_one():
    assert without_repetitions("a" * 30) == "a"
    assert without_repetitions("so " + "ha " * 40 + "end") == "so ha end"
    assert without_repetitions("no no no") == "no no no"


def as_published(folder: Path, to: Path) -> Path:
    """Write a model as Qwen's own files have it: under `thinker`, its tokenizer in parts."""
    names = {
        "model.language_model.": "thinker.model.",
        "model.multi_modal_projector.linear_": "thinker.audio_tower.proj",
        "model.audio_tower.": "thinker.audio_tower.",
        "lm_head.": "thinker.lm_head.",
    }
    tensors = load_file(folder / "model.safetensors")
    for old, new in names.items():
        tensors = {
            new + name.removeprefix(old) if name.startswith(old) else name: tensor
            for name, tensor in tensors.items()
        }
    save_file(tensors, to / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    parts = {name: config.pop(name) for name in ("audio_config", "text_config")}
    parts["text_config"]["model_type"] = "qwen3_asr_text"
    parts["text_config"]["rope_scaling"] = {"mrope_section": [4, 2, 2], "rope_type": "default"}
    (to / "config.json").write_text(json.dumps({**config, "thinker_config": parts}))
    description = tokenizer_json()
    (to / "vocab.json").write_text(json.dumps(description["model"]["vocab"]))
    merges = [" ".join(pair) for pair in description["model"]["merges"]]
    (to / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    added = {str(token.pop("id")): token for token in description["added_tokens"]}
    settings = {"eos_token": "<|im_end|>", "added_tokens_decoder": added}
    (to / "tokenizer_config.json").write_text(json.dumps(settings))
    (to / "generation_config.json").write_bytes((folder / "generation_config.json").read_bytes())
    return to


def test_qwens_own_files_are_the_same_model(folders: Any, tmp_path: Path):
    folder = folders["qwen3_asr"][1]
    converted, published = open_checkpoint(folder), open_checkpoint(as_published(folder, tmp_path))
    assert published.dimensions == converted.dimensions
    assert set(published.tensors) == set(converted.tensors)
    for name in converted.tensors:
        np.testing.assert_array_equal(published.tensors[name], converted.tensors[name])
    ours = open_text(published.text)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    merges = [tuple(line.split()) for line in (tmp_path / "merges.txt").read_text().split("\n")[1:]]
    theirs = Qwen2Tokenizer(vocab=vocabulary, merges=merges)
    for text in PROSE:
        assert ours.encode(text) == theirs.encode(text)
    assert ours.end_tokens == open_text(converted.text).end_tokens
    assert ours.encode_ready("<|im_end|><asr_text>") == [ids()["<|im_end|>"], ids()["<asr_text>"]]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_read_the_audio_of_their_own_slots(kind: str, folders: Any):
    """Rows lie in no order; each recording is read by another number of them, as beams do."""
    model = opened(folders[kind][1])
    runtime, recognition = model.runtime, model.recognition
    inputs = [recognition.input(noise(seconds, i)) for i, seconds in enumerate((0.5, 2.0, 1.2))]
    prompts = [np.array(recognition.prompt(each.positions, SpeechContext())) for each in inputs]
    alone = []
    for each, prompt in zip(inputs, prompts, strict=True):
        cache = runtime.encode(runtime.new_cache(1, 500, 1), [0], *type(each).batch([each]))
        alone.append(runtime.decode([prompt], runtime.reset(cache, [0], [0]))[0][0, 0].copy())
    assert np.abs(alone[0] - alone[1]).max() > 0.1
    reads = [2, 0, 1, 2, 0, 2]
    cache = runtime.new_cache(len(reads), 500, len(inputs))
    for slot, each in enumerate(inputs):
        cache = runtime.encode(cache, [slot], *type(each).batch([each]))
    cache = runtime.reset(cache, range(len(reads)), reads)
    logits, cache = runtime.decode([prompts[slot] for slot in reads], cache)
    for row, slot in enumerate(reads):
        np.testing.assert_allclose(logits[row, 0], alone[slot], atol=1e-4)
    cache = runtime.reset(runtime.reset(cache, [1, 4]), [1], [2])
    again, _ = runtime.decode([prompts[2]], cache, rows=[1])
    np.testing.assert_allclose(again[0, 0], alone[2], atol=1e-4)
