"""Servers and their clients: texts that share a beginning, and short recordings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from kvcast.errors import KvcastError, UsageError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.whisper import WhisperDimensions
from kvcast.inspect.work import Work
from kvcast_bench import turns
from kvcast_bench.backend import Samples
from kvcast_bench.clients import ServerAnswer, ServingTurn
from kvcast_bench.models import BenchModel, CausalModel, SpeechModel
from kvcast_bench.recording import word_error
from kvcast_bench.turns import Results, Trial
from kvcast_bench.workload import OptionDefaults, Table, Workload, of_trial

TEXTS, CLIPS = "texts", "clips"
TOKEN, GAP, CLIP = "token", "gap", "clip"

# Each is one token after a space in the vocabularies of published models.
_WORDS = """
the of and to in is that it was for on are with as at be this have from or had by word but what
some we can out other were all there when up use your how said an each she which do their time if
will way about many then them would write like so these her long make thing see him two has look
more day could go come did number sound no most people my over know water than call first who may
down side been now find any new work part take get place made live where after back little only
round man year came show every good me give our under name very through just form great think say
help low line before turn cause same mean differ move right boy old too does tell set three want air
well also play small end
"""
_VOCABULARY = _WORDS.split()
_RATE = 16_000
_FRAME = 320  # samples of which the quietest are where a recording is cut
_WINDOW = 2.0  # seconds before the longest clip in which that is sought
_SHORTEST = 1.0  # of a last clip, in seconds


@dataclass(frozen=True, kw_only=True)
class _Serving(Workload):
    clients: Sequence[int]
    requests: int

    @property
    @override
    def step_work(self) -> Work:
        raise NotImplementedError  # a server's work has no floor

    def _facts(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            **_percentiles("first", [first for answer in answers for first in answer["firsts"]]),
            "clients_share": sum(answer["processor"] for answer in answers)
            / sum(answer["seconds"] for answer in answers),
        }


@dataclass(frozen=True, kw_only=True)
class ServedTexts(_Serving):
    """Prompts that begin with the same text, continued greedily."""

    dimensions: DecoderDimensions
    prompt: int
    shared: int
    new: int

    name: ClassVar[str] = "served-texts"
    kind: ClassVar[str] = "decoder-only models"
    model: ClassVar[type[BenchModel]] = CausalModel
    options: ClassVar[OptionDefaults] = {
        "prompt": (512, "words of each prompt, which are about as many tokens"),
        "shared": (256, "of them at the beginning, the same in all prompts"),
        "new": (128, "tokens of each text"),
    }
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {TEXTS: (TOKEN, GAP)}

    def __post_init__(self) -> None:
        if self.shared >= self.prompt:
            raise UsageError(f"shared must be below the prompt's {self.prompt}, not {self.shared}")
        if self.new == 1:
            raise UsageError("new must be 2 or more: there is nothing between one token")
        most = self.dimensions.max_positions
        if self.prompt + self.new > most:
            raise UsageError(
                f"{self.prompt} + {self.new} tokens are more than the {most} that the model takes"
            )

    @property
    @override
    def settings(self) -> Mapping[str, Any]:
        return {
            "clients": list(self.clients),
            "requests": self.requests,
            "prompt": self.prompt,
            "shared": self.shared,
            "new": self.new,
            "decoding": "greedy",
            "end_tokens": "held back",
            "prompts": "words, new ones in each turn, the same for all servers",
        }

    @override
    def tables(self) -> Sequence[Table]:
        return [
            Table(
                trials=[{"measure": TEXTS, "clients": clients} for clients in self.clients],
                metrics={TOKEN: "a token ms", GAP: "between tokens ms"},
                places={"clients": "clients"},
                facts={
                    "tokens/s": ("tokens_per_second", ".1f"),
                    "first s p50": ("first_p50", ".3f"),
                    "p99": ("first_p99", ".3f"),
                    "between s p50": ("between_p50", ".4f"),
                    "p99 ": ("between_p99", ".4f"),
                    "prompt": ("prompt_tokens", ".0f"),
                    "cached": ("cached_tokens", ".0f"),
                    "clients' share": ("clients_share", ".1%"),
                },
            )
        ]

    @override
    def run(self, backend: Any, trial: Trial) -> turns.TurnAnswer:
        prompts = self._prompts(backend.turns, trial["clients"])
        backend.turns += 1
        served: ServingTurn = backend.serve_texts(prompts, self.new)
        counts = {answer.tokens for answer in served.answers}
        if counts != {self.new}:
            raise KvcastError(f"gave {sorted(counts)} tokens where {self.new} were asked")
        answers = served.answers
        return {
            TOKEN: served.seconds / sum(answer.tokens for answer in answers),
            GAP: mean((answer.last - answer.first) / (answer.tokens - 1) for answer in answers),
            **_times(served),
            "between": [gap for answer in answers for gap in np.diff(answer.times).tolist()],
            "prompt_tokens": mean(answer.prompt_tokens for answer in answers),
            "cached_tokens": _mean_if_known(answers),
            "text": answers[0].text,
        }

    @override
    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        result = of_trial(results, trial)[name]
        return {
            "tokens_per_second": 1 / median(result.series(TOKEN)),
            **self._facts(result.answers),
            **_percentiles(
                "between", [gap for answer in result.answers for gap in answer["between"]]
            ),
            "prompt_tokens": result.last["prompt_tokens"],
            "cached_tokens": result.last["cached_tokens"],
            "text": result.last["text"],
        }

    def _prompts(self, turn: int, clients: int) -> list[list[str]]:
        # The same text in every turn, then new words.
        shared, rng = np.random.default_rng(0), np.random.default_rng((1, turn))
        beginning = shared.choice(_VOCABULARY, self.shared).tolist()

        def prompt() -> str:
            return " ".join(
                [*beginning, *rng.choice(_VOCABULARY, self.prompt - self.shared).tolist()]
            )

        return [[prompt() for _ in range(self.requests)] for _ in range(clients)]


@dataclass(frozen=True, kw_only=True)
class ServedSpeech(_Serving):
    """Clips of a recording, cut where it is quiet."""

    dimensions: WhisperDimensions
    language: str
    recordings: Sequence[Samples]
    audio: Mapping[str, Any]
    references: Sequence[str] | None = None
    beam: int = 1
    clip: int = 10

    name: ClassVar[str] = "served-speech"
    kind: ClassVar[str] = "Whispers"
    model: ClassVar[type[BenchModel]] = SpeechModel
    options: ClassVar[OptionDefaults] = {
        "clip": (10, "seconds of a clip at most"),
        "beam": (1, "beams; 1 is greedy"),
    }
    words: ClassVar[Mapping[str, Any]] = {"audio": None, "reference": None, "language": "en"}
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {CLIPS: (CLIP,)}

    def __post_init__(self) -> None:
        if not self._clips():
            raise UsageError(f"the recording must have {_SHORTEST:.0f} s or more")

    @property
    @override
    def settings(self) -> Mapping[str, Any]:
        return {
            "clients": list(self.clients),
            "requests": self.requests,
            "audio": dict(self.audio),
            "clips": len(self._clips()),
            "clip": self.clip,
            "language": self.language,
            "beam": self.beam,
            "input": "WAV, mono 16 kHz, 16 bits",
        }

    @override
    def tables(self) -> Sequence[Table]:
        return [
            Table(
                trials=[{"measure": CLIPS, "clients": clients} for clients in self.clients],
                metrics={CLIP: "a clip ms"},
                places={"clients": "clients"},
                facts={
                    "x real time": ("speed", ".1f"),
                    "answer s p50": ("first_p50", ".3f"),
                    "p99": ("first_p99", ".3f"),
                    "word error": ("word_error", ".1%"),
                    "clients' share": ("clients_share", ".1%"),
                },
            )
        ]

    @override
    def run(self, backend: Any, trial: Trial) -> turns.TurnAnswer:
        chosen = self._chosen(trial["clients"])
        clips = self._clips()
        given = [[clips[index] for index in own] for own in chosen]
        served: ServingTurn = backend.serve_clips(given, self.language, self.beam)
        order = [index for own in chosen for index in own]
        texts = dict(zip(order, (answer.text for answer in served.answers), strict=True))
        return {
            CLIP: served.seconds / len(order),
            **_times(served),
            "audio": sum(len(clips[index]) for index in order) / _RATE,
            "text": " ".join(texts[index].strip() for index in sorted(texts)),
        }

    @override
    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        result = of_trial(results, trial)[name]
        sent = {index for own in self._chosen(trial["clients"]) for index in own}
        is_whole = self.references is not None and len(sent) == len(self._clips())
        text = result.last["text"]
        return {
            "speed": result.last["audio"] / median(result.series("seconds")),
            **self._facts(result.answers),
            "word_error": word_error([" ".join(self.references or ())], [text])
            if is_whole
            else None,
            "text": text,
        }

    def _chosen(self, clients: int) -> list[list[int]]:
        """Return which clips each client sends: all of them in turn, over all clients."""
        count = len(self._clips())
        return [
            [(client + clients * number) % count for number in range(self.requests)]
            for client in range(clients)
        ]

    def _clips(self) -> list[Samples]:
        return [clip for recording in self.recordings for clip in _cut(recording, self.clip)]


def _cut(samples: Samples, seconds: int) -> Iterator[Samples]:
    """Cut a recording into clips of limited length, each where it is quietest."""
    longest, window = seconds * _RATE, round(min(_WINDOW, seconds / 2) * _RATE)
    while len(samples) > longest:
        frames = samples[longest - window : longest]
        frames = frames[: len(frames) // _FRAME * _FRAME].reshape(-1, _FRAME)
        quiet = int((frames**2).mean(axis=1).argmin())
        cut = longest - window + quiet * _FRAME + _FRAME // 2
        yield samples[:cut]
        samples = samples[cut:]
    if len(samples) >= _SHORTEST * _RATE:
        yield samples


def _times(served: ServingTurn) -> dict[str, Any]:
    return {
        "seconds": served.seconds,
        "processor": served.processor,
        "firsts": [answer.first for answer in served.answers],
    }


def _mean_if_known(answers: Sequence[ServerAnswer]) -> float | None:
    known = [answer.cached_tokens for answer in answers if answer.cached_tokens is not None]
    return mean(known) if known else None


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_p{part}": float(np.percentile(values, part)) for part in (50, 99)}
