"""Options of subtitles and of folders of recordings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.options import FILLED, Choice, Group, Params

SUBTITLES = Group("subtitles")
FOLDERS = Group("folders")
SENTENCE = "sentence"


@dataclass(frozen=True, kw_only=True)
class SubtitleParams(Params):
    """How words are laid out in subtitles; all options but `cues` are OpenAI's Whisper's."""

    cues: str = SUBTITLES("segment", check=Choice(lambda: ("segment", SENTENCE)))(
        "content of a subtitle: a segment, or a sentence, in two lines of 42 characters "
        "unless max_line_width and max_line_count say otherwise"
    )
    highlight_words: bool = SUBTITLES(False)("underline each word while it is spoken")
    max_line_width: int | None = SUBTITLES(None, least=1, shown="any")(
        "characters in a line, at most"
    )
    max_line_count: int | None = SUBTITLES(None, least=1, shown="any")(
        "lines in a subtitle, at most, which then may hold words of several segments; "
        "needs max_line_width"
    )
    max_words_per_line: int | None = SUBTITLES(None, least=1, shown="any")(
        "words in a subtitle, at most; excludes max_line_width"
    )

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cues == SENTENCE and self.max_words_per_line is not None:
            raise UsageError("cues by sentence and max_words_per_line exclude each other: give one")
        if self.max_line_count is not None and self.max_line_width is None:
            raise UsageError("max_line_count needs max_line_width")
        if self.max_words_per_line is not None and self.max_line_width is not None:
            raise UsageError("max_words_per_line and max_line_width exclude each other: give one")

    @property
    def are_chosen(self) -> bool:
        """Whether words are laid out, so that their times are needed."""
        return bool(self.changed(SUBTITLES))


@dataclass(frozen=True, kw_only=True)
class FolderParams(Params):
    """Which recordings of a folder are transcribed, and how many at once."""

    recursive: bool = FOLDERS(False, flags=("--recursive", "-r"))(
        "also the recordings in folders inside of it"
    )
    glob: str | Sequence[str] = FOLDERS(
        (), check=FILLED, metavar="PATTERN", shown="the extensions of audio and video files"
    )("files that match this pattern, such as *.dat or talks/*.wav; may be repeated")
    newer: str | None = FOLDERS(None, check=FILLED, metavar="FILE|DATE")(
        "only files changed after this file, or after this date"
    )
    workers: int = FOLDERS(1, least=1, most=256)(
        "recordings transcribed at once; the model is in memory once"
    )
    resume: bool = FOLDERS(False)(
        "keep what was done before and is unchanged; what failed is tried again"
    )

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        for pattern in self.patterns:
            if not PurePosixPath(pattern).parts or pattern.startswith("/"):
                raise UsageError(f"glob: {pattern} is not a pattern of paths inside a folder")

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns, of which a file matches at least one; none if extensions decide."""
        return (self.glob,) if isinstance(self.glob, str) else tuple(self.glob)
