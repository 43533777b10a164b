"""The C++ that Inductor compiled a package's programs of, kept beside it for those who read it.

Running does not need it, so it lies in an archive of its own. Its comments name folders of the
machine that it was made on, and are left out. Knows nothing of what the code does.
"""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from kvcast.errors import KvcastError

SOURCES = "aoti/sources.zip"
_MADE = (1980, 1, 1, 0, 0, 0)  # ZIP's first day: a fixed date makes equal archives equal bytes
_LONGEST = 1 << 28
"""The most bytes of a program's C++; that of a model with 100 layers has a tenth of it."""


def write_sources(folder: Path, files: Mapping[str, Sequence[str]]) -> None:
    """Write the archive under a bundle's folder; `files` are those that Inductor made, by program.

    Of these the ones that end in `.cpp` count.
    """
    with zipfile.ZipFile(folder / SOURCES, "w", zipfile.ZIP_DEFLATED) as archive:
        for program, paths in files.items():
            record = zipfile.ZipInfo(f"{program}.cpp", _MADE)
            record.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(record, "".join(map(_code, paths)))


def _code(path: str) -> str:
    """Return a file's C++ without comments; nothing of another file."""
    if not path.endswith(".cpp"):
        return ""
    lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("//"))


def read_sources(package: Path, program: str) -> str:
    """Return a program's C++: from the archive, or from the package, where others keep it.

    Raises KvcastError if there is none.
    """
    places = (package.parents[1] / SOURCES, package)
    for path in filter(Path.is_file, places):
        try:
            with zipfile.ZipFile(path) as archive:
                if code := "".join(_members(archive, program)):
                    return code
        except (OSError, zipfile.BadZipFile, UnicodeDecodeError, NotImplementedError):
            raise KvcastError(f"{path} cannot be read; export it again") from None
    raise KvcastError(
        f"{package} was exported without the C++ of its programs, which tells what they do: "
        "export it again"
    )


def _members(archive: zipfile.ZipFile, program: str) -> Iterator[str]:
    for record in archive.infolist():
        path = PurePosixPath(record.filename)
        is_own = path.parent.name == program or path.name == f"{program}.cpp"
        if is_own and path.suffix == ".cpp" and record.file_size <= _LONGEST:
            yield archive.read(record).decode()
