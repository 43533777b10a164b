"""A package without a manifest opens only with trust, by the description inside it."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import kvcast
from kit.errors import one_line
from kvcast.bundle import manifest, packages
from kvcast.bundle.manifest import MANIFEST, FileRecord, Graph, Manifest, read_bundle
from kvcast.bundle.packages import describe_packages, read_on_trust
from kvcast.bundle.writing import seal
from kvcast.cli import main
from kvcast.errors import KvcastError, UsageError

RECORD = "model/extra/kvcast.json"


def write_fake(folder: Path, package: str) -> Path:
    path = folder / package
    path.parent.mkdir(parents=True)
    if package.endswith(".pt2"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/archive_version", "0")
    else:
        path.write_bytes(bytes(1000))
    (folder / "tokenizer.json").write_text("{}")
    described = Manifest(
        family="t5",
        runtime=package.partition("/")[0],
        quantize="none",
        dimensions={},
        cache=(),
        graphs={"decode": Graph(file=package, inputs=("tokens",), outputs=("logits",))},
        source={},
        tools={},
    )
    describe_packages(folder, described)
    seal(folder, described)
    return path


@pytest.fixture(params=packages.PACKAGES)
def package(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_fake(tmp_path / "bundle", request.param)


@pytest.fixture
def unvouched(package: Path) -> Path:
    (package.parents[1] / MANIFEST).unlink()
    return package


def test_a_package_is_hashed_at_each_opening_whatever_is_remembered(package, monkeypatch):
    remembered: list[str] = []

    def sha256_of(path: Path) -> str:
        remembered.append(path.name)
        return FileRecord.of(path).sha256

    monkeypatch.setattr(manifest, "sha256_of", sha256_of)
    read_bundle(package.parents[1])
    assert remembered == ["tokenizer.json"]
    package.write_bytes(package.read_bytes()[:-1] + b"x")
    with pytest.raises(KvcastError, match="was changed since the export"):
        read_bundle(package.parents[1])


def rewrite(package: Path, change: Callable[[str], str | bytes], record: str = RECORD) -> None:
    with zipfile.ZipFile(package) as archive:
        text = archive.read(RECORD).decode()
    package.unlink()
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr(record, change(text))


def test_names_are_those_that_exports_write():
    torch_needed = pytest.importorskip("torch")
    assert torch_needed is not None
    from kvcast.runtimes.aoti.lowering import PACKAGE

    assert PACKAGE in packages.PACKAGES


def test_a_package_describes_itself_as_its_manifest_did(package: Path):
    manifest = read_bundle(package.parents[1])
    assert read_on_trust(package) == manifest
    if package.suffix == ".pte":  # the original bytes are unchanged
        assert package.read_bytes()[:1000] == bytes(1000)


@pytest.mark.parametrize("lone", [False, True])
def test_without_trust_it_is_refused_by_a_line_that_names_it(
    unvouched: Path, lone: bool, error_line
):
    model = str(unvouched if lone else unvouched.parents[1])
    assert main(["generate", "--model", model, "x"]) == 1
    told = error_line()
    assert "can contain native code and has no bundle.json" in told
    assert "give --trust" in told


def test_a_package_is_known_by_its_place_from_wherever_it_is_named(package: Path, monkeypatch):
    monkeypatch.chdir(package.parent)
    assert packages.bundle_of(Path(package.name)) == package.parents[1]


def test_it_runs_on_no_other_runtime(package: Path):
    line = f"exported with --runtime {package.parent.name}: use that, not --runtime onnx"
    for vouched in (True, False):
        if not vouched:
            (package.parents[1] / MANIFEST).unlink()
        for model in (package, package.parents[1]):
            with pytest.raises(UsageError, match=line):
                kvcast.load(model, runtime="onnx", trust=True)


def test_a_model_is_looked_for_once(unvouched: Path, monkeypatch, capsys):
    asked: list[str] = []

    def locate(model: str, on_phase: object) -> Path:
        asked.append(model)
        return Path(model)

    monkeypatch.setattr("kvcast.loading.opening.locate", locate)
    words = ["generate", "--trust", "--model", str(unvouched.parents[1]), "x"]
    assert main(words) == 1  # its dimensions are missing
    assert asked == [str(unvouched.parents[1])]


def test_a_package_that_differs_from_its_manifest_is_refused_with_trust_too(package: Path):
    package.write_bytes(package.read_bytes() + b"x")
    for model in (package, package.parents[1]):
        with pytest.raises(KvcastError, match="changed since the export"):
            kvcast.load(model, trust=True)


def test_a_changed_or_missing_file_beside_it_is_refused(unvouched: Path):
    beside = unvouched.parents[1] / "tokenizer.json"
    beside.write_text("[]")
    with pytest.raises(KvcastError, match="changed since the export"):
        read_on_trust(unvouched)
    beside.unlink()
    with pytest.raises(KvcastError, match=r"lacks tokenizer\.json"):
        read_on_trust(unvouched)


def foreign(package: Path) -> None:
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("model/data/program", "x")


@pytest.mark.parametrize(
    "damage",
    [
        foreign,
        *(
            lambda path, content=content: path.write_bytes(content)
            for content in (b"", b"PK\x05\x06", bytes(5000))
        ),
        lambda path: rewrite(path, lambda text: text + " " * (4 << 20)),
    ],
    ids=["foreign", "empty", "cut", "zeros", "too long"],
)
def test_a_package_without_a_description_is_refused(unvouched: Path, damage: Callable):
    damage(unvouched)
    with pytest.raises(KvcastError, match="it has no description, and there is no"):
        read_on_trust(unvouched)


def test_truncated_anywhere_it_is_one_line(unvouched: Path):
    whole = unvouched.read_bytes()
    for length in range(0, len(whole), 41):
        unvouched.write_bytes(whole[:length])
        one_line(KvcastError, read_on_trust, unvouched)


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 99},
        {"family": ["t5"]},
        {"graphs": {"decode": {"file": ["x"], "inputs": [], "outputs": [], "aliases": {}}}},
        {"graphs": 7},
        {"files": {"tokenizer.json": {"size": "2", "sha256": 1}}},
        {"files": {"../other": {"size": 1, "sha256": "0"}}},
        {"cache": [{"kind": "linear"}]},
        {"more": 1},
        *("", "[" * 100_000, "[]", "\ud800", '{"a": 1e999999}'),
    ],
)
def test_a_malformed_description_is_one_line(unvouched: Path, fields: dict | str):
    def change(text: str) -> bytes:
        changed = fields if isinstance(fields, str) else json.dumps(json.loads(text) | fields)
        return changed.encode(errors="surrogatepass")

    rewrite(unvouched, change)
    one_line(KvcastError, read_on_trust, unvouched)


@pytest.mark.parametrize("name", ["model/../../x", "/x", "model\\..\\x"])
def test_records_that_lead_outside_are_refused(unvouched: Path, name: str):
    with zipfile.ZipFile(unvouched, "a") as archive:
        archive.writestr(name, "x")
    with pytest.raises(KvcastError, match="outside"):
        read_on_trust(unvouched)


def test_another_packages_description_is_refused(unvouched: Path):
    other = next(name for name in packages.PACKAGES if not unvouched.match(name))
    moved = unvouched.parents[1] / other
    moved.parent.mkdir()
    unvouched.rename(moved)
    with pytest.raises(KvcastError, match="describes another file"):
        read_on_trust(moved)


def test_an_equal_export_gives_equal_packages(package: Path, tmp_path: Path):
    again = write_fake(tmp_path / "again", package.relative_to(package.parents[1]).as_posix())
    if package.suffix == ".pte":
        assert again.read_bytes() == package.read_bytes()
    with zipfile.ZipFile(again) as archive, zipfile.ZipFile(package) as other:
        assert archive.read(RECORD) == other.read(RECORD)
