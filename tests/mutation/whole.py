"""Whole files to damage: small random models on every runtime, tokenizers, checkpoints, sound."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.bundle.manifest import MANIFEST, Manifest, read_bundle
from kvcast.bundle.writing import seal
from mutation.damage import damaged_bytes, lying_json, lying_parts

Damage = Callable[[np.random.Generator, bytes], bytes]
EXAMPLE = Path(__file__).parents[2] / "examples" / "sense-and-sensibility.flac"


@dataclass(frozen=True)
class Format:
    """What is damaged, and how it is opened.

    Attributes:
        samples: a name for its samples; formats may share them.
        make: writes whole samples, each a folder, under a folder.
        damage: what is done to a file's bytes.
        files: the pattern of those that may be damaged, one of them a case.
        use: opens a sample's folder as a user would and makes a first call.
        seals: whether checksums are made right again afterwards.
        room: bytes that a case may take beyond what the process had; imports are among them.

    """

    samples: str
    make: Callable[[Path], None]
    damage: Damage
    files: str
    use: Callable[[Path], None]
    seals: bool = False
    room: int = 1 << 30

    def written(self) -> Path:
        """Return the folder of whole samples, which are written once for all who share them."""

        def make(folder: Path) -> None:
            half = folder.with_name(f"{folder.name}.half")
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
            self.make(half)
            half.rename(folder)

        from kit.models import once

        return once(f"mutation-{self.samples}", make)

    def write_damaged(self, random: np.random.Generator, samples: Path, target: Path) -> None:
        """Copy one of the samples and damage one of its files."""
        choices = sorted(path for path in samples.iterdir() if path.is_dir())
        sample = choices[int(random.integers(len(choices)))]
        shutil.copytree(sample, target)
        files = sorted(path for path in target.rglob(self.files) if path.is_file())
        file = files[int(random.integers(len(files)))]
        file.write_bytes(self.damage(random, file.read_bytes()))
        if self.seals and file.name != MANIFEST:
            _seal(target, read_bundle(sample))


def _seal(bundle: Path, manifest: Manifest) -> None:
    """Make checksums right."""
    (bundle / MANIFEST).unlink()
    seal(bundle, manifest)


def _lay(folder: Path, samples: Mapping[str, Mapping[str, bytes]]) -> None:
    """Write samples of these files."""
    for name, files in samples.items():
        (folder / name).mkdir(exist_ok=True)
        for file, content in files.items():
            (folder / name / file).write_bytes(content)


def _small_models() -> Mapping[str, tuple[Any, Mapping[str, bytes]]]:
    """Dimensions of a model of each family, and the files of a tokenizer that fits."""
    from kit import small_tokenizers as kit
    from kit.dimensions import EXECUTORCH, MIXED, ROFORMER, SMALL

    decoder = replace(MIXED, vocab_size=512, max_positions=64)
    unilm = replace(ROFORMER, vocab_size=len(kit.VOCABULARY))
    whisper = replace(SMALL, decoder_layers=1, vocab_size=400, alignment_heads=())
    whisper = replace(whisper, source_positions=1500)
    return {
        "decoder": (decoder, kit.text_files(kit.byte_level())),
        "t5": (EXECUTORCH["t5"], kit.spiece_files(kit.spiece_model())),  # other tests lower it too
        "unilm": (unilm, kit.bert_files()),
        "whisper": (whisper, {"tokenizer.json": _whisper_tokenizer()}),
    }


def _whisper_tokenizer() -> bytes:
    """Bytes as tokens, then what steers Whisper, then timestamps."""
    from kit.tiny_gguf import byte_level_alphabet

    names = ("endoftext", "startoftranscript", "translate", "transcribe", "startoflm")
    names += ("startofprev", "nospeech", "notimestamps")
    added = [{"id": 256 + i, "content": f"<|{name}|>"} for i, name in enumerate(names)]
    vocab = {character: i for i, character in enumerate(byte_level_alphabet())}
    return json.dumps(
        {"added_tokens": added, "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    ).encode()


def _write_bundles(runtime: str, *families: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from kit.models import bundle

        for family in families:
            dimensions, text = _small_models()[family]
            shutil.copytree(bundle(dimensions, runtime=runtime), folder / family)
            _lay(folder, {family: text})
            _seal(folder / family, read_bundle(folder / family))

    return make


def _use_model(folder: Path) -> None:
    import kvcast

    model = kvcast.load(folder, threads=1)
    if model.task == "transcribe":
        noise = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
        options: dict[str, Any] = {"no_speech_threshold": None, "logprob_threshold": None}
        list(model.transcribe(noise, temperature=0, max_new_tokens=3, **options))
    else:
        model.generate("house", max_new_tokens=3)
        model.generate("the house is on the hill, and the hill is high.", max_new_tokens=2, beam=2)


def _write_tokenizers(folder: Path) -> None:
    from kit.small_tokenizers import KINDS, spiece_model, text_files
    from kvcast.tokenizers.sentencepiece_model import to_tokenizer_json

    unigram = to_tokenizer_json(spiece_model(), 100, "spiece.model")
    files = {"tokenizer.json": unigram, "text.json": b'{"end_tokens": [1]}'}
    _lay(folder, {name: text_files(make()) for name, make in KINDS.items()} | {"unigram": files})


def _write_source_tokenizers(folder: Path) -> None:
    from kit.small_tokenizers import bert_files, spiece_files, spiece_model

    bpe = spiece_files(spiece_model(model_type="bpe"))
    _lay(folder, {"spiece": spiece_files(spiece_model()), "bpe": bpe, "bert": bert_files()})


def _use_tokenizer(folder: Path) -> None:
    from kvcast.tokenizers.opening import open_text

    tokenizer = open_text({path.name: path.read_bytes() for path in folder.iterdir()})
    tokenizer.encode("Call me Ishmael.  naïve 東京 <s> <|im_start|></s> don't\n\n 3.5%")
    tokens = tokenizer.encode("Some years ago")
    tokenizer.decode(tokens[: 1 << 16])
    stream = tokenizer.stream()
    for token in (*tokens[:100], 0, 1, 5, 10**6):
        stream.push(token)
    stream.finish()


def _write_whisper_tokenizer(folder: Path) -> None:
    _lay(folder, {"whisper": {"tokenizer.json": _whisper_tokenizer()}})


def _use_whisper_tokenizer(folder: Path) -> None:
    from kvcast.whisper.tokenizer import WhisperTokenizer

    tokenizer = WhisperTokenizer((folder / "tokenizer.json").read_bytes(), 400)
    tokens = tokenizer.encode(" Call me Ishmael. naïve <|endoftext|>")
    tokenizer.decode([*tokens, tokenizer.eot])
    assert tokenizer.blank
    assert tokenizer.non_speech_tokens
    tokenizer.sot_sequence("en", "transcribe", timestamps=False)


def _write_checkpoints(*names: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from checkpoints.refusals import WHOLE

        for name in names:
            (folder / name).mkdir()
            WHOLE[name].write(folder / name)

    return make


def _write_gguf(folder: Path) -> None:
    """Write a file of floats, and two with every type of few bits."""
    from kit.coded_gguf import write

    _write_checkpoints("gguf")(folder)
    (folder / "coded").mkdir()
    kinds = {"attn_q": "IQ1_S", "attn_k": "IQ1_M", "attn_v": "IQ2_XXS", "attn_output": "IQ2_XS"}
    kinds |= {"ffn_gate": "IQ2_S", "ffn_up": "IQ3_XXS", "ffn_down": "TQ1_0", "token_embd": "IQ3_S"}
    write(folder / "coded" / "m.gguf", kinds)
    (folder / "factors").mkdir()
    write(folder / "factors" / "m.gguf", {"token_embd": "TQ2_0", "": "NVFP4"}, factors=True)


def _write_moonshine(folder: Path) -> None:
    from kit.moonshine_graphs import write_moonshine_graphs
    from kit.random_moonshines import random_moonshine

    model = random_moonshine("moonshine", vocab_size=300, tie_word_embeddings=False)
    write_moonshine_graphs(model, folder / "voice", "uint8")


def _write_prequantized(folder: Path) -> None:
    """Write the folder of codes of a format of each library."""
    from checkpoints.folder_checks import rewrite_weights
    from checkpoints.test_prequantized import EXPERTS, Mlx, folders, stacked
    from checkpoints.test_prequantized import FORMATS as PREQUANTIZED

    kinds = (
        "GPTQ, groups in another order",
        "AWQ",
        "pack-quantized 4 bits",
        "FP8 in ragged blocks",
    )
    kinds += ("bitsandbytes, scales in codes", "MLX 4 bits", "MLX mxfp4", "torchao int4")
    kinds += ("nvfp4-pack-quantized", "ModelOpt NVFP4", "HQQ 3 bits, axis 1")
    kinds += ("HQQ, whole zero points", "torchao int4 in pairs", "AutoRound 6 bits, as AWQ")
    for number, kind in enumerate(kinds):
        floats, codes = folders(folder / "made", PREQUANTIZED[kind][0])
        shutil.rmtree(floats)
        codes.rename(folder / str(number))
    _, codes = folders(folder / "made", Mlx(), "qwen3_moe", **EXPERTS["qwen3_moe"])
    rewrite_weights(codes, stacked)
    codes.rename(folder / "stacked")
    shutil.rmtree(folder / "made")


def _write_adapter(folder: Path) -> None:
    """Write an adapter beside its model."""
    from checkpoints.refusals import WHOLE
    from kit.adapters import factors, write_peft

    (folder / "llama").mkdir()
    WHOLE["llama"].write(folder / "llama")
    module = "model.layers.1.self_attn.q_proj"
    pair = {module: factors((32, 24), 2)}
    patterns = {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.*": 4}}
    adapter = write_peft(folder / "adapter", pair, **patterns)
    for path in adapter.iterdir():
        path.rename(folder / "llama" / path.name)
    adapter.rmdir()


def _use_adapter(folder: Path) -> None:
    from kvcast.checkpoints.source import open_adapters, open_checkpoint

    for tensor in open_checkpoint(folder, open_adapters(str(folder))).tensors.values():
        np.asarray(tensor)


def _use_checkpoint(folder: Path) -> None:
    """Open it as kvcast's own kernels do, call it, and read what an export reads."""
    from kvcast.checkpoints.source import locate, open_checkpoint
    from kvcast.loading.export_proof import generate_greedily, steps_of
    from kvcast.runtimes.target import TARGETS
    from kvcast.spec.runtimes import RUNTIMES, PrecisionRequest

    path = next(folder.glob("*.gguf"), folder)
    checkpoint = open_checkpoint(locate(str(path)))
    precision = RUNTIMES["native"].choose_opening(PrecisionRequest())
    runtime = TARGETS["native"].open_checkpoint(checkpoint, precision, 1)
    family, sizes = checkpoint.family, checkpoint.dimensions
    probe = family.probe(sizes)
    if (steps := steps_of(family, sizes, probe)) > 0:
        generate_greedily(runtime, probe, min(2, steps))
    for name in checkpoint.tensors:
        np.asarray(checkpoint.tensors[name])


def _write_sound(folder: Path) -> None:
    import soundfile

    from audio.media_files import write_by_pyav

    samples, rate = soundfile.read(EXAMPLE, dtype="float32", frames=32_000)
    stereo = np.stack([samples, samples[::-1]], 1)
    for suffix in ("wav", "flac", "mp3", "ogg", "m4a", "webm"):
        (folder / suffix).mkdir()
        by_pyav = suffix in ("m4a", "webm")
        write_sound = write_by_pyav if by_pyav else soundfile.write
        write_sound(folder / suffix / f"sound.{suffix}", samples if by_pyav else stereo, rate)


def _use_sound(folder: Path) -> None:
    from kvcast.audio.features import open_features

    (path,) = folder.iterdir()
    with open_features(path, 80) as windows:
        windows.window(0)


_ONNX = ("onnx", _write_bundles("onnx", "decoder", "t5", "unilm", "whisper"))
# Compiling takes long, and what reads a package is the same for all families.
_PTE = ("executorch", _write_bundles("executorch", "t5"))
_PT2 = ("aoti", _write_bundles("aoti", "decoder"))
_TEXT = ("text", _write_tokenizers)
_SOURCE_TEXT = ("source-text", _write_source_tokenizers)
_WHISPER_TEXT = ("whisper-text", _write_whisper_tokenizer)
_CHECKPOINT = ("checkpoint", _write_checkpoints("llama", "gemma3_text"))
_GGUF = ("gguf", _write_gguf)
_PREQUANTIZED = ("prequantized", _write_prequantized)
_CTRANSLATE2 = ("ctranslate2", _write_checkpoints("ct2"))
_MOONSHINE = ("moonshine-voice", _write_moonshine)
_BERGAMOT = ("bergamot", _write_checkpoints("bergamot"))
# Packages import torch.
_PACKAGE: dict[str, Any] = {"use": _use_model, "seals": True, "room": 4 << 30}

FORMATS: Mapping[str, Format] = {
    "manifest": Format(*_ONNX, lying_json, MANIFEST, _use_model, seals=True),
    "onnx": Format(*_ONNX, damaged_bytes, "*.onnx*", _use_model, seals=True),
    "pte": Format(*_PTE, damaged_bytes, "*.pte", **_PACKAGE),
    "pte manifest": Format(*_PTE, lying_json, MANIFEST, **_PACKAGE),
    "pt2": Format(*_PT2, damaged_bytes, "model.pt2", **_PACKAGE),
    "pt2 weights": Format(*_PT2, damaged_bytes, "*.safetensors", **_PACKAGE),
    "pt2 manifest": Format(*_PT2, lying_json, MANIFEST, **_PACKAGE),
    "tokenizer.json": Format(*_TEXT, lying_json, "tokenizer.json", _use_tokenizer),
    "text.json": Format(*_TEXT, lying_json, "text.json", _use_tokenizer),
    "spiece, vocab": Format(*_SOURCE_TEXT, damaged_bytes, "[sv]*[elt]", _use_tokenizer),
    "whisper tokenizer": Format(*_WHISPER_TEXT, lying_json, "*.json", _use_whisper_tokenizer),
    "gguf": Format(*_GGUF, damaged_bytes, "*.gguf", _use_checkpoint),
    "model.bin": Format(*_CTRANSLATE2, damaged_bytes, "model.bin", _use_checkpoint),
    "ort": Format(*_MOONSHINE, damaged_bytes, "*.ort", _use_checkpoint),
    "tokenizer.bin": Format(*_MOONSHINE, damaged_bytes, "tokenizer.bin", _use_checkpoint),
    "model.*.bin": Format(*_BERGAMOT, damaged_bytes, "model.*.bin", _use_checkpoint),
    "safetensors": Format(*_CHECKPOINT, damaged_bytes, "*.safetensors", _use_checkpoint),
    "config.json": Format(*_CHECKPOINT, lying_json, "config.json", _use_checkpoint),
    "prequantized": Format(*_PREQUANTIZED, damaged_bytes, "*.safetensors", _use_checkpoint),
    "prequantized config.json": Format(*_PREQUANTIZED, lying_json, "config.json", _use_checkpoint),
    "prequantized parts": Format(*_PREQUANTIZED, lying_parts, "*.safetensors", _use_checkpoint),
    "adapter_config.json": Format(
        "adapter", _write_adapter, lying_json, "adapter_config.json", _use_adapter
    ),
    "sound": Format("sound", _write_sound, damaged_bytes, "sound.*", _use_sound),
}
