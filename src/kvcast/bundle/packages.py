"""Native packages (.pt2, .pte) that describe themselves, for use without a `bundle.json`.

An export also writes the bundle's manifest, without the package's own checksum, into the package:
as one more record of a .pt2, which is a ZIP archive, and as an archive appended to a .pte, whose
reader knows where it ends. A description inside the package cannot prove that the package is
unchanged, so only users who trust a package should open it so. Nothing is unpacked or run here.
"""

import lzma
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path, PurePosixPath

from kvcast.bundle.manifest import (
    LONGEST,
    MANIFEST,
    FileRecord,
    Manifest,
    check_files,
    is_bundle,
    stays_inside,
)
from kvcast.errors import KvcastError
from kvcast.spec.runtimes import RUNTIMES

PACKAGES = tuple(runtime.package for runtime in RUNTIMES.values() if runtime.package)
"""Files of a bundle that can contain native code; they always have these names."""
_RECORD = "extra/kvcast.json"  # where a .pt2 keeps additional files
_MADE = (1980, 1, 1, 0, 0, 0)  # ZIP's first day: a fixed date makes equal packages equal bytes


def describe_packages(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, with checksums of all other files, into the packages of `folder`."""
    for name in PACKAGES:
        if not (folder / name).is_file():
            continue
        others = [path for path in folder.rglob("*") if path.is_file() and path != folder / name]
        records = {path.relative_to(folder).as_posix(): FileRecord.of(path) for path in others}
        text = replace(manifest, files=dict(sorted(records.items()))).to_json()
        # Mode "a" appends an archive to a file that is not one.
        with zipfile.ZipFile(folder / name, "a") as archive:
            root = (archive.namelist() or ["model"])[0].partition("/")[0]
            archive.writestr(zipfile.ZipInfo(f"{root}/{_RECORD}", _MADE), text)


def is_package(path: Path) -> bool:
    return "/".join(path.absolute().parts[-2:]) in PACKAGES and path.is_file()


def bundle_of(path: Path) -> Path:
    """Return the folder itself, or a package's bundle."""
    return path.absolute().parents[1] if is_package(path) else path


def unvouched_package(path: Path, runtime: str | None) -> Path | None:
    """Return the package that a path means, if no manifest verifies it; runtime None: the first."""
    if is_bundle(bundle_of(path)):
        return None
    if is_package(path):
        return path.absolute()
    packages = [path / name for name in PACKAGES if (path / name).is_file()]
    return min(packages, key=lambda package: package.parent.name != runtime, default=None)


def read_on_trust(package: Path) -> Manifest:
    """Return the description inside a package, itself unverified, whose folder has no manifest.

    KvcastError: it has no description, or one that is malformed or of another version, or names
    files that are missing, changed or outside its folder.
    """
    folder = package.parents[1]
    name = package.relative_to(folder).as_posix()
    try:
        manifest = Manifest.from_json(_description(package))
    except KvcastError as error:
        raise KvcastError(f"{package}: {error}") from None
    if {graph.file for graph in manifest.graphs.values()} != {name}:
        raise KvcastError(f"{package} describes another file; export it again")
    check_files(folder, manifest.files)
    return replace(manifest, files={**manifest.files, name: FileRecord.of(package)})


def _description(package: Path) -> str:
    try:
        with zipfile.ZipFile(package) as archive:
            records = archive.infolist()
            if outside := [part.filename for part in records if not stays_inside(part.filename)]:
                raise KvcastError(f"it has a record outside of itself, {outside[0]!r}: refused")
            descriptions = [part for part in records if _is_description(part.filename)]
            if len(descriptions) == 1 and descriptions[0].file_size <= LONGEST:
                with archive.open(descriptions[0]) as stream:
                    return stream.read(LONGEST).decode()
    except OSError as error:
        raise KvcastError(f"cannot be read: {error.strerror or error}") from None
    # Raised by zipfile for damage, and for unknown compression or encryption.
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        ValueError,
        NotImplementedError,
        RuntimeError,
    ):
        pass
    raise KvcastError(f"it has no description, and there is no {MANIFEST}; export it again")


def _is_description(record: str) -> bool:
    return PurePosixPath(record).parts[1:] == PurePosixPath(_RECORD).parts
