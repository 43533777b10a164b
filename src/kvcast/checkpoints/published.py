"""A published model of each type, by its id on the hub, as an example for users.

Knows no reader.
"""

from collections.abc import Mapping

PUBLISHED: Mapping[str, str] = {
    "bert": "google-bert/bert-base-uncased",
    "cohere": "CohereLabs/aya-expanse-8b",
    "cohere2": "CohereLabs/c4ai-command-r7b-12-2024",
    "exaone4": "LGAI-EXAONE/EXAONE-4.0-1.2B",
    "gemma": "google/gemma-2b-it",
    "gemma2": "google/gemma-2-2b-it",
    "gemma3": "google/gemma-3-4b-it",
    "gemma3_text": "google/gemma-3-1b-it",
    "glm": "zai-org/glm-4-9b-chat-hf",
    "glm4": "zai-org/GLM-4-9B-0414",
    "gpt-oss": "ggml-org/gpt-oss-20b-GGUF",
    "gpt2": "openai-community/gpt2",
    "gpt_neox": "EleutherAI/pythia-160m",
    "gpt_oss": "openai/gpt-oss-20b",
    "granite": "ibm-granite/granite-3.3-2b-instruct",
    "helium": "kyutai/helium-1-2b",
    "lfm2": "LiquidAI/LFM2-1.2B",
    "llama": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "ministral": "mistralai/Ministral-8B-Instruct-2410",
    "ministral3": "mistralai/Ministral-3-3B-Instruct-2512",
    "mistral": "mistralai/Mistral-7B-Instruct-v0.3",
    "mistral3": "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
    "mixtral": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "mt5": "google/mt5-small",
    "olmo2": "allenai/OLMo-2-0425-1B-Instruct",
    "olmo3": "allenai/Olmo-3-7B-Instruct",
    "phi": "microsoft/phi-2",
    "phi3": "microsoft/Phi-4-mini-instruct",
    "qwen2": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2_moe": "Qwen/Qwen1.5-MoE-A2.7B-Chat",
    "qwen3": "Qwen/Qwen3-0.6B",
    "qwen3_5": "Qwen/Qwen3.5-0.8B",
    "qwen3_moe": "Qwen/Qwen3-30B-A3B",
    "smollm3": "HuggingFaceTB/SmolLM3-3B",
    "stablelm": "stabilityai/stablelm-2-1_6b-chat",
    "starcoder2": "bigcode/starcoder2-3b",
    "t5": "google/flan-t5-small",
    "whisper": "openai/whisper-base",
}
"""By the model type of configurations."""
