"""Cut recordings at pauses into short clips with their words: the folder in docs/benchmarks.md.

Every cut of 2 to 14 seconds between two pauses can be a clip; 200 of them are drawn, some twice,
and made quieter by up to 12 dB, so that no two clips are the same samples. Whisper base says where
words are; a clip's text is that part of the recording's own.

    python benchmarks/scripts/cut_clips.py FOLDER RECORDING…     (a .txt beside each)

Needs kvcast[demo] and soundfile.
"""

import re
import sys
from difflib import SequenceMatcher
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
from numpy.typing import NDArray

import kvcast
from kvcast.audio.decode import open_audio

RATE = 16_000
CLIPS = 200
SHORTEST, LONGEST, PAUSE = 2.0, 14.0, 0.2  # seconds
QUIETEST = -12.0  # dB


class Cut(NamedTuple):
    """Where a recording can be cut: after so many words of its text, at so many seconds."""

    words: int
    seconds: float


class Recording(NamedTuple):
    """Samples [n] at RATE, the words said in them, and where they can be cut."""

    samples: NDArray[np.float32]
    words: list[str]
    cuts: list[Cut]


def main() -> None:
    """Write the clips."""
    folder, *paths = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    model = kvcast.load("demo-base")
    recordings = [opened(model, path) for path in paths]
    pieces = [
        (recording, begin, end)
        for recording in recordings
        for begin, end in combinations(recording.cuts, 2)
        if SHORTEST <= end.seconds - begin.seconds <= LONGEST
    ]
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(pieces), CLIPS, replace=len(pieces) < CLIPS)
    for number, (recording, begin, end) in enumerate(pieces[i] for i in chosen):
        samples = recording.samples[int(begin.seconds * RATE) : int(end.seconds * RATE)]
        quieter = samples * 10 ** (rng.uniform(QUIETEST, 0) / 20)
        soundfile.write(folder / f"{number:03}.flac", quieter, RATE)
        said = " ".join(recording.words[begin.words : end.words])
        (folder / f"{number:03}.txt").write_text(f"{said}\n", encoding="utf-8")


def opened(model: kvcast.WhisperModel, path: Path) -> Recording:
    """Return a recording with the places between words where it is quiet for a while."""
    samples = np.concatenate(list(open_audio(path).blocks()))
    said = path.with_suffix(".txt").read_text(encoding="utf-8").split()
    heard = [
        word
        for segment in model.transcribe(path, word_timestamps=True, beam=5)
        for word in segment.words or ()
    ]
    alike = SequenceMatcher(
        None, [plain(word.word) for word in heard], [plain(word) for word in said], autojunk=False
    )
    times = {
        match.b + i: heard[match.a + i]
        for match in alike.get_matching_blocks()
        for i in range(match.size)
    }
    cuts = [
        Cut(words=after, seconds=(times[before].end + times[after].start) / 2)
        for before, after in pairwise(range(len(said)))
        if {before, after} <= times.keys() and times[after].start - times[before].end >= PAUSE
    ]
    whole = Cut(words=len(said), seconds=len(samples) / RATE)
    return Recording(samples, said, [Cut(words=0, seconds=0.0), *cuts, whole])


def plain(word: str) -> str:
    """Return a word's letters and digits."""
    return re.sub(r"[^a-z0-9]", "", word.lower())


if __name__ == "__main__":
    main()
