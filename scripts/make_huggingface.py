"""Write a Hugging Face folder with random weights of a real model's shape: `… SHAPE FOLDER`.

For measuring how models of that size open and run, where nothing can be downloaded: `mistral-7b` in
bf16, with the window of v0.1, and `whisper-large-v3-turbo` in fp16. The configurations are those of
`tests/data/configs`, names and sizes of tensors are what transformers makes of them, and the
tokenizers are the packaged models', to whose vocabularies the models are fitted. The texts are
noise.
"""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from kvcast.checkpoints.source import locate, open_checkpoint

CONFIGS = Path(__file__).parents[1] / "tests" / "data" / "configs"
SHAPES = {
    "mistral-7b": ("MistralForCausalLM", torch.bfloat16, "demo-chat"),
    "whisper-large-v3-turbo": ("WhisperForConditionalGeneration", torch.float16, "demo-base"),
}
SHARD = 40  # tensors in a file
POOL = 2**24  # numbers that are drawn; tensors take them by turns


def tensors(model: torch.nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's tensors: matrices keep activations' size, vectors are ones."""
    pool = torch.randn(POOL, generator=torch.Generator().manual_seed(0)).to(dtype)
    for name, tensor in model.state_dict().items():
        if tensor.ndim == 1:
            yield name, torch.ones_like(tensor, dtype=dtype, device="cpu")
        elif name != "proj_out.weight":  # tied
            numbers = pool.repeat(-(-tensor.numel() // POOL))[: tensor.numel()]
            yield name, numbers.view(tensor.shape) * tensor[0].numel() ** -0.5


def main() -> None:
    """Write the folder."""
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        raise SystemExit(f"usage: make_huggingface.py {'|'.join(SHAPES)} FOLDER")
    shape, folder = sys.argv[1], Path(sys.argv[2])
    architecture, dtype, packaged = SHAPES[shape]
    checkpoint = open_checkpoint(locate(packaged))
    config = json.loads((CONFIGS / shape / "config.json").read_text(encoding="utf-8"))
    config |= {"vocab_size": checkpoint.dimensions.vocab_size, "architectures": [architecture]}
    if "d_model" in config:  # a Whisper, of which kvcast's tests leave out what follows from that
        config |= {f"{part}_ffn_dim": 4 * config["d_model"] for part in ("encoder", "decoder")}
    else:
        config |= {"eos_token_id": 2}  # of SmolLM2's tokenizer, <|im_end|>
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(checkpoint.text["tokenizer.json"])
    made = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = getattr(transformers, architecture)(made)
    every, index, number = tensors(model, dtype), dict[str, str](), 0
    while part := dict(islice(every, SHARD)):
        number += 1
        file = f"model-{number:05}.safetensors"
        save_file(part, folder / file)
        index |= dict.fromkeys(part, file)
    listed = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(listed, encoding="utf-8")


if __name__ == "__main__":
    main()
