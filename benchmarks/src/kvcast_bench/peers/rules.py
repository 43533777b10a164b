"""A Whisper's generation_config.json, for programs that read one."""

from typing import Any

from kvcast.whisper.tokenizer import WhisperTokenizer


def generation_rules(tokenizer: WhisperTokenizer) -> dict[str, Any]:
    rules = {
        **{f"{role}_token_id": tokenizer.eot for role in ("bos", "eos", "pad")},
        "decoder_start_token_id": tokenizer.sot,
        "suppress_tokens": sorted({*tokenizer.non_speech_tokens, *tokenizer.control_tokens}),
        "begin_suppress_tokens": list(tokenizer.blank),
        "no_timestamps_token_id": tokenizer.no_timestamps,
        "max_initial_timestamp_index": 50,
        "prev_sot_token_id": tokenizer.sot_prev,
        "is_multilingual": tokenizer.is_multilingual,
        "return_timestamps": True,
        "max_length": 448,
    }
    if tokenizer.is_multilingual:
        codes = zip(tokenizer.languages, tokenizer.language_tokens, strict=True)
        rules["lang_to_id"] = {f"<|{code}|>": token for code, token in codes}
        rules["task_to_id"] = {
            task: getattr(tokenizer, task) for task in ("transcribe", "translate")
        }
    return rules
