"""Option names of other programs and libraries, for users who come from them.

The command line rewrites those with an equivalent (`kvcast.cli.option_aliases`); a Python call's
TypeError names it. Options that kvcast has under the same name are not listed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """What another program's option is here.

    Attributes:
        ours: kvcast's option, whatever the value.
        divisor: by which its value is divided, where units differ.
        values: without `ours`, kvcast's options for some values, in lower case; "" stands for none.
        advice: for other values. `{beam}` is shown as `beam` in Python and `--beam` on the command
            line.

    """

    ours: str = ""
    divisor: int = 1
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    advice: str = ""

    def in_python(self, value: object) -> str:
        """Return the answer to a call with this value, as half a sentence."""
        if self.ours:
            return f"it is {self.ours} here" + (", in seconds" if self.divisor == 1000 else "")
        ours = self.values.get(str(value).lower())
        if ours is None:
            return self.advice.format_map(_Keywords())
        if not ours:
            return "it is so anyway; leave it out"
        return f"it is {', '.join(f'{own}={given!r}' for own, given in ours.items())} here"


class _Keywords(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name


ForeignOptions: TypeAlias = Mapping[str, Foreign]


def _renamed(ours: str, divisor: int = 1) -> Foreign:
    return Foreign(ours=ours, divisor=divisor)


def _switch(ours: str, value: Any = True) -> Foreign:
    on = {ours: value}
    return Foreign(values={"": on, "true": on, "false": {}}, advice="give True or False")


def _needless(advice: str, *values: str) -> Foreign:
    """Return one of which some values change nothing."""
    return Foreign(values={value: {} for value in values}, advice=advice)


_GPU = _needless("kvcast's kernels run on the processor; leave it out", "0", "none")
_CONTEXT = _needless("a cache is as long as its text, up to what the model can do; leave it out")
_CACHE_FOLDER = _needless("models lie in the Hugging Face cache; HF_HUB_CACHE is its folder")
_PRECISION = "{quantize} int8 is the default, none is fp32, and int4 is smallest"
_ADAPTER = _needless("{adapter} FILE=0.5 merges half of an adapter")

LOADING: ForeignOptions = {
    "device": _needless(
        "kvcast's kernels run on the processor; leave it out, or open a bundle that "
        "kvcast export --runtime aoti --device cuda made",
        *("cpu", "auto", "none"),
    ),
    "device_map": _needless("kvcast's kernels run on the processor; leave it out", "cpu", "auto"),
    "compute_type": Foreign(
        values={
            "default": {},
            "auto": {},
            "int8": {"quantize": "int8"},
            "int8_float32": {"quantize": "int8"},
            "float32": {"quantize": "none"},
            "fp32": {"quantize": "none"},
        },
        advice=_PRECISION,
    ),
    "torch_dtype": _needless(_PRECISION),
    "load_in_8bit": _switch("quantize", "int8"),
    "load_in_4bit": _switch("quantize", "int4"),
    "cpu_threads": _renamed("threads"),
    "n_threads": _renamed("threads"),
    "model_dir": _CACHE_FOLDER,
    "download_root": _CACHE_FOLDER,
    "cache_dir": _CACHE_FOLDER,
    "revision": _needless("name it with the model: org/name@revision"),
    "trust_remote_code": _needless("kvcast runs no code of a model; leave it out", "false"),
    "n_gpu_layers": _GPU,
    "gpu_layers": _GPU,
    "n_ctx": _CONTEXT,
    "ctx_size": _CONTEXT,
    "max_model_len": _CONTEXT,
    "lora": _renamed("adapter"),
    "lora_path": _renamed("adapter"),
    "lora_scaled": _ADAPTER,
}

RECORDINGS: ForeignOptions = {
    # openai-whisper
    "fp16": _needless("weights are int8 by default; {quantize} none is fp32", "false", ""),
    "verbose": _needless("leave it out, or add {quiet}", "true", "false", "", "none"),
    "temperature_increment_on_fallback": _needless(
        "list the temperatures to try: {temperature} 0,0.2,0.4, or one", "0.2"
    ),
    "without_timestamps": _switch("timestamps", value=False),
    "suppress_blank": _needless("a window begins with no blank; leave it out", "true"),
    # faster-whisper and whisper-ctranslate2
    "vad_filter": _switch("vad"),
    "vad_onset": _renamed("vad_threshold"),
    "vad_min_silence_duration_ms": _renamed("min_silence", 1000),
    "vad_speech_pad_ms": _renamed("speech_pad", 1000),
    "vad_max_speech_duration_s": _renamed("max_speech"),
    "log_prob_threshold": _renamed("logprob_threshold"),
    "batch_size": _renamed("batch"),
    "batched": _needless("{batch} N decodes N windows at once"),
    "chunk_length": _needless("a window has 30 seconds, the model's; leave it out", "30"),
    # transformers
    "num_beams": _renamed("beam"),
    "chunk_length_s": _needless("a window has 30 seconds, the model's; leave it out", "30"),
    # whisper.cpp
    "translate": _switch("task", "translate"),
    "prompt": _renamed("initial_prompt"),
    "offset_t": _renamed("clip_start", 1000),
    "no_gpu": Foreign(values={"": {}, "true": {}, "false": {}}),
}

TEXT: ForeignOptions = {
    # llama.cpp
    "n_predict": _renamed("max_new_tokens"),
    "predict": _renamed("max_new_tokens"),
    "temp": _renamed("temperature"),
    "repeat_penalty": _renamed("repetition_penalty"),
    "grammar_file": _needless("{lark} takes a grammar; {json_schema} and {regex} are others"),
    # transformers, vLLM and optimum
    "max_tokens": _renamed("max_new_tokens"),
    "max_length": _needless("{max_new_tokens} counts the new tokens, without the prompt"),
    "min_length": _needless("{min_new_tokens} counts the new tokens, without the prompt"),
    "num_beams": _renamed("beam"),
    "num_return_sequences": _renamed("n"),
    "do_sample": _needless("a {temperature} above 0 samples", "false"),
    # OpenAI
    "max_completion_tokens": _renamed("max_new_tokens"),
}

SERVER: ForeignOptions = {
    # llama-server
    "parallel": _renamed("rows"),
    # vLLM
    "lora_modules": _needless("{adapter} ADAPTER merges one into the weights"),
    "max_num_seqs": _renamed("rows"),
    "served_model_name": _needless("{alias} NAME=MODEL gives a model a further name"),
}

_AS_KEYWORDS = "options are keywords of the call"
RECORDING_CALLS: ForeignOptions = {
    **RECORDINGS,
    "verbose": _needless("leave it out, or give progress=True for a bar", "false", "none"),
    "log_progress": _renamed("progress"),
    "temperature_increment_on_fallback": _needless(
        "list the temperatures to try: temperature=(0, 0.2, 0.4)", "0.2"
    ),
    "vad_parameters": _needless("give vad_threshold, min_silence, speech_pad and max_speech"),
    "generate_kwargs": _needless(_AS_KEYWORDS),
    "return_timestamps": Foreign(
        values={"word": {"word_timestamps": True}, "true": {}, "false": {"timestamps": False}},
        advice="give word_timestamps=True or timestamps=False",
    ),
    "response_format": _needless("a transcription has text, to_srt(), to_vtt() and to_dict()"),
}
"""Of Python's calls: the command line offers some by other means."""

TEXT_CALLS: ForeignOptions = {
    **TEXT,
    "stream": _needless("model.stream(prompt) yields the pieces of a text", "false"),
    "streamer": _needless("model.stream(prompt) yields the pieces of a text", "none"),
    "messages": _needless("model.chat(messages) answers a conversation"),
    "stop_strings": _renamed("stop"),
    "stop_sequences": _renamed("stop"),
    "response_format": _needless("give json_object=True, or json_schema"),
    "guided_json": _renamed("json_schema"),
    "guided_regex": _renamed("regex"),
    "sampling_params": _needless(_AS_KEYWORDS),
    "generation_config": _needless(_AS_KEYWORDS),
    "use_cache": _needless("there is always a cache; leave it out", "true"),
    "pad_token_id": _needless("nothing is padded; leave it out"),
    "attention_mask": _needless("nothing is padded; leave it out"),
    "eos_token_id": _needless("a text ends with the model's end tokens, or before a stop string"),
}
