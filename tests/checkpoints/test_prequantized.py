"""Pre-quantized folders beside folders of the floats that their codes stand for.

Layouts are written here as the libraries write them (GPTQModel 7.7.0, AutoAWQ 0.2.9,
compressed-tensors 0.20.1 and 0.12.2, transformers 5.23, bitsandbytes 0.50.2, MLX 0.32.4, mlx-lm
0.32.2, torchao 0.18.0, HQQ 0.2.8, ModelOpt 0.47.0, AutoRound 0.16.1, llm-compressor 0.14.0), on
random codes.
"""

import json
import re
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from checkpoints.folder_checks import rewrite_weights
from checkpoints.tiny_decoders import random_decoder, save_decoder
from checkpoints.tiny_whisper import edit_json
from kit.adapters import assert_close, factors, write_peft
from kit.errors import one_line
from kvcast.checkpoints.source import open_adapters, open_checkpoint
from kvcast.errors import KvcastError
from kvcast.runtimes.native.bundles import open_checkpoint as opened_on_native
from kvcast.runtimes.native.runtime import NativeRuntime
from kvcast.spec.runtimes import OWN, BundlePrecision
from kvcast.spec.stored_matrices import PREQUANTIZED, Encoding
from runtimes.native.test_file_rows import NF4, dequantize

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
UP = "model.layers.1.mlp.up_proj"
STATE = "quant_state.bitsandbytes__nf4"
DOWN = "decoder.layers.1.feed_forward.down.weight"


def words(codes, bits):
    """Little-endian bit streams of codes [rows, n], as int32 [rows, words]."""
    each = codes[..., None] >> np.arange(bits) & 1
    flat = each.reshape(len(codes), -1).astype(np.uint8)
    flat = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 32)))
    return np.packbits(flat, axis=1, bitorder="little").view("<i4")


def whole_codes(codes, bits):
    """As many codes as a word holds whole."""
    each = 32 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each))).reshape(len(codes), -1, each)
    return (padded << np.arange(each) * bits).sum(-1).astype(np.uint32).view(np.int32)


def tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array))


@dataclass
class Random:
    bits: int = 4
    group: int = 32
    symmetric: bool = False
    scales: torch.dtype = torch.float16
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    named = "quantization_config"
    sizes = {}  # noqa: RUF012

    def codes(self, *shape):
        return self.random.integers(0, 1 << self.bits, shape)

    def zeros(self, *shape):
        if self.symmetric:
            return np.full(shape, 1 << (self.bits - 1))
        zeros = self.codes(*shape)
        zeros.reshape(-1)[:3] = 0, (1 << self.bits) - 1, 0
        return zeros

    def scales_of(self, *shape):
        return tensor(self.random.uniform(0.001, 0.1, shape).astype(np.float32)).to(self.scales)


@dataclass
class Gptq(Random):
    version: str = "gptq"
    act_order: bool = False
    auto_round: bool = False

    @property
    def config(self):
        if self.auto_round:
            packing = {"packing_format": "auto_round:auto_gptq", "sym": self.symmetric}
            own = {"bits": self.bits, "group_size": self.group, "data_type": "int"}
            return {"quant_method": "auto-round", **own, **packing}
        return {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": self.group,
            "checkpoint_format": self.version,
        }

    def pack(self, name, outputs, inputs):
        size = inputs if self.group == -1 else self.group
        groups = -(-inputs // size)
        codes, zeros = self.codes(outputs, inputs), self.zeros(groups, outputs)
        scales = self.scales_of(groups, outputs)
        index = np.arange(inputs) // size
        if self.act_order:
            index = self.random.permutation(index)
        stored = words(zeros, self.bits)
        if self.version == "gptq" and self.bits != 3:
            ones = sum(1 << at for at in range(0, 32, self.bits))
            stored = (stored.view(np.uint32) - np.uint32(ones)).view(np.int32)
        elif self.version == "gptq":
            stored = words((zeros - 1) % 8, self.bits)
        parts = {
            "qweight": tensor(words(codes, self.bits).T),
            "qzeros": tensor(stored),
            "scales": scales,
            "g_idx": tensor(index.astype(np.int32)),
        }
        signed = (codes - zeros.T[:, index]).astype(np.float32)
        return parts, signed * scales.float().numpy().T[:, index]


@dataclass
class Awq(Random):
    group: int = 64
    auto_round: bool = False

    @property
    def sizes(self):
        """AutoRound packs multiples of 32 outputs."""
        return {"num_key_value_heads": 4} if self.auto_round else {}

    @property
    def config(self):
        if self.auto_round:
            own = {"bits": self.bits, "group_size": self.group, "sym": self.symmetric}
            return {"quant_method": "auto-round", **own, "packing_format": "auto_round:auto_awq"}
        return {"quant_method": "awq", "bits": 4, "group_size": self.group, "version": "GEMM"}

    def pack(self, name, outputs, inputs):
        size = min(self.group, inputs)
        groups = -(-inputs // size)
        codes, zeros = self.codes(inputs, outputs), self.zeros(groups, outputs)
        scales = self.scales_of(groups, outputs)

        def interleaved(numbers):
            eights = numbers.reshape(len(numbers), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
            return tensor(words(eights.reshape(numbers.shape), self.bits))

        parts = {"qweight": interleaved(codes), "qzeros": interleaved(zeros), "scales": scales}
        of_inputs = [x.repeat(size, 0)[:inputs] for x in (zeros, scales.float().numpy())]
        return parts, ((codes - of_inputs[0]).astype(np.float32) * of_inputs[1]).T


def compressed(format_, **weights):
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


@dataclass
class Packed(Random):
    whole: bool = False

    @property
    def config(self):
        size = None if self.group == -1 else self.group
        numbers = {"num_bits": self.bits, "group_size": size}
        return compressed("pack-quantized", **numbers, type="int", symmetric=self.symmetric)

    def pack(self, name, outputs, inputs):
        groups = 1 if self.group == -1 else inputs // self.group
        codes, zeros = self.codes(outputs, inputs), self.zeros(outputs, groups)
        scales = self.scales_of(outputs, groups)
        pack = whole_codes if self.whole else words
        parts = {
            "weight_packed": tensor(pack(codes, self.bits)),
            "weight_scale": scales,
            "weight_shape": torch.tensor([outputs, inputs]),
        }
        if not self.symmetric:
            parts["weight_zero_point"] = tensor(pack(zeros.T, self.bits).T)
        of_inputs = [x.repeat(inputs // groups, 1) for x in (zeros, scales.float().numpy())]
        return parts, (codes - of_inputs[0]).astype(np.float32) * of_inputs[1]


@dataclass
class Int8(Random):
    symmetric: bool = True

    @property
    def config(self):
        return compressed("int-quantized", num_bits=8, type="int", symmetric=self.symmetric)

    def pack(self, name, outputs, inputs):
        codes = self.random.integers(-128, 128, (outputs, inputs)).astype(np.int8)
        scales, zeros = self.scales_of(outputs, 1), np.zeros((outputs, 1), np.int8)
        parts = {"weight": tensor(codes), "weight_scale": scales, "input_scale": torch.ones(1)}
        if not self.symmetric:
            zeros[:] = self.random.integers(-128, 128, zeros.shape)
            parts["weight_zero_point"] = tensor(zeros)
        return parts, (codes - zeros.astype(np.float32)) * scales.float().numpy()


@dataclass
class Float8(Random):
    block: tuple[int, int] | None = (64, 64)
    compressed: str = ""
    scale: str = "weight_scale_inv"
    powers: torch.dtype | None = None

    @property
    def config(self):
        if not self.compressed:
            return {"quant_method": "fp8", "weight_block_size": self.block and list(self.block)}
        block = list(self.block) if self.block else None
        how = {"strategy": self.compressed, "block_structure": block}
        return compressed("float-quantized", num_bits=8, type="float", **how)

    def pack(self, name, outputs, inputs):
        bits = self.random.integers(0, 256, (outputs, inputs)).astype(np.uint8)
        bits[bits & 127 == 127] = 0
        codes = tensor(bits).view(torch.float8_e4m3fn)
        rows, columns = map(min, self.block or (outputs, inputs), (outputs, inputs))
        if self.compressed == "channel":
            rows, columns = 1, inputs
        counts = (-(-outputs // rows), -(-inputs // columns))
        scales = self.scales_of(*counts)
        if self.powers:
            exponents = tensor(self.random.integers(0, 240, counts).astype(np.uint8))
            scales = exponents.view(self.powers)
        wide = exponents.view(torch.float8_e8m0fnu).float() if self.powers else scales.float()
        wide = wide.repeat_interleave(rows, 0)[:outputs]
        wide = wide.repeat_interleave(columns, 1)[:, :inputs]
        if self.block is None and self.compressed != "channel":
            scales = scales.reshape([1] if self.compressed else [])
        parts = {"weight": codes}
        if self.compressed:
            parts["weight_scale"] = scales
        else:
            parts |= {self.scale: scales, "activation_scale": torch.tensor(1.0)}
        return parts, (codes.float() * wide).numpy()


@dataclass
class Bitsandbytes(Random):
    """Codes of a table of 16 numbers, in blocks of 64 across rows."""

    nested: bool = False
    is_normal: bool = False
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True}  # noqa: RUF012

    def pack(self, name, outputs, inputs):
        codes = self.random.integers(0, 16, outputs * inputs)
        blocks = -(-len(codes) // 64)
        table = np.sort(self.random.uniform(-1, 1, 16)).astype(np.float32)
        table = NF4.copy() if self.is_normal else table
        state = {"quant_type": "nf4", "blocksize": 64, "shape": [outputs, inputs]}
        scales = self.random.uniform(0.1, 2, blocks).astype(np.float32)
        parts = {"absmax": tensor(scales)}
        if self.nested:
            state |= {"nested_blocksize": 256, "nested_offset": 0.75}
            rough = self.random.integers(0, 256, blocks).astype(np.uint8)
            numbers = self.random.uniform(-1, 1, 256).astype(np.float32)
            largest = self.random.uniform(0.1, 1, -(-blocks // 256)).astype(np.float32)
            scales = numbers[rough] * largest.repeat(256)[:blocks] + np.float32(0.75)
            parts = {
                "absmax": tensor(rough),
                "nested_absmax": tensor(largest),
                "nested_quant_map": tensor(numbers),
            }
        json_bytes = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
        parts |= {"quant_map": tensor(table), "quant_state.bitsandbytes__nf4": tensor(json_bytes)}
        packed = (codes[0::2] << 4 | codes[1::2]).astype(np.uint8)
        stored = {"weight": tensor(packed[:, None])}
        stored |= {f"weight.{part}": value for part, value in parts.items()}
        values = table[codes] * scales.repeat(64)[: len(codes)]
        return stored, values.reshape(outputs, inputs)


@dataclass
class BitsandbytesInt8(Random):
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}  # noqa: RUF012

    def pack(self, name, outputs, inputs):
        codes = self.random.integers(-127, 128, (outputs, inputs)).astype(np.int8)
        largest = self.random.uniform(0.1, 2, outputs).astype(np.float32)
        parts = {"weight": tensor(codes), "SCB": tensor(largest)}
        parts["weight_format"] = torch.tensor(0, dtype=torch.uint8)
        step = np.float32(0.007874015718698502)
        return parts, codes.astype(np.float32) * (largest * step)[:, None]


NUMBERS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


@dataclass
class E2m1(Random):
    """MXFP4 (runs of 32) and NVFP4 (of 16), as each library names their parts."""

    library: str = "compressed-tensors"
    run: int = 32
    powers: tuple[int, int] = (0, 250)
    largest: bool = False
    """Whether there is a scale of all, as MLX has of an expert."""

    @property
    def named(self):
        return "quantization" if self.library == "mlx" else "quantization_config"

    @property
    def config(self):
        kind = {32: "mxfp4", 16: "nvfp4"}[self.run]
        match self.library:
            case "compressed-tensors":
                how = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": self.run}
                return compressed(f"{kind}-pack-quantized", **how)
            case "mlx":
                return {"bits": 4, "group_size": self.run, "mode": kind}
            case "modelopt":
                return {"quant_method": "modelopt", "quant_algo": "NVFP4"}
        return {"quant_method": "fp8", "weight_block_size": [64, 64]}

    def pack(self, name, outputs, inputs):
        codes = self.random.integers(0, 16, (outputs, inputs))
        packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
        stored, scales = self._scales(outputs, inputs // self.run)
        match self.library:
            case "compressed-tensors":
                parts = {"weight_packed": tensor(packed), "weight_scale": stored}
                if self.run == 16:
                    parts["weight_global_scale"] = torch.tensor([37.3])
                    parts["input_global_scale"] = torch.ones(1)
                    scales = scales / np.float32(37.3)
            case "mlx":
                parts = {"weight": tensor(packed.view("<u4")), "scales": stored.view(torch.uint8)}
                if self.largest:
                    parts["global_scale"] = torch.tensor(0.37)
                    scales = scales * (np.float32(0.37) / np.float32(448 * 6))
            case "modelopt":
                parts = {"weight": tensor(packed), "weight_scale": stored}
                parts |= {"weight_scale_2": torch.tensor(0.0123), "input_scale": torch.tensor(1.0)}
                scales = scales * np.float32(0.0123)
            case _:
                powers = stored.view(torch.float8_e8m0fnu)
                parts = {"weight": tensor(packed.view(np.int8)), "scale": powers}
        numbers = np.concatenate([NUMBERS, -NUMBERS])[codes]
        return parts, numbers * scales.repeat(self.run, 1)

    def _scales(self, *counts):
        if self.run == 32:
            powers = self.random.integers(*self.powers, counts).astype(np.uint8)
            return tensor(powers), np.ldexp(np.float32(1), powers.astype(np.int32) - 127)
        bits = self.random.integers(0, 127, counts).astype(np.uint8)
        scales = tensor(bits).view(torch.float8_e4m3fn)
        return scales, scales.float().numpy()


@dataclass
class Mxfp8(Random):
    library: str = "compressed-tensors"

    @property
    def named(self):
        return "quantization" if self.library == "mlx" else "quantization_config"

    @property
    def config(self):
        if self.library == "mlx":
            return {"bits": 8, "group_size": 32, "mode": "mxfp8"}
        return compressed("mxfp8-quantized", num_bits=8, type="float", group_size=32)

    def pack(self, name, outputs, inputs):
        made = Float8(block=(1, 32), powers=torch.uint8, random=self.random)
        parts, values = made.pack(name, outputs, inputs)
        codes, powers = parts["weight"], parts["weight_scale_inv"]
        if self.library == "mlx":
            return {"weight": codes.view(torch.uint32), "scales": powers}, values
        return {"weight": codes, "weight_scale": powers}, values


@dataclass
class Torchao(Random):
    """A byte for each code."""

    @property
    def config(self):
        number = {"_type": "torch.dtype", "_data": f"int{self.bits}"}
        of_all = {"_type": "IntxWeightOnlyConfig", "_data": {"weight_dtype": number}}
        return {"quant_method": "torchao", "quant_type": {"default": of_all}}

    def pack(self, name, outputs, inputs):
        least, most = -(1 << (self.bits - 1)), 1 << (self.bits - 1)
        codes = self.random.integers(least, most, (outputs, inputs)).astype(np.int8)
        groups = 1 if self.group == -1 else inputs // self.group
        zeros = self.random.integers(least, most, (outputs, groups)).astype(np.int8)
        zeros *= not self.symmetric
        scales = self.scales_of(outputs, groups)
        parts = {"_weight_qdata": tensor(codes), "_weight_scale": scales}
        parts["_weight_zero_point"] = tensor(zeros)
        of_inputs = [x.repeat(inputs // groups, 1) for x in (zeros, scales.float().numpy())]
        return parts, (codes - of_inputs[0].astype(np.float32)) * of_inputs[1]


@dataclass
class TorchaoPairs(Random):
    """Signed codes, two in a byte."""

    scales: torch.dtype = torch.bfloat16
    config = {"quant_method": "torchao", "quant_type": {"default": {}}}  # noqa: RUF012

    def pack(self, name, outputs, inputs):
        codes = self.random.integers(-8, 8, (outputs, inputs))
        scales = self.scales_of(inputs // self.group, outputs)
        zeros = (self.scales_of(inputs // self.group, outputs) - 0.05) * (not self.symmetric)
        packed = (codes[:, 0::2] & 15 | codes[:, 1::2] << 4).astype(np.int8)
        parts = {"_weight_qdata": tensor(packed), "_weight_scale": scales}
        parts["_weight_zero_point"] = zeros
        wide = [x.float().numpy().T.repeat(self.group, 1) for x in (scales, zeros)]
        return parts, codes.astype(np.float32) * wide[0] + wide[1]


@dataclass
class TorchaoFloat8(Random):
    config = {"quant_method": "torchao", "quant_type": {"default": {}}}  # noqa: RUF012

    def pack(self, name, outputs, inputs):
        made = Float8(block=None, compressed="channel", scales=torch.float32, random=self.random)
        parts, values = made.pack(name, outputs, inputs)
        return {"_weight_qdata": parts["weight"], "_weight_scale": parts["weight_scale"]}, values


@dataclass
class Hqq(Random):
    axis: int = 1
    whole: bool = False
    """Whether zero points are whole numbers."""
    as_float: bool = False
    config = {"quant_method": "hqq", "quant_config": {}, "skip_modules": []}  # noqa: RUF012

    def pack(self, name, outputs, inputs):
        groups = outputs * inputs // self.group
        shape, of_groups = (groups, self.group), (groups, 1)
        shape, of_groups = (x[:: 1 if self.axis else -1] for x in (shape, of_groups))
        codes, scales = self.codes(*shape), self.scales_of(*of_groups)
        zeros = tensor(self.random.uniform(0, 1 << self.bits, of_groups)).to(self.scales)
        zeros = zeros.floor() if self.whole else zeros
        each, kind = (10, "<i4") if self.bits == 3 else (8 // self.bits, "u1")
        padded = np.pad(codes, ((0, -len(codes) % each), (0, 0))).reshape(each, -1, shape[1])
        shifts = self.bits * np.arange(each)[::-1, None, None]
        packed = tensor((padded << shifts).sum(0).astype(kind))
        letters = f"{self.bits}bit_{'32' if self.bits == 3 else 'u8'}".encode()
        parts = {
            "W_q": packed.view(torch.bfloat16) if self.as_float else packed,
            "scale": scales,
            "zero": zeros,
            "shape": torch.tensor([outputs, inputs]),
            "packing": tensor(np.frombuffer(letters, np.uint8).copy()),
            "axis": torch.tensor(self.axis, dtype=torch.int32),
            "group_size": torch.tensor(self.group, dtype=torch.int32),
            "nbits": torch.tensor(self.bits, dtype=torch.int32),
            "view_as_float": torch.tensor(self.as_float, dtype=torch.uint8),
        }
        signed = codes.astype(np.float32) - zeros.float().numpy()
        return parts, (signed * scales.float().numpy()).reshape(outputs, inputs)


@dataclass
class ModeloptFloat8(Random):
    config = {"quant_method": "modelopt", "quant_algo": "FP8"}  # noqa: RUF012

    def pack(self, name, outputs, inputs):
        made = Float8(block=None, scales=torch.float32, random=self.random)
        parts, values = made.pack(name, outputs, inputs)
        scales = {"weight_scale": parts["weight_scale_inv"], "input_scale": torch.tensor(1.0)}
        return {"weight": parts["weight"], **scales}, values


@dataclass
class Mlx(Random):
    named = "quantization"
    of_up: int = 0
    """Bits of one layer that has its own."""

    @property
    def config(self):
        places = (UP, UP.replace("up_proj", "switch_mlp.up_proj")) if self.of_up else ()
        own = {place: {"bits": self.of_up, "group_size": self.group} for place in places}
        return {"bits": self.bits, "group_size": self.group, "mode": "affine", **own}

    def pack(self, name, outputs, inputs):
        is_up = "layers.1.mlp." in name and ".up_proj" in name
        bits = self.of_up if self.of_up and is_up else self.bits
        codes = self.random.integers(0, 1 << bits, (outputs, inputs))
        scales = self.scales_of(outputs, inputs // self.group)
        scales[::2] *= -1
        biases = self.scales_of(outputs, inputs // self.group) * 8
        packed = tensor(words(codes, bits).view(np.uint32))
        parts = {"weight": packed, "scales": scales, "biases": biases}
        wide = [x.float().numpy().repeat(self.group, 1) for x in (scales, biases)]
        return parts, codes.astype(np.float32) * wide[0] + wide[1]


FORMATS = {
    "bitsandbytes": (Bitsandbytes(), None),
    "bitsandbytes, scales in codes": (Bitsandbytes(nested=True), None),
    "bitsandbytes, nf4": (Bitsandbytes(nested=True, is_normal=True), "NF4"),
    "bitsandbytes, int8": (BitsandbytesInt8(), None),
    **{
        f"MLX {bits} bits": (Mlx(bits=bits, scales=torch.bfloat16), encoding)
        for bits, encoding in ((2, "Q4_1"), (3, "Q4_1"), (4, "Q4_1"), (6, None), (8, None))
    },
    **{
        f"GPTQ {bits} bits, {version}": (Gptq(bits=bits, version=version), encoding)
        for bits, encoding in ((2, "Q4_0"), (3, "Q4_0"), (4, "INT4_ZERO_POINT"), (8, None))
        for version in ("gptq", "gptq_v2")
    },
    "GPTQ, symmetric": (Gptq(symmetric=True), "Q4_0"),
    "GPTQ 8 bits, symmetric": (Gptq(bits=8, symmetric=True), "Q8_0"),
    "GPTQ, a group for a row": (Gptq(group=-1), "INT4_ZERO_POINT"),
    "GPTQ, a group larger than a row": (Gptq(group=1 << 40), "INT4_ZERO_POINT"),
    "GPTQ, groups in another order": (Gptq(act_order=True), None),
    "GPTQ, scales in fp32": (Gptq(scales=torch.float32), None),
    "AWQ": (Awq(), "INT4_ZERO_POINT"),
    "AWQ, symmetric": (Awq(symmetric=True), "Q4_0"),
    **{
        f"pack-quantized {bits} bits{', whole codes' * whole}": (
            Packed(bits=bits, whole=whole, scales=torch.bfloat16),
            encoding,
        )
        for bits, encoding in (
            (3, "Q4_0"),
            (4, "INT4_ZERO_POINT"),
            (5, "Q8_0"),
            (6, "Q8_0"),
            (7, "Q8_0"),
        )
        for whole in (False, True)
    },
    "pack-quantized 8 bits, symmetric": (Packed(bits=8, symmetric=True), "Q8_0"),
    "pack-quantized 4 bits, symmetric, channels": (Packed(symmetric=True, group=-1), "Q4_0"),
    "int-quantized": (Int8(scales=torch.bfloat16), "Q8_0"),
    "FP8 in ragged blocks": (Float8(scales=torch.float32), "F8_E4M3"),
    "FP8 in blocks larger than a matrix": (Float8(block=(1 << 40, 1 << 40)), "F8_E4M3"),
    "FP8 with one scale": (Float8(block=None, scales=torch.bfloat16), "F8_E4M3"),
    "float-quantized, channels": (Float8(block=None, compressed="channel"), "F8_E4M3"),
    "float-quantized, tensors": (Float8(block=None, compressed="tensor"), "F8_E4M3"),
    "float-quantized, blocks": (Float8(compressed="block"), "F8_E4M3"),
    "int-quantized, zero points": (Int8(symmetric=False), None),
    "FP8, qscale_weight": (Float8(scale="qscale_weight", scales=torch.bfloat16), "F8_E4M3"),
    "FP8, scales in e8m0": (Float8(scale="scale", powers=torch.float8_e8m0fnu), "F8_E4M3"),
    "FP8, scales in bytes": (Float8(block=(1, 32), powers=torch.uint8), "F8_E4M3"),
    "FP8, pairs of e2m1": (E2m1(library="fp8"), "MXFP4"),
    "mxfp4-pack-quantized": (E2m1(), "MXFP4"),
    "nvfp4-pack-quantized": (E2m1(run=16), None),
    "mxfp8-quantized": (Mxfp8(), "F8_E4M3"),
    "MLX mxfp4": (E2m1(library="mlx"), "MXFP4"),
    "MLX nvfp4": (E2m1(library="mlx", run=16), None),
    "MLX mxfp8": (Mxfp8(library="mlx"), "F8_E4M3"),
    "MLX, one layer of other bits": (Mlx(of_up=6), "Q4_1"),
    "ModelOpt FP8": (ModeloptFloat8(), "F8_E4M3"),
    "ModelOpt NVFP4": (E2m1(library="modelopt", run=16), None),
    "AutoRound": (Gptq(auto_round=True), "INT4_ZERO_POINT"),
    **{
        f"AutoRound {bits} bits, as AWQ": (Awq(bits=bits, group=32, auto_round=True), encoding)
        for bits, encoding in ((4, "INT4_ZERO_POINT"), (5, "Q8_0"), (6, "Q8_0"), (7, "Q8_0"))
    },
    **{
        f"HQQ {bits} bits, axis {axis}": (Hqq(bits=bits, axis=axis), None)
        for bits in (8, 4, 3, 2, 1)
        for axis in (0, 1)
    },
    "HQQ, codes as floats": (Hqq(bits=3, as_float=True), None),
    "HQQ, groups across rows": (Hqq(group=256), None),
    "HQQ, whole zero points": (Hqq(whole=True), "INT4_ZERO_POINT"),
    "HQQ 2 bits, whole zero points": (Hqq(bits=2, whole=True), "Q4_0"),
    "torchao int8": (Torchao(bits=8, group=-1, symmetric=True), "Q8_0"),
    "torchao int4": (Torchao(symmetric=True), "Q4_0"),
    "torchao int4, zero points": (Torchao(), "INT4_ZERO_POINT"),
    "torchao int4 in pairs": (TorchaoPairs(), None),
    "torchao int4 in pairs, symmetric": (TorchaoPairs(symmetric=True), "Q4_0"),
    "torchao float8": (TorchaoFloat8(), "F8_E4M3"),
}
# 3 bits span -7 .. 7 with any zero point, 2 bits -3 .. 3.


def folders(path, made, model_type="llama", **sizes):
    """Return a folder of floats and one of codes, whose matrices of layers stand for the same."""
    made = replace(made, random=np.random.default_rng(7))  # whichever tests ran before
    model = random_decoder(model_type, **SIZES | made.sizes | sizes)
    floats, codes = (save_decoder(model, path / name) for name in ("floats", "codes"))
    packed, plain = {}, {}

    def fill(tensors):
        for name, matrix in tensors.items():
            if ".layers." in name and matrix.dim() == 2:
                parts, numbers = made.pack(name, *matrix.shape)
                base = name.removesuffix(".weight")
                packed.update({f"{base}.{part}": value for part, value in parts.items()})
                plain[name] = tensor(numbers)
            else:
                packed[name] = plain[name] = matrix
        return plain

    rewrite_weights(floats, fill)
    rewrite_weights(codes, lambda _: packed)
    edit_json(codes / "config.json", **{made.named: made.config})
    return floats, codes


UNREAD = (
    "input_scale",
    "input_global_scale",
    "activation_scale",
    "qscale_act",
    "weight_format",
    "act_quant_scale",
)


def bytes_of(checkpoint):
    tensors = checkpoint.tensors
    return sum(part.nbytes for name in tensors for part in tensors.parts_of(name))


def bytes_in(folder):
    """Scales and zero points as well, but not what is of activations."""
    stored = load_file(folder / "model.safetensors")
    return sum(value.nbytes for name, value in stored.items() if not name.endswith(UNREAD))


@pytest.mark.parametrize("name", FORMATS)
def test_codes_are_the_floats_that_they_stand_for(name, tmp_path):
    made, encoding = FORMATS[name]
    floats, codes = map(open_checkpoint, folders(tmp_path, made))
    assert codes.dimensions == floats.dimensions
    assert set(codes.tensors) == set(floats.tensors)
    for own, expected in floats.tensors.items():
        np.testing.assert_array_equal(codes.tensors[own], expected, err_msg=own)
    assert bytes_of(codes) == bytes_in(tmp_path / "codes")
    rows = codes.tensors.rows_of(DOWN)
    assert (rows and rows.kinds()) == (encoding and {Encoding[encoding]})
    if rows and rows.kinds() <= PREQUANTIZED:
        (raw,) = rows.owners
        matrix = dequantize(raw.reshape(len(rows), -1), Encoding[encoding])
        np.testing.assert_array_equal(matrix, floats.tensors[DOWN])


@pytest.mark.parametrize("library", ["compressed-tensors", "mlx", "modelopt"])
def test_codes_of_nvfp4_are_kept_in_whole_blocks(library, tmp_path):
    floats, codes = map(open_checkpoint, folders(tmp_path, E2m1(library=library, run=16)))
    name = "decoder.layers.1.feed_forward.gate_up.weight"
    rows = codes.tensors.rows_of(name)
    assert rows.kinds() == {Encoding.NVFP4}
    raw = np.concatenate([owner.reshape(-1, 36) for owner in rows.owners])
    matrix = dequantize(raw.reshape(len(rows), -1), Encoding.NVFP4)
    factors = np.ones(len(rows)) if rows.factors is None else rows.factors
    np.testing.assert_allclose(matrix * factors[:, None], floats.tensors[name], rtol=3e-7)


KERNELS = {
    **{name: FORMATS[name] for name in ("GPTQ, symmetric", "AWQ", "int-quantized")},
    **{name: FORMATS[name] for name in ("FP8 with one scale", "bitsandbytes, nf4")},
    "mxfp4-pack-quantized": (E2m1(powers=(118, 124)), "MXFP4"),
    "nvfp4-pack-quantized": (E2m1(run=16), "NVFP4"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_own_kernels_run_what_codes_stand_for(name, tmp_path):
    made, encoding = KERNELS[name]
    opened = [open_checkpoint(folder) for folder in folders(tmp_path, made)]
    precisions = [
        BundlePrecision(quantize="none"),
        opened[1].resolve_precision(BundlePrecision(quantize=OWN)),
    ]
    assert precisions[1].quantize == (OWN if encoding else "int8")
    logits = []
    for checkpoint, precision in zip(opened, precisions, strict=True):
        runtime = NativeRuntime(*opened_on_native(checkpoint, precision, 1))
        prompt = np.arange(3, 12)
        logits.append(runtime.prefill([prompt], runtime.new_cache(1, 16))[0][0, 0])
    # Activations are rounded to 8 bits, and numbers of NF4's table.
    assert np.abs(logits[1] - logits[0]).max() < 0.15 * np.abs(logits[0]).max()


@pytest.mark.parametrize(
    "made",
    [
        *(Bitsandbytes(), BitsandbytesInt8(), Mlx(), Gptq(), Gptq(act_order=True), Awq()),
        *(Packed(), Int8(), Float8(), Float8(block=None, compressed="channel")),
    ],
    ids=lambda made: type(made).__name__,
)
def test_an_adapter_changes_floats_of_its_matrices_and_others_keep_their_codes(made, tmp_path):
    places = folders(tmp_path, made)
    adapter = write_peft(tmp_path / "adapter", {UP: factors((96, 64), 2)})
    floats, codes = (open_checkpoint(place, open_adapters(str(adapter))) for place in places)
    assert_close(codes.tensors, floats.tensors)
    name = "decoder.layers.1.feed_forward.gate_up.weight"
    assert np.abs(codes.tensors[name] - open_checkpoint(places[1]).tensors[name]).max() > 1
    own = open_checkpoint(places[1]).tensors
    assert stored_as(codes.tensors, DOWN) == stored_as(own, DOWN)
    assert stored_as(codes.tensors, name) in (None, {Encoding.F32, *(stored_as(own, name) or ())})


def stored_as(tensors, name):
    rows = tensors.rows_of(name)
    return rows and rows.kinds()


def test_codes_of_more_bits_than_said_are_one_line(tmp_path):
    _, codes = folders(tmp_path, Torchao())
    rewrite_weights(codes, changed("_weight_qdata", lambda x: x.fill_(9)))
    tensors = open_checkpoint(codes).tensors
    name = "decoder.layers.1.feed_forward.gate_up.weight"
    assert "a code has more than 4 bits" in one_line(KvcastError, tensors.__getitem__, name)


def test_a_code_that_is_not_a_number_is_one_line(tmp_path):
    _, codes = folders(tmp_path, Float8())
    rewrite_weights(
        codes, changed("weight", lambda x: x.view(torch.uint8).fill_(255).view(x.dtype))
    )
    tensors = open_checkpoint(codes).tensors
    name = "decoder.layers.1.feed_forward.gate_up.weight"
    for read in (tensors.__getitem__, tensors.rows_of):
        assert "a code is not a number" in one_line(KvcastError, read, name)


EXPERTS = {
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "deepseek_v3": {
        **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        **{"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "num_key_value_heads": 4},
        **{"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8},
        **{"v_head_dim": 8, "head_dim": 8},
    },
}
OF_EXPERTS = {
    "FP8": Float8(block=(32, 32)),
    "FP8, scales in e8m0": Float8(scale="scale", powers=torch.float8_e8m0fnu),
    "GPTQ": Gptq(),
    "AWQ": Awq(group=32),
    "pack-quantized": Packed(scales=torch.bfloat16),
    "nvfp4-pack-quantized": E2m1(run=16),
    "ModelOpt NVFP4": E2m1(library="modelopt", run=16),
}


@pytest.mark.parametrize(
    ("model_type", "name"),
    [*(("qwen3_moe", name) for name in OF_EXPERTS), ("deepseek_v3", "FP8")],
)
def test_codes_of_listed_experts(model_type, name, tmp_path):
    made = folders(tmp_path, OF_EXPERTS[name], model_type, **EXPERTS[model_type])
    floats, codes = map(open_checkpoint, made)
    assert set(codes.tensors) == set(floats.tensors)
    for own, expected in floats.tensors.items():
        np.testing.assert_array_equal(codes.tensors[own], expected, err_msg=own)


@pytest.mark.parametrize(
    ("made", "encoding"),
    [
        (Packed(symmetric=True), "Q4_0"),
        (E2m1(run=16), None),
        (Float8(block=None, compressed="channel"), "F8_E4M3"),
    ],
)
def test_codes_of_experts_that_llm_compressor_lists(made, encoding, tmp_path):
    """As its `GptOssLinearExperts` names them; gates and what they gate take turns in floats."""
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}
    model = random_decoder("gpt_oss", **SIZES | sizes)
    floats, codes = (save_decoder(model, tmp_path / name) for name in ("floats", "codes"))
    packed, plain = {}, {}

    def fill(tensors):
        for name, x in tensors.items():
            packed[name] = plain[name] = x
            module, _, part = name.partition(".experts.")
            if not part:
                continue
            del packed[name]
            is_bias, x = part.endswith("_bias"), x.clone()
            plain[name] = x
            whole = part.removesuffix("_bias")
            parts = {"down_proj": x}
            if whole == "gate_up_proj":
                parts = {"gate_proj": x[..., 0::2], "up_proj": x[..., 1::2]}
            for own, experts in parts.items():
                for e, expert in enumerate(experts):
                    base = f"{module}.experts.{e}.{own}"
                    if is_bias:
                        packed[f"{base}.bias"] = expert.contiguous()
                        continue
                    stored, numbers = made.pack(base, *expert.T.shape)
                    packed.update({f"{base}.{leaf}": y for leaf, y in stored.items()})
                    expert.copy_(tensor(numbers).T)
        return plain

    rewrite_weights(floats, fill)
    rewrite_weights(codes, lambda _: packed)
    edit_json(codes / "config.json", quantization_config=made.config)
    expected, checkpoint = map(open_checkpoint, (floats, codes))
    assert set(checkpoint.tensors) == set(expected.tensors)
    for own, numbers in expected.tensors.items():
        np.testing.assert_array_equal(checkpoint.tensors[own], numbers, err_msg=own)
    rows = checkpoint.tensors.rows_of("decoder.layers.1.feed_forward.down")
    assert (rows and rows.kinds()) == (encoding and {Encoding[encoding]})


def stacked(tensors):
    """Stack experts as mlx-lm 0.32.2 does when it converts."""
    usual, whole, experts = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}, {}, {}
    for name, x in tensors.items():
        if each := re.fullmatch(r"(.+)\.experts\.(\d+)\.(\w+)\.(\w+)", name):
            place = f"{each[1]}.switch_mlp.{usual.get(each[3], each[3])}.{each[4]}"
            experts.setdefault(place, {})[int(each[2])] = x
        else:
            whole[name] = x
    return whole | {name: torch.stack([x[e] for e in range(len(x))]) for name, x in experts.items()}


@pytest.mark.parametrize(
    ("model_type", "made", "encoding"),
    [
        ("qwen3_moe", Mlx(), "Q4_1"),
        ("qwen3_moe", Mlx(of_up=6), "Q4_1"),
        ("qwen3_moe", E2m1(library="mlx", powers=(118, 124)), "MXFP4"),
        ("qwen3_moe", E2m1(library="mlx", run=16, largest=True), None),
        ("mixtral", Mlx(bits=3), "Q4_1"),
        ("deepseek_v3", Mxfp8(library="mlx"), "F8_E4M3"),
    ],
)
def test_codes_of_experts_that_mlx_stacks(model_type, made, encoding, tmp_path):
    sizes = EXPERTS.get(model_type, {"num_local_experts": 8, "num_experts_per_tok": 2})
    places = folders(tmp_path, made, model_type, **sizes)
    rewrite_weights(places[1], stacked)
    floats, codes = map(open_checkpoint, places)
    assert set(codes.tensors) == set(floats.tensors)
    for own, expected in floats.tensors.items():
        np.testing.assert_array_equal(codes.tensors[own], expected, err_msg=own)
    rows = codes.tensors.rows_of("decoder.layers.1.feed_forward.down")
    assert (rows and rows.kinds()) == (encoding and {Encoding[encoding]})


def test_parts_of_stacked_experts_that_contradict_one_another_are_one_line(tmp_path):
    _, codes = folders(tmp_path, Mlx(), "qwen3_moe", **EXPERTS["qwen3_moe"])
    rewrite_weights(codes, stacked)
    gates = UP.replace("up_proj", "switch_mlp.gate_proj")
    rewrite_weights(codes, lambda tensors: tensors | {f"{gates}.biases": torch.ones(7, 32, 2)})
    assert "experts.7.gate_proj has no biases" in one_line(KvcastError, open_checkpoint, codes)


@pytest.mark.parametrize("block", [(32, 32), None])
def test_codes_of_stacked_experts(block, tmp_path):
    model = random_decoder("qwen3_moe", **SIZES | EXPERTS["qwen3_moe"])
    floats, codes = tmp_path / "floats", tmp_path / "codes"
    for folder in (floats, codes):
        save_decoder(model, folder, save_original_format=False)
    made, plain, packed = Float8(block=block), {}, {}

    def fill(tensors):
        for name, matrices in tensors.items():
            packed[name] = plain[name] = matrices
            if matrices.dim() != 3:
                continue
            # Gates and what they gate have a scale each.
            halves = 2 if block is None and "gate_up" in name else 1
            outputs, inputs = matrices.shape[1] // halves, matrices.shape[2]
            each = [made.pack(name, outputs, inputs) for _ in range(len(matrices) * halves)]
            packed[name] = torch.stack([parts["weight"] for parts, _ in each])
            packed[name] = packed[name].reshape(matrices.shape)
            scales = torch.stack([parts["weight_scale_inv"] for parts, _ in each])
            counts = (halves, 1) if block is None else scales.shape[1:]
            packed[f"{name}_scale_inv"] = scales.reshape(len(matrices), *counts)
            plain[name] = tensor(np.stack([numbers for _, numbers in each])).reshape(matrices.shape)
        return plain

    rewrite_weights(floats, fill)
    rewrite_weights(codes, lambda _: packed)
    edit_json(codes / "config.json", quantization_config=made.config)
    expected = open_checkpoint(floats).tensors
    for own, numbers in open_checkpoint(codes).tensors.items():
        np.testing.assert_array_equal(numbers, expected[own], err_msg=own)


def changed(name, change):
    return lambda tensors: tensors | {f"{UP}.{name}": change(tensors[f"{UP}.{name}"]).contiguous()}


def without(name):
    return lambda tensors: {own: x for own, x in tensors.items() if own != f"{UP}.{name}"}


def spoilt(x):
    return x.index_fill(0, torch.tensor([0]), torch.nan)


@pytest.mark.parametrize(
    ("made", "change", "words"),
    [
        (Gptq(), without("scales"), f"matrix {UP} has no scales: fetch the folder again"),
        (Gptq(), changed("scales", spoilt), "a scale is not finite"),
        (Gptq(), changed("scales", lambda x: x[:1]), "scales has shape [1, 96], expected [2, 96]"),
        (Gptq(), changed("qzeros", lambda x: x[:, :3]), "qzeros has shape [2, 3]"),
        (Gptq(), changed("qweight", lambda x: x.float()), "qweight is F32, not I32"),
        (Gptq(), changed("qweight", lambda x: x[0]), "qweight has shape [96]: it is no matrix"),
        (Gptq(), changed("g_idx", lambda x: x + 1), "g_idx names a group that is none of 2"),
        (Gptq(), changed("g_idx", lambda x: x[1:]), "g_idx has shape [63], expected [64]"),
        (Awq(), changed("qzeros", lambda x: x[:, :3]), "qzeros has shape [1, 3] for 1 groups"),
        (Packed(), without("weight_shape"), "has no weight_shape"),
        (Packed(), changed("weight_shape", lambda x: x + 32), "contradict one another"),
        (Packed(), changed("weight_packed", lambda x: x[:, 1:]), "7 words do not hold 64 codes"),
        (Packed(), changed("weight_zero_point", lambda x: x[:, :1]), "contradict one another"),
        (Float8(), changed("weight_scale_inv", lambda x: x[:1]), "scales of shape [1, 1]"),
        (Float8(), changed("weight_scale_inv", spoilt), "a scale is not finite"),
        (Float8(), without("weight"), "has a scale and no codes"),
        (Float8(), changed("weight_scale_inv", lambda x: x.int()), "has scales of I32, not F32"),
        (E2m1(library="fp8"), changed("weight", lambda x: x[0]), "for codes of shape [32]"),
        (Int8(), without("weight"), "has no weight"),
        (Bitsandbytes(), without("weight"), "it has no codes"),
        (Bitsandbytes(), without("weight.quant_map"), "has no quant_map"),
        (Bitsandbytes(), changed("weight", lambda x: x[1:]), "do not hold 6144 codes of 4 bits"),
        (Bitsandbytes(), changed("weight.absmax", spoilt), "a scale is not finite"),
        (Bitsandbytes(), changed(f"weight.{STATE}", lambda x: x[1:]), "is no JSON object"),
        (Bitsandbytes(nested=True), changed("weight.absmax", lambda x: x[1:]), "not of 96 blocks"),
        (BitsandbytesInt8(), changed("SCB", lambda x: x[1:]), "SCB has shape [95], expected [96]"),
        (E2m1(), changed("weight_scale", lambda x: x.fill_(255)), "a scale is not finite"),
        (E2m1(), changed("weight_scale", lambda x: x[1:]), "scales of shape [95, 2]"),
        (E2m1(), changed("weight_packed", lambda x: x[:, :31]), "for codes of shape [96, 31]"),
        (E2m1(run=16), changed("weight_global_scale", lambda x: x * 0), "a scale is not finite"),
        (E2m1(run=16), changed("weight_scale", lambda x: x[:, :2]), "scales of shape [96, 2]"),
        (E2m1(run=16), without("weight_global_scale"), "it is mxfp4-pack-quantized, but"),
        (E2m1(library="mlx"), changed("scales", lambda x: x[:, :1]), "scales has shape [96, 1]"),
        (E2m1(library="fp8"), changed("scale", lambda x: x[:1]), "scales of shape [1, 2]"),
        (
            E2m1(library="modelopt", run=16),
            changed("weight_scale_2", lambda x: x.repeat(2)),
            "weight_scale_2 has 2 numbers",
        ),
        (E2m1(library="modelopt", run=16), without("weight_scale_2"), "has no weight_scale_2"),
        (Int8(symmetric=False), changed("weight_zero_point", lambda x: x[1:]), "zero points of"),
        (
            Packed(symmetric=True),
            changed("weight_scale", lambda x: x[:, :1]),
            "weight_scale has shape [96, 1] for groups of 32",
        ),
        (Packed(), changed("weight_packed", lambda x: x.byte()), "it is mxfp4-pack-quantized, but"),
        (Torchao(), changed("_weight_scale", lambda x: x[1:]), "_weight_scale has shape [95, 2]"),
        (Torchao(), changed("_weight_scale", spoilt), "a scale is not finite"),
        (Torchao(), changed("_weight_zero_point", lambda x: x[1:]), "contradict one another"),
        (
            TorchaoPairs(),
            changed("_weight_scale", lambda x: x.T),
            "_weight_scale has shape [96, 2]",
        ),
        (TorchaoPairs(), changed("_weight_zero_point", spoilt), "a scale is not finite"),
        (TorchaoPairs(), changed("_weight_zero_point", lambda x: x[1:]), "expected [2, 96]"),
        (
            Awq(bits=6, auto_round=True),
            changed("qweight", lambda x: x[:, 1:]),
            "no eights of codes",
        ),
        (Torchao(), changed("_weight_qdata", lambda x: x.int()), "_weight_qdata is I32, not I8"),
        (Mlx(), without("biases"), "has no biases"),
        (Hqq(), without("scale"), "has no scale"),
        (Hqq(), changed("zero", spoilt), "a scale is not finite"),
        (Hqq(), changed("zero", lambda x: x.T), "zero has shape [1, 192], expected [192, 1]"),
        (Hqq(), changed("shape", lambda x: x + 1), "do not divide 97 x 65"),
        (Hqq(), changed("shape", lambda x: x * 2), "does not hold 192 x 128 codes of 4 bits"),
        (Hqq(), changed("packing", lambda x: x + 1), "codes of this packing are not supported"),
        (Hqq(), changed("axis", lambda x: x + 2), "groups of 32 by axis 3 do not divide"),
        (Mlx(), changed("biases", spoilt), "a scale is not finite"),
        (Mlx(), changed("scales", lambda x: x[:, 1:]), "scales has shape [96, 1]"),
    ],
)
def test_parts_that_contradict_one_another_are_one_line(made, change, words, tmp_path):
    _, codes = folders(tmp_path, made)
    rewrite_weights(codes, change)
    assert words in one_line(KvcastError, open_checkpoint, codes)


@pytest.mark.parametrize(
    ("made", "config", "words"),
    [
        (Gptq(), {"bits": 5}, "GPTQ of 5 bits is not supported: one of 2, 3, 4, 8"),
        (Gptq(), {"bits": None}, "bits is missing"),
        (Gptq(), {"checkpoint_format": "gptq_p"}, "checkpoint_format 'gptq_p' is not supported"),
        (Gptq(), {"group_size": 0}, "group_size must be a whole number above 0, or -1"),
        (Awq(), {"version": "gemv"}, "AWQ other than gemm of 4 to 7 bits is not supported"),
        (Mlx(), {"mode": "mxfp6"}, "MLX's mode 'mxfp6' of 4 bits is not supported"),
        (E2m1(library="mlx"), {"group_size": 64}, "groups of 64 are not supported in mode mxfp4"),
        (ModeloptFloat8(), {"quant_algo": "W4A8_AWQ"}, "ModelOpt's 'W4A8_AWQ' is not supported"),
        (
            Gptq(auto_round=True, symmetric=True),
            {"packing_format": "auto_round:llm_compressor"},
            "AutoRound's packing 'auto_round:llm_compressor' is not supported: export it as one of",
        ),
        (
            Packed(),
            {"transform_config": {"config_groups": {}}},
            "transform_config is not supported",
        ),
        (Packed(), {"format": "marlin-24"}, "of the format 'marlin-24' is not supported"),
        (Packed(), {"config_groups": {}}, "config_groups must quantize"),
        (Packed(), {"format": ["x"]}, "of the format \"['x']\" is not supported"),
        (Float8(), {"weight_block_size": [0, 128]}, "weight_block_size must be two"),
    ],
)
def test_other_variants_are_one_line(made, config, words, tmp_path):
    _, codes = folders(tmp_path, made)
    edit_json(codes / "config.json", **{made.named: {**made.config, **config}})
    assert words in one_line(KvcastError, open_checkpoint, codes)
