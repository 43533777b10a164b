"""A table of model families, so loading and exporting need no special cases.

torch, and everything that needs it, is imported inside functions: only exporting and the eager
runtime use it. Knows no runtime but eager.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from typing_extensions import override

from kvcast.bundle.manifest import MANIFEST, Manifest, is_bundle
from kvcast.checkpoints.base import Dimensions
from kvcast.checkpoints.source import read_dimensions
from kvcast.errors import InputMissingError, InputOutputError, KvcastError, UsageError
from kvcast.families.decoder import DecoderDimensions
from kvcast.families.t5 import T5Dimensions
from kvcast.families.unilm import UnilmDimensions
from kvcast.families.whisper import WhisperDimensions
from kvcast.runtimes.base import EncoderDecoder, Runtime
from kvcast.spec.runtimes import CALIBRATED

if TYPE_CHECKING:
    from kvcast.models.programs.decoder import DecoderPrograms
    from kvcast.models.programs.t5 import T5Programs
    from kvcast.models.programs.unilm import UnilmPrograms
    from kvcast.models.programs.whisper import WhisperPrograms
    from kvcast.runtimes.eager.unilm import EagerUnilm
    from kvcast.text.model import TextModel
    from kvcast.text.sources import T5Model, UnilmModel, UnilmRuntime
    from kvcast.whisper.model import WhisperModel

TOKENIZER = "tokenizer.json"

Task: TypeAlias = Literal["transcribe", "generate"]
"""What a model is for, by the name of the command that uses it."""


class Family(Protocol):
    """What loading and exporting need of a family; it has its own programs and dimensions."""

    task: ClassVar[Task]

    def text_files(self, checkpoint: Any) -> Mapping[str, bytes]:
        """Return the tokenizer files that a bundle needs from the checkpoint, by file name."""

    def special_tokens(self, checkpoint: Any) -> Mapping[str, Sequence[int]]:
        """Return the tokens that start, steer and end a text, by role."""

    def programs(self, checkpoint: Any) -> Any:
        """Build the fp32 programs."""

    def quantize_eager(self, programs: Any, quantize: str) -> None:
        """Replace the programs' linear layers with weight-only quantised ones, in place."""

    def check_calibration(self, dimensions: Any) -> None:  # noqa: ARG002
        """Raise UsageError for a model that `lowering.calibrated_blocks` is not made for."""
        raise UsageError(f"only decoder-only models have {CALIBRATED}: use --quantize int4")

    def prove(self, candidate: Any, programs: Any, *, exact: bool) -> dict[str, Any]:
        """Compare a runtime with the programs run without a cache; see `kvcast.loading.proof`."""

    def eager(self, programs: Any) -> Any:
        """Return an eager runtime for the programs."""

    def dimensions(self, fields: dict[str, Any]) -> Any:
        """Build dimensions from the manifest's fields."""

    def tensor_shapes(self, dimensions: Any) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each tensor of a model's checkpoint."""

    def model(self, runtime: Any, dimensions: Any, text: Mapping[str, bytes]) -> Any:
        """Return the model that users call."""


class WhisperFamily(Family):
    """Speech to text."""

    task: ClassVar[Task] = "transcribe"

    @override
    def text_files(self, checkpoint: Any) -> Mapping[str, bytes]:
        return {TOKENIZER: checkpoint.tokenizer_json}

    @override
    def special_tokens(self, checkpoint: Any) -> Mapping[str, Sequence[int]]:
        from kvcast.whisper.tokenizer import WhisperTokenizer

        tokenizer = WhisperTokenizer(checkpoint.tokenizer_json, checkpoint.dimensions.vocab_size)
        return {
            # For English without timestamps; another language's token replaces the second one.
            "start_tokens": tokenizer.sot_sequence("en", "transcribe", timestamps=False),
            "end_tokens": [tokenizer.eot],
            "language_tokens": tokenizer.language_tokens if tokenizer.is_multilingual else (),
            "transcribe_tokens": [tokenizer.transcribe],
            "translate_tokens": [tokenizer.translate],
            "no_timestamps_tokens": [tokenizer.no_timestamps],
            "no_speech_tokens": [tokenizer.no_speech],
            "previous_text_tokens": [tokenizer.sot_prev],
            # Tokens that are never chosen, and tokens that are not chosen first.
            "suppressed_tokens": sorted(
                {
                    *tokenizer.non_speech_tokens,
                    *tokenizer.control_tokens,
                    *tokenizer.unused_tokens,
                }
            ),
            "blank_tokens": tokenizer.blank,
        }

    @override
    def programs(self, checkpoint: Any) -> "WhisperPrograms":
        from kvcast.models.programs.whisper import WhisperPrograms

        return WhisperPrograms.from_tensors(checkpoint.dimensions, checkpoint.tensors)

    @override
    def quantize_eager(self, programs: "WhisperPrograms", quantize: str) -> None:
        from kvcast.models.nn.quantize import quantize_linears

        quantize_linears(programs.encode, quantize)
        quantize_linears(programs.decode, quantize)

    @override
    def prove(
        self, candidate: EncoderDecoder, programs: "WhisperPrograms", *, exact: bool
    ) -> dict[str, Any]:
        from kvcast.loading.proof import prove_whisper

        return prove_whisper(candidate, programs, exact=exact)

    @override
    def eager(self, programs: "WhisperPrograms") -> EncoderDecoder:
        from kvcast.runtimes.eager.runtime import EagerEncoderDecoder

        return EagerEncoderDecoder(programs)

    @override
    def dimensions(self, fields: dict[str, Any]) -> WhisperDimensions:
        return WhisperDimensions.from_json(fields)

    @override
    def tensor_shapes(self, dimensions: WhisperDimensions) -> Mapping[str, tuple[int, ...]]:
        from kvcast.checkpoints.names import tensor_shapes

        return tensor_shapes(dimensions)

    @override
    def model(
        self, runtime: EncoderDecoder, dimensions: WhisperDimensions, text: Mapping[str, bytes]
    ) -> "WhisperModel":
        from kvcast.whisper.model import WhisperModel
        from kvcast.whisper.tokenizer import WhisperTokenizer

        if TOKENIZER not in text:
            raise InputMissingError(f"the bundle has no {TOKENIZER}: export it again")
        tokenizer = WhisperTokenizer(text[TOKENIZER], dimensions.vocab_size)
        return WhisperModel(runtime, tokenizer, dimensions)


class _TextFamily(Family):
    """What the text families have in common."""

    task: ClassVar[Task] = "generate"

    @override
    def text_files(self, checkpoint: Any) -> Mapping[str, bytes]:
        files: Mapping[str, bytes] = checkpoint.text
        return files

    @override
    def special_tokens(self, checkpoint: Any) -> Mapping[str, Sequence[int]]:
        from kvcast.tokenizers.opening import open_text

        return {"end_tokens": sorted(open_text(checkpoint.text).end_tokens)}

    @override
    def quantize_eager(self, programs: Any, quantize: str) -> None:
        from kvcast.models.nn.quantize import quantize_linears

        # All programs share one model, including the pooler.
        quantize_linears(programs.decode, quantize)


class DecoderFamily(_TextFamily):
    """Decoder-only text generation: Mistral, Llama, Qwen, Gemma 3, Mixtral."""

    @override
    def programs(self, checkpoint: Any) -> "DecoderPrograms":
        from kvcast.models.programs.decoder import DecoderPrograms

        return DecoderPrograms.from_tensors(checkpoint.dimensions, checkpoint.tensors)

    @override
    def check_calibration(self, dimensions: DecoderDimensions) -> None:
        if dimensions.experts:
            raise UsageError(f"mixtures of experts have no {CALIBRATED}: use --quantize int4")

    @override
    def prove(
        self, candidate: Runtime, programs: "DecoderPrograms", *, exact: bool
    ) -> dict[str, Any]:
        from kvcast.loading.proof import prove_decoder

        return prove_decoder(candidate, programs, exact=exact)

    @override
    def eager(self, programs: "DecoderPrograms") -> Runtime:
        from kvcast.runtimes.eager.decoder import EagerDecoderOnly

        return EagerDecoderOnly(programs)

    @override
    def dimensions(self, fields: dict[str, Any]) -> DecoderDimensions:
        return DecoderDimensions.from_json(fields)

    @override
    def tensor_shapes(self, dimensions: DecoderDimensions) -> Mapping[str, tuple[int, ...]]:
        from kvcast.checkpoints.decoder_names import tensor_shapes

        return tensor_shapes(dimensions)

    @override
    def model(
        self, runtime: Runtime, dimensions: DecoderDimensions, text: Mapping[str, bytes]
    ) -> "TextModel":
        from kvcast.text.model import TextModel
        from kvcast.tokenizers.opening import open_text

        return TextModel(runtime, open_text(text), dimensions)


class T5Family(_TextFamily):
    """Text to text with an encoder and a decoder."""

    @override
    def programs(self, checkpoint: Any) -> "T5Programs":
        from kvcast.models.programs.t5 import T5Programs

        return T5Programs.from_tensors(checkpoint.dimensions, checkpoint.tensors)

    @override
    def prove(
        self, candidate: EncoderDecoder, programs: "T5Programs", *, exact: bool
    ) -> dict[str, Any]:
        from kvcast.loading.proof import prove_t5

        return prove_t5(candidate, programs, exact=exact)

    @override
    def eager(self, programs: "T5Programs") -> EncoderDecoder:
        from kvcast.runtimes.eager.runtime import EagerEncoderDecoder

        return EagerEncoderDecoder(programs)

    @override
    def dimensions(self, fields: dict[str, Any]) -> T5Dimensions:
        return T5Dimensions.from_json(fields)

    @override
    def tensor_shapes(self, dimensions: T5Dimensions) -> Mapping[str, tuple[int, ...]]:
        from kvcast.checkpoints.t5_names import tensor_shapes

        return tensor_shapes(dimensions)

    @override
    def model(
        self, runtime: EncoderDecoder, dimensions: T5Dimensions, text: Mapping[str, bytes]
    ) -> "T5Model":
        from kvcast.text.sources import T5Model
        from kvcast.tokenizers.opening import open_text

        return T5Model(runtime, open_text(text), dimensions)


class UnilmFamily(_TextFamily):
    """Text to text with one stack and a prefix mask: RoFormer, SimBERT."""

    @override
    def programs(self, checkpoint: Any) -> "UnilmPrograms":
        from kvcast.models.programs.unilm import UnilmPrograms

        return UnilmPrograms.from_tensors(checkpoint.dimensions, checkpoint.tensors)

    @override
    def prove(
        self, candidate: Runtime, programs: "UnilmPrograms", *, exact: bool
    ) -> dict[str, Any]:
        from kvcast.loading.proof import prove_unilm

        return prove_unilm(candidate, programs, exact=exact)

    @override
    def eager(self, programs: "UnilmPrograms") -> "EagerUnilm":
        from kvcast.runtimes.eager.unilm import EagerUnilm

        return EagerUnilm(programs)

    @override
    def dimensions(self, fields: dict[str, Any]) -> UnilmDimensions:
        return UnilmDimensions.from_json(fields)

    @override
    def tensor_shapes(self, dimensions: UnilmDimensions) -> Mapping[str, tuple[int, ...]]:
        from kvcast.checkpoints.unilm_names import tensor_shapes

        return tensor_shapes(dimensions)

    @override
    def model(
        self, runtime: "UnilmRuntime", dimensions: UnilmDimensions, text: Mapping[str, bytes]
    ) -> "UnilmModel":
        from kvcast.text.sources import UnilmModel
        from kvcast.tokenizers.opening import open_text

        return UnilmModel(runtime, open_text(text), dimensions)


_FAMILIES: Mapping[str, Family] = {
    "whisper": WhisperFamily(),
    "decoder": DecoderFamily(),
    "t5": T5Family(),
    "unilm": UnilmFamily(),
}


def family_of(name: str) -> Family:
    """Return a family by the name that checkpoints and manifests give; KvcastError if unknown."""
    if name not in _FAMILIES:
        raise KvcastError(f"this kvcast knows no {name} models: update it, or export again")
    return _FAMILIES[name]


def dimensions_of(path: Path) -> Dimensions:
    """Return the dimensions of the model in a bundle, a checkpoint or a configuration's folder.

    The weights may be missing. Raises KvcastError with one line.
    """
    if not is_bundle(path):
        return read_dimensions(path)
    # Not `read_bundle`, which would read all weights for their checksums.
    try:
        manifest = Manifest.from_json((path / MANIFEST).read_text(encoding="utf-8"))
        dimensions: Dimensions = family_of(manifest.family).dimensions(manifest.dimensions)
    except (OSError, UnicodeDecodeError):
        raise InputOutputError(f"{path / MANIFEST} cannot be read: export it again") from None
    except KvcastError as error:
        raise type(error)(f"{path}: {error}") from None
    return dimensions
