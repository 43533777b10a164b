"""A model whose attention is looked into: it writes a text as always, over a recorded runtime.

Knows no family, and nothing of drawing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcast.bundle.manifest import is_bundle
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.errors import KvcastError, UsageError
from kvcast.inspect.attention.reading import AttentionReader
from kvcast.inspect.attention.recording import FedSequence, RecordingRuntime
from kvcast.inspect.attention.weights import Kind
from kvcast.loading.components import model_of, programs_of
from kvcast.runtimes.base import Float32
from kvcast.runtimes.reference import check_reference, reference_of
from kvcast.spec.runtimes import OnPhase


@dataclass(frozen=True, kw_only=True)
class InspectedModel:
    """A model over a runtime that keeps what it is fed.

    Attributes:
        name: as a user gave it.
        reader: gives the attention in what was fed.
        recorded: the reference's runtime.
        model: over that, as users call it.

    """

    name: str
    reader: AttentionReader
    recorded: RecordingRuntime
    model: Any

    @classmethod
    def open(cls, name: str, on_phase: OnPhase) -> "InspectedModel":
        """Open a checkpoint in fp32; raises KvcastError with one line."""
        located = locate(name, on_phase)
        if is_bundle(located):
            raise UsageError(f"{name} is a bundle: give the checkpoint that it was exported from")
        checkpoint = open_checkpoint(located)
        check_reference()
        reference = reference_of(checkpoint, lambda: programs_of(checkpoint), on_phase)
        reader = AttentionReader(checkpoint, reference)
        if not reader.kinds:
            raise KvcastError(f"{name} is a {checkpoint.family}: its decoder has no attention")
        recorded = RecordingRuntime(reference.runtime)
        model = model_of(recorded, checkpoint.dimensions, checkpoint.text)
        return cls(name=name, reader=reader, recorded=recorded, model=model)

    @property
    def kind(self) -> Kind:
        """Over an encoded input where there is one, or over the text itself."""
        return "cross" if "cross" in self.reader.kinds else "self"

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the family tells of its models beside sizes."""
        return self.reader.family.facts(self.reader.checkpoint.dimensions)

    @property
    def alignment_heads(self) -> list[tuple[int, int]]:
        """(layer, head) of the heads that follow the speech; none where they are not known."""
        parts = (self.facts.get(f"alignment_{part}", ()) for part in ("layers", "heads"))
        return list(zip(*parts, strict=True))

    def spelled(self, token: int) -> str:
        """Return what a token spells; its number in angle brackets where that is nothing."""
        tokenizer = self.model.tokenizer
        spell = getattr(tokenizer, "decode_with_timestamps", tokenizer.decode)
        return spell([token]) or f"<{token}>"

    def heard(self, samples: Float32, language: str | None) -> FedSequence:
        """Transcribe mono samples at 16 kHz, greedily; return the text of the first excerpt.

        Raises UsageError for a language that the model does not know, or none where it needs one.
        """
        self.recorded.sequences.clear()
        for _ in self.model.transcribe(samples, temperature=0.0, language=language):
            pass
        return self._first()

    def read(self, text: str, new: int) -> FedSequence:
        """Read a text, and write up to so many tokens after it, or in answer to it, greedily."""
        self.recorded.sequences.clear()
        # The last token is chosen and not fed.
        self.model.generate(text, max_new_tokens=new + 1, temperature=0.0)
        return self._first()

    def _first(self) -> FedSequence:
        """Return the first sequence that wrote something: one before it asked for the language."""
        sequences = self.recorded.sequences
        if not sequences:
            raise KvcastError("nothing was decoded: there is no speech, or no text")
        return next((each for each in sequences if len(each.tokens) > each.prompt), sequences[0])
