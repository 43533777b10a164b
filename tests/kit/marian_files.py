"""Marian's binary model files: written with random weights, read, and computed in NumPy.

Written from Marian's sources and without kvcast's reader, as an oracle for it.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.small_tokenizers import spiece_model

Arrays = Mapping[str, NDArray[np.float32]]
WIDTH, HEADS, INNER, LAYERS = 32, 4, 48, (2, 3)
SETTINGS: Mapping[str, Any] = {
    "type": "transformer",
    "dec-cell": "ssru",
    "dec-depth": LAYERS[1],
    "dim-emb": WIDTH,
    "enc-depth": LAYERS[0],
    "tied-embeddings-all": True,
    "transformer-decoder-autoreg": "rnn",
    "transformer-dim-ffn": INNER,
    "transformer-ffn-activation": "relu",
    "transformer-heads": HEADS,
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-preprocess": "",
    "transformer-tied-layers": [],
}
FLOAT32, INTGEMM8, TEXT = 0x404, 0x4101, 0x101
MODEL = "model.xxyy.intgemm.alphas.bin"


def random_arrays(vocab: int, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Matrices [inputs, outputs], as Marian multiplies, and the embedding [vocab, width]."""
    generator = np.random.default_rng(seed)
    sizes: dict[str, tuple[int, int]] = {"Wemb": (vocab, WIDTH)}
    sizes["decoder_ff_logit_out_b"] = (1, vocab)
    for stack, count in zip(("encoder", "decoder"), LAYERS, strict=True):
        for i in range(1, count + 1):
            layer = f"{stack}_l{i}"
            mixed = f"{layer}_{'self' if stack == 'encoder' else 'context'}"
            for part in "qkvo":
                sizes |= {f"{mixed}_W{part}": (WIDTH, WIDTH), f"{mixed}_b{part}": (1, WIDTH)}
            norms = [f"{mixed}_Wo", f"{layer}_ffn_ffn"]
            sizes |= {f"{layer}_ffn_W1": (WIDTH, INNER), f"{layer}_ffn_b1": (1, INNER)}
            sizes |= {f"{layer}_ffn_W2": (INNER, WIDTH), f"{layer}_ffn_b2": (1, WIDTH)}
            if stack == "decoder":
                sizes |= {f"{layer}_rnn_W{part}": (WIDTH, WIDTH) for part in ("", "f")}
                sizes[f"{layer}_rnn_bf"] = (1, WIDTH)
                norms.append(f"{layer}_rnn_ffn")
            for norm in norms:
                sizes |= {f"{norm}_ln_scale": (1, WIDTH), f"{norm}_ln_bias": (1, WIDTH)}
    return {
        name: generator.normal(name.endswith("scale"), 0.3, size).astype(np.float32)
        for name, size in sorted(sizes.items())
    }


def marian_bytes(
    arrays: Arrays, settings: Mapping[str, Any] = SETTINGS, *, coded: bool = True
) -> bytes:
    """Return a file of these arrays, matrices as codes of intgemm8 or as floats."""
    items: list[tuple[str, int, Sequence[int], bytes]] = []
    for name, array in arrays.items():
        if coded and min(array.shape) > 1:
            factor = np.float32(127) / np.abs(array).max()
            codes = np.rint(array * factor).astype(np.int8)
            stored = codes if name == "Wemb" else codes.T
            content = stored.tobytes() + struct.pack("<f", factor)
            items.append((name, INTGEMM8, array.shape, content))
            items.append((f"{name}_QuantMultA", FLOAT32, (1, 1), struct.pack("<f", 9.5)))
        else:
            items.append((name, FLOAT32, array.shape, array.tobytes()))
    lines = (f"{name}: {_spelled(value)}\n" for name, value in settings.items())
    text = "".join(lines) + "dim-vocabs:\n  - 1\n  - 1\nversion: v1.9.56 94aeaa46\n"
    items.append(("special:model.yml", TEXT, (len(text) + 1,), text.encode() + b"\0"))
    return packed(items)


def _spelled(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def packed(items: Sequence[tuple[str, int, Sequence[int], bytes]]) -> bytes:
    """Return a file of items: names, types, shapes and contents, which are padded but for text."""
    contents = [
        content if kind == TEXT else content + b"\0" * (-len(content) % 256)
        for _, kind, _, content in items
    ]
    head = struct.pack("<QQ", 1, len(items))
    for (name, kind, shape, _), content in zip(items, contents, strict=True):
        head += struct.pack("<QQQQ", len(name) + 1, kind, len(shape), len(content))
    head += b"".join(name.encode() + b"\0" for name, *_ in items)
    head += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = -(len(head) + 8) % 256
    return head + struct.pack("<Q", padding) + b"\0" * padding + b"".join(contents)


def pieces() -> bytes:
    """Return a vocabulary with Marian's special tokens."""
    return spiece_model(pad_id=-1, eos_id=0, unk_id=1)


def vocabulary_size() -> int:
    import sentencepiece

    return int(sentencepiece.SentencePieceProcessor(model_proto=pieces()).vocab_size())


def write_bergamot(
    folder: Path, arrays: Arrays | None = None, *, coded: bool = True, **settings: Any
) -> Path:
    """Write a whole folder, of random weights by default."""
    given = random_arrays(vocabulary_size()) if arrays is None else arrays
    named = {name.replace("_", "-"): value for name, value in settings.items()}
    folder.mkdir(parents=True, exist_ok=True)
    content = marian_bytes(given, {**SETTINGS, **named}, coded=coded)
    (folder / MODEL).write_bytes(content)
    (folder / "vocab.xxyy.spm").write_bytes(pieces())
    return folder


def read_arrays(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return a file's arrays by name, [inputs, outputs], from codes if it has those."""
    data = path.read_bytes()
    (count,) = struct.unpack_from("<Q", data, 8)
    headers = [struct.unpack_from("<4Q", data, 16 + 32 * i) for i in range(count)]
    at = 16 + 32 * count
    names = []
    for length, *_ in headers:
        names.append(data[at : at + length - 1].decode())
        at += length
    shapes = []
    for _, _, rank, _ in headers:
        shapes.append(struct.unpack_from(f"<{rank}i", data, at))
        at += 4 * rank
    at += 8 + struct.unpack_from("<Q", data, at)[0]
    arrays = {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        values = math.prod(shape)
        if kind == FLOAT32:
            arrays[name] = np.frombuffer(data, "<f4", values, at).reshape(shape)
        elif kind == INTGEMM8 and not name.endswith("_QuantMultA"):
            (factor,) = np.frombuffer(data, "<f4", 1, at + values)
            codes = np.frombuffer(data, "i1", values, at).astype(np.float32) / factor
            whole = codes.reshape(shape) if name == "Wemb" else codes.reshape(shape[::-1]).T
            arrays[name] = whole
        at += size
    return arrays


class NumpyMarian:
    """Marian's encoder and its decoder with SSRUs, without caches or batches."""

    def __init__(self, arrays: Arrays, heads: int) -> None:
        self._arrays, self._heads = arrays, heads
        self._width = arrays["Wemb"].shape[1]

    def logits(self, source: Sequence[int], target: Sequence[int]) -> NDArray[np.float32]:
        """Return logits [1 + target, vocab], of the first token and those after each."""
        embedding = self._arrays["Wemb"]
        encoded = self._placed(embedding[list(source)])
        for layer in self._layers("encoder"):
            encoded = self._mixed(encoded, encoded, f"{layer}_self")
            encoded = self._fed_forward(encoded, layer)
        first = np.zeros((1, self._width), np.float32)
        x = self._placed(np.concatenate([first, embedding[list(target)].reshape(-1, self._width)]))
        for layer in self._layers("decoder"):
            x = self._recurrent(x, layer)
            x = self._mixed(x, encoded, f"{layer}_context")
            x = self._fed_forward(x, layer)
        logits: NDArray[np.float32] = x @ embedding.T + self._arrays["decoder_ff_logit_out_b"]
        return logits

    def _layers(self, stack: str) -> list[str]:
        numbers = {name.split("_")[1] for name in self._arrays if name.startswith(f"{stack}_l")}
        return [f"{stack}_{number}" for number in sorted(numbers)]

    def _placed(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        half = self._width // 2
        rates = np.exp(-np.arange(half) * math.log(10_000) / (half - 1))
        angles = np.arange(len(x))[:, None] * rates
        waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        return (x * math.sqrt(self._width) + waves).astype(np.float32)

    def _affine(self, x: NDArray[np.float32], weight: str, bias: str) -> NDArray[np.float32]:
        return x @ self._arrays[weight] + self._arrays[bias]

    def _normed(self, x: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        centered = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-6)
        scale, bias = (self._arrays[f"{name}_ln_{part}"] for part in ("scale", "bias"))
        return centered / spread * scale + bias

    def _mixed(
        self, x: NDArray[np.float32], keys: NDArray[np.float32], name: str
    ) -> NDArray[np.float32]:
        query, key, value = (
            self._affine(given, f"{name}_W{part}", f"{name}_b{part}")
            .reshape(len(given), self._heads, -1)
            .swapaxes(0, 1)
            for given, part in zip((x, keys, keys), "qkv", strict=True)
        )
        scores = query @ key.swapaxes(1, 2) / math.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        joined = (weights @ value).swapaxes(0, 1).reshape(len(x), -1)
        return self._normed(self._affine(joined, f"{name}_Wo", f"{name}_bo") + x, f"{name}_Wo")

    def _recurrent(self, x: NDArray[np.float32], layer: str) -> NDArray[np.float32]:
        name = f"{layer}_rnn"
        forget = 1 / (1 + np.exp(-self._affine(x, f"{name}_Wf", f"{name}_bf")))
        candidates = x @ self._arrays[f"{name}_W"]
        cell, results = np.zeros(self._width, np.float32), []
        for kept, candidate in zip(forget, candidates, strict=True):
            cell = kept * cell + (1 - kept) * candidate
            results.append(np.maximum(cell, 0))
        return self._normed(np.stack(results) + x, f"{name}_ffn")

    def _fed_forward(self, x: NDArray[np.float32], layer: str) -> NDArray[np.float32]:
        name = f"{layer}_ffn"
        inner = np.maximum(self._affine(x, f"{name}_W1", f"{name}_b1"), 0)
        return self._normed(self._affine(inner, f"{name}_W2", f"{name}_b2") + x, f"{name}_ffn")
