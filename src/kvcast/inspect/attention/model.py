"""A model whose attention is inspected: it generates as always, over a runtime that records."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE, open_audio
from kvcast.audio.mel import HOP, N_FFT, log_mel_frames, normalise
from kvcast.bundle.manifest import is_bundle
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.errors import KvcastError, UsageError
from kvcast.families.base import Family
from kvcast.families.programs import empty_caches
from kvcast.families.table import family_with
from kvcast.inspect.attention.weights import Kind, LayerWeights, attention_kinds, layer_weights
from kvcast.loading.components import model_of, programs_of, require_cache
from kvcast.runtimes.base import Float32, Int64, Tokens
from kvcast.runtimes.reference import Reference, check_reference, reference_of
from kvcast.spec.program import Program
from kvcast.spec.runtimes import OnPhase


@dataclass(eq=False)
class FedSequence:
    source: tuple[NDArray[Any], ...] = ()
    prompt: int = 0  # how many tokens came before the first that the model chose
    tokens: list[int] = field(default_factory=list)  # fed, perhaps without the last chosen one

    @property
    def tokens_s(self) -> Int64:
        return np.array(self.tokens, np.int64)


@dataclass(frozen=True)
class AttentionReader:
    checkpoint: Checkpoint
    reference: Reference

    @cached_property
    def family(self) -> Family:
        return family_with(self.checkpoint.dimensions)

    @property
    def kinds(self) -> set[Kind]:
        return attention_kinds(self._programs[_DECODE])

    def layers(self, sequence: FedSequence, kind: Kind) -> Iterator[LayerWeights]:
        """Weights of each layer with attention of a kind, over all that was fed."""
        dimensions, tokens_s = self.checkpoint.dimensions, sequence.tokens_s
        program = self._programs[_DECODE]
        inputs = {
            **self._encoded(sequence),
            **empty_caches(self.family.caches(dimensions), len(tokens_s)),
            "tokens": tokens_s[None],
            "lengths": np.zeros(1, np.int32),
            "offsets": np.arange(len(tokens_s)),
        }
        if self.family.whole is not None:
            program = self.family.whole(dimensions)
            inputs["sources"] = np.array([sequence.prompt], np.int32)
        inputs = {name: inputs[name] for name in program.inputs}
        return layer_weights(self.reference, program, inputs, self._constant, kind)

    def _encoded(self, sequence: FedSequence) -> dict[str, NDArray[Any]]:
        if _ENCODE not in self._programs:
            return {}
        program = self._programs[_ENCODE]
        inputs = dict(zip(program.inputs, sequence.source, strict=True))
        return {**inputs, **self.reference.results(program, inputs, list(program.outputs))}

    @cached_property
    def _programs(self) -> Mapping[str, Program]:
        return self.family.write_programs(self.checkpoint.dimensions)

    @cached_property
    def _constants(self) -> Mapping[str, NDArray[Any]]:
        return self.family.constants(self.checkpoint.dimensions, self.checkpoint.tensors)

    def _constant(self, name: str) -> NDArray[Any]:
        own = self._constants.get(name)
        return np.asarray(self.checkpoint.tensors[name] if own is None else own, np.float32)


class RecordingRuntime:
    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._source: tuple[NDArray[Any], ...] = ()
        self.sequences: list[FedSequence] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def encode(self, cache: Any, slots: Sequence[int], *source: NDArray[Any]) -> Any:
        self._source = tuple(part[:1].copy() for part in source)
        return self._runtime.encode(cache, slots, *source)

    def prefill(self, tokens: Tokens, cache: Any, *rest: Any, **others: Any) -> tuple[Float32, Any]:
        sequence = self._fed(tokens, cache)
        sequence.prompt = len(sequence.tokens)
        result: tuple[Float32, Any] = self._runtime.prefill(tokens, cache, *rest, **others)
        return result

    def decode(self, tokens: Tokens, cache: Any, *rest: Any, **others: Any) -> tuple[Float32, Any]:
        self._fed(tokens, cache)
        result: tuple[Float32, Any] = self._runtime.decode(tokens, cache, *rest, **others)
        return result

    def _fed(self, tokens: Tokens, cache: Any) -> FedSequence:
        [new] = tokens
        kept = int(cache.lengths[0])
        if not kept:
            self.sequences.append(FedSequence(source=self._source))
        sequence = self.sequences[-1]
        # A row that was cut back holds fewer than were fed.
        sequence.tokens[kept:] = np.asarray(new).tolist()
        return sequence


@dataclass(frozen=True, kw_only=True)
class InspectedModel:
    name: str
    reader: AttentionReader
    recorded: RecordingRuntime
    model: Any

    @classmethod
    def open(cls, name: str, on_phase: OnPhase) -> "InspectedModel":
        located = locate(name, on_phase)
        if is_bundle(located):
            raise UsageError(f"{name} is a bundle: give the checkpoint that it was exported from")
        checkpoint = open_checkpoint(located)
        require_cache(name, checkpoint.family)
        check_reference()
        reference = reference_of(checkpoint, lambda: programs_of(checkpoint), on_phase)
        reader = AttentionReader(checkpoint, reference)
        if not reader.kinds:
            raise KvcastError(f"{name} is a {checkpoint.family.name}: its decoder has no attention")
        recorded = RecordingRuntime(reference.runtime)
        model = model_of(recorded, checkpoint.dimensions, checkpoint.text)
        return cls(name=name, reader=reader, recorded=recorded, model=model)

    @property
    def kind(self) -> Kind:
        return "cross" if "cross" in self.reader.kinds else "self"

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.reader.family.facts(self.reader.checkpoint.dimensions)

    @property
    def alignment_heads(self) -> list[tuple[int, int]]:
        """(layer, head) of the heads that follow the speech; none where they are not known."""
        parts = (self.facts.get(f"alignment_{part}", ()) for part in ("layers", "heads"))
        return list(zip(*parts, strict=True))

    def spelled(self, token: int) -> str:
        """Return a token's text; its id in angle brackets if empty."""
        tokenizer = self.model.tokenizer
        spell = getattr(tokenizer, "decode_with_timestamps", tokenizer.decode)
        return spell([token]) or f"<{token}>"

    def transcribed(self, samples: Float32, language: str | None) -> FedSequence:
        """Decode mono 16 kHz samples greedily; returns the first chunk's sequence.

        UsageError for an unsupported language, or a missing one that the model needs.
        """
        self.recorded.sequences.clear()
        for _ in self.model.transcribe(samples, temperature=0.0, language=language):
            pass
        return self._first()

    def read(self, text: str, new: int) -> FedSequence:
        self.recorded.sequences.clear()
        # The last token is chosen and not fed.
        self.model.generate(text, max_new_tokens=new + 1, temperature=0.0)
        return self._first()

    def _first(self) -> FedSequence:
        sequences = self.recorded.sequences
        if not sequences:
            raise KvcastError("nothing was decoded: there is no speech, or no text")
        return next((each for each in sequences if len(each.tokens) > each.prompt), sequences[0])


_ENCODE, _DECODE = "encode", "decode"


_MELS = 80


def read_segment(source: str, start: float, seconds: float) -> Float32:
    """Mono 16 kHz samples of `seconds` at most.

    UsageError if the recording ends before; InputMissingError and InputOutputError as `open_audio`.
    """
    first = round(start * SAMPLE_RATE)
    most = first + round(seconds * SAMPLE_RATE)
    blocks: list[Any] = []
    with closing(open_audio(source)) as audio:
        for block in audio.blocks():
            blocks.append(block)
            if sum(map(len, blocks)) >= most:
                break
    samples: Float32 = np.concatenate(blocks)[first:most] if blocks else np.empty(0, np.float32)
    if len(samples) < N_FFT:
        raise UsageError(f"{source} has no audio at {start:g} s")
    return samples


def spectrogram(samples: Float32) -> Float32:
    """Return the log-mel spectrogram [mels, frames of 10 ms], from 0 for silence to 1."""
    reflected = np.pad(samples, N_FFT // 2, mode="reflect")
    frames_tm = log_mel_frames(reflected, _MELS)[: len(samples) // HOP]
    scaled = normalise(frames_tm, frames_tm.max()).T
    lowest = scaled.min()
    shares_mf: Float32 = (scaled - lowest) / max(float(scaled.max() - lowest), 1e-6)
    return shares_mf
