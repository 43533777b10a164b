"""CTranslate2, from a folder that its converter makes of a Hugging Face folder, and faster-whisper.

faster-whisper reads folders of CTranslate2 directly, and quantises while it loads.
"""

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from kvcast_bench.backend import (
    Backend,
    Continuer,
    Samples,
    Ticks,
    Tokens,
    Transcriber,
    Way,
    Writer,
)


class _CTranslate2(Backend):
    """int8 is its fastest on a CPU."""

    packages = ("ctranslate2", "transformers", "torch")
    modules = ("ctranslate2",)
    runner: ClassVar[str]  # the library's class that opens a folder
    vocabulary: ClassVar[str]  # the file with the words of all tokens

    @override
    def files(self) -> Path:
        return self.model.made(f"ct2-{self.kind}", self._convert, self.packages)

    @override
    def load(self) -> None:
        import ctranslate2

        folder = self.files()
        self.engine = getattr(ctranslate2, self.runner)(
            str(folder),
            device="cpu",
            compute_type=self.kind,
            inter_threads=1,
            intra_threads=self.model.threads,
        )
        self._words: list[str] = json.loads((folder / self.vocabulary).read_bytes())
        self._tokens = {word: token for token, word in enumerate(self._words)}

    def _spelled(self, texts: Sequence[Tokens]) -> list[list[str]]:
        return [[self._words[token] for token in text] for text in texts]

    def _convert(self, folder: Path) -> None:
        from ctranslate2.converters import TransformersConverter

        converter = TransformersConverter(str(self.model.hugging_face()))
        converter.convert(str(folder), quantization=self.kind, force=True)
        _tell_apart(folder / self.vocabulary)


class CausalCTranslate2(_CTranslate2, Continuer):
    """Continues prompts; its callback reports steps."""

    settings = "beam 1, prompts forwarded at once, min_length = max_length"
    runner = "Generator"
    vocabulary = "vocabulary.json"

    @override
    def generate(self, prompts: Sequence[Tokens], new: int, ticks: Ticks) -> list[Tokens]:
        number = count(1)

        def on_token(_: Any) -> bool:
            if next(number) % len(prompts) == 0:
                ticks.tick()
            return False

        results = self.engine.generate_batch(
            self._spelled(prompts),
            beam_size=1,
            sampling_topk=1,
            min_length=new,
            max_length=new,
            include_prompt_in_result=False,
            callback=on_token,
        )
        return [list(result.sequences_ids[0]) for result in results]


class Seq2seqCTranslate2(_CTranslate2, Writer):
    settings = "min_decoding_length = max_decoding_length, one hypothesis"
    runner = "Translator"
    vocabulary = "shared_vocabulary.json"

    @override
    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        results = self.engine.translate_batch(
            self._spelled(sources),
            beam_size=beams,
            min_decoding_length=tokens,
            max_decoding_length=tokens,
            max_input_length=0,
        )
        return [[self._tokens[word] for word in result.hypotheses[0]] for result in results]


class FasterWhisper(Backend, Transcriber):
    """int8 is its fastest on a CPU.

    Its batches are made of the results of its voice activity filter, and have no timestamps within
    windows by default; with them it is slower.
    """

    packages = ("faster-whisper", "ctranslate2")
    modules = ("faster_whisper",)
    settings = "compute_type int8"

    @override
    def unfit(self) -> str | None:
        results = (Path(self.model.folder) / "model.bin").is_file()
        return None if results else "needs a CTranslate2 folder"

    @override
    def goes(self, way: Way) -> bool:
        return way.batch is None or way.vad

    @override
    def load(self) -> None:
        from faster_whisper import WhisperModel

        self.engine = WhisperModel(
            self.model.folder,
            device="cpu",
            compute_type="int8",
            cpu_threads=self.model.threads,
            num_workers=1,
            local_files_only=True,
        )

    @override
    def transcribe(self, samples: Samples, language: str, beam: int) -> str:
        from faster_whisper import BatchedInferencePipeline

        engine, batched = self.engine, {}
        if self.way.batch is not None:
            engine = BatchedInferencePipeline(self.engine)
            batched = {"batch_size": self.way.batch}
        segments, _ = engine.transcribe(
            samples,
            language=language,
            beam_size=beam,
            temperature=0.0,
            condition_on_previous_text=False,
            vad_filter=self.way.vad,
            word_timestamps=self.way.words,
            **batched,
        )
        return "".join(segment.text for segment in segments)


def _tell_apart(vocabulary: Path) -> None:
    """Rename tokens that share a text.

    A T5 has more tokens than its tokenizer, and the converter names the rest like existing ones.
    """
    words: dict[str, None] = {}
    for token, word in enumerate(json.loads(vocabulary.read_bytes())):
        words[f"{word} {token}" if word in words else word] = None
    vocabulary.write_text(json.dumps(list(words)), encoding="utf-8")
