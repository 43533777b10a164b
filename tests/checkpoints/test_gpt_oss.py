"""GPT-OSS's experts, in floats and in its codes of 4 bits, which stay as they are."""

import numpy as np
import pytest
import torch

from checkpoints.folder_checks import rewrite_weights
from checkpoints.tiny_decoders import random_decoder, save_decoder
from checkpoints.tiny_whisper import edit_json
from kit.adapters import assert_close, write_peft
from kit.errors import one_line
from kvcast.checkpoints.source import open_adapters, open_checkpoint
from kvcast.errors import KvcastError
from kvcast.families.decoder import DECODER
from kvcast.runtimes.native.bundles import open_checkpoint as opened_on_native
from kvcast.runtimes.native.library import Format, Machine
from kvcast.runtimes.native.plan_builder import Experts
from kvcast.runtimes.native.weights import CheckpointWeights, packed_constants
from kvcast.spec.runtimes import OWN, BundlePrecision

WIDTH, INNER = 64, 32
NUMBERS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
QUANTISED = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}


def in_codes(tensors):
    """Codes and scales in place of the experts, and the floats that they stand for."""
    generator, codes, floats = torch.Generator().manual_seed(0), dict(tensors), dict(tensors)
    table = torch.cat([NUMBERS, -NUMBERS])
    for name in tensors:
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        experts, inputs, outputs = tensors[name].shape
        sizes = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*sizes, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(120, 126, sizes, dtype=torch.uint8, generator=generator)
        # The low half of a byte comes before the high one.
        each = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()
        numbers = table[each] * 2.0 ** (scales.float() - 127)[..., None]
        floats[name] = numbers.flatten(-2).transpose(1, 2).contiguous()
        del codes[name]
        codes |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return codes, floats


@pytest.fixture
def folders(tmp_path):
    experts = {"num_local_experts": 3, "num_experts_per_tok": 2}
    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2}
    model = random_decoder("gpt_oss", **experts, **sizes)
    floats, codes = (save_decoder(model, tmp_path / name) for name in ("floats", "codes"))
    rewrite_weights(floats, lambda tensors: in_codes(tensors)[1])
    rewrite_weights(codes, lambda tensors: in_codes(tensors)[0])
    edit_json(codes / "config.json", quantization_config=QUANTISED)
    return floats, codes


def test_codes_read_as_the_floats_that_they_stand_for(folders):
    floats, codes = map(open_checkpoint, folders)
    assert codes.dimensions == floats.dimensions
    assert set(codes.tensors) == set(floats.tensors)
    for name, tensor in floats.tensors.items():
        np.testing.assert_array_equal(codes.tensors[name], tensor, err_msg=name)


def test_codes_are_kept_by_the_own_kernels(folders):
    checkpoint = open_checkpoint(folders[1])
    assert checkpoint.tensors.has_codes()
    manifest, _ = opened_on_native(checkpoint, BundlePrecision(quantize=OWN), 1)
    assert manifest.quantize == OWN
    assert expert_formats(checkpoint) == {Format.INT4_TABLE}


def expert_formats(checkpoint):
    programs = DECODER.write_programs(checkpoint.dimensions)
    weights = CheckpointWeights(
        programs,
        checkpoint.tensors,
        DECODER.tensor_shapes(checkpoint.dimensions),
        checkpoint.tensors.rows_of,
        DECODER.constants(checkpoint.dimensions, checkpoint.tensors),
        BundlePrecision(quantize=OWN),
    )
    packed = packed_constants(Machine(1), list(programs.values()), weights)
    return {of.matrices[0].format for of in packed.values() if isinstance(of, Experts)}


def test_codes_of_another_kind_or_shape_are_one_line(folders):
    _, codes = folders
    edit_json(codes / "config.json", quantization_config={"quant_method": "quanto"})
    assert "of the kind 'quanto'" in one_line(KvcastError, open_checkpoint, codes)
    edit_json(codes / "config.json", quantization_config=QUANTISED)

    def cut(tensors):
        name = next(name for name in tensors if name.endswith("down_proj_blocks"))
        return tensors | {name: tensors[name][..., :15].contiguous()}

    rewrite_weights(codes, cut)
    assert "down_proj" in one_line(KvcastError, open_checkpoint, codes)


def test_a_llamas_configuration_may_not_name_these_codes(tmp_path):
    folder = save_decoder(random_decoder("llama"), tmp_path / "llama")
    edit_json(folder / "config.json", quantization_config=QUANTISED)
    assert "of the kind 'mxfp4', which is not read" in one_line(
        KvcastError, open_checkpoint, folder
    )


def test_an_adapter_changes_floats_of_its_experts_and_others_keep_their_codes(folders, tmp_path):
    generator = np.random.default_rng(0)
    inner, module = {"gate_up_proj": 2 * INNER, "down_proj": WIDTH}, "model.layers.1.mlp.experts"
    saved = {}
    for name, wrapper in (("gate_up_proj", ".base_layer"), ("down_proj", "")):
        inputs = {"gate_up_proj": WIDTH, "down_proj": INNER}[name]
        for side, shape in (("A", (6, inputs)), ("B", (inner[name], 6))):
            matrix = generator.standard_normal(shape).astype(np.float32)
            saved[f"{module}{wrapper}.lora_{side}.weight"] = matrix
    targets = [f"1.mlp.experts.{name}" for name in inner]
    adapter = write_peft(tmp_path / "adapter", {}, saved, target_parameters=targets)
    floats, codes = (open_checkpoint(folder, open_adapters(str(adapter))) for folder in folders)
    assert_close(codes.tensors, floats.tensors)
    before = open_checkpoint(folders[1]).tensors
    for part in ("gate_up", "down"):
        kinds = [codes.tensors.parts_of(f"decoder.layers.{i}.feed_forward.{part}") for i in (0, 1)]
        assert [bool(parts[0].blocks) for parts in kinds] == [True, False]
        name = f"decoder.layers.1.feed_forward.{part}"
        assert np.abs(codes.tensors[name] - before[name]).max() > 1
