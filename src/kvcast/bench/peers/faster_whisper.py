"""faster-whisper: CTranslate2, which reads its own folders and quantises while it loads."""

from pathlib import Path

from typing_extensions import override

from kvcast.bench.backend import Backend, Samples, Transcriber


class FasterWhisper(Backend, Transcriber):
    """int8 is its fastest on a CPU."""

    packages = ("faster-whisper", "ctranslate2")
    modules = ("faster_whisper",)
    settings = "compute_type int8, no voice activity filter"

    @override
    def unfit(self) -> str | None:
        found = (Path(self.model.folder) / "model.bin").is_file()
        return None if found else "needs a CTranslate2 folder"

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
        segments, _ = self.engine.transcribe(
            samples,
            language=language,
            beam_size=beam,
            temperature=0.0,
            condition_on_previous_text=False,
        )
        return "".join(segment.text for segment in segments)
