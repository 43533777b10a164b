"""Adapters are merged as PEFT and llama.cpp merge them, and what is not read is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from checkpoints.folder_checks import assert_same_tensors, rewrite_weights
from checkpoints.tiny_decoders import random_decoder, save_decoder
from checkpoints.tiny_whisper import edit_json, random_model, save
from kit.adapters import add_to, assert_close, factors, product, write_gguf_adapter, write_peft
from kit.errors import one_line
from kit.in_transformers import random_t5, save_t5
from kit.tiny_gguf import WIDTH, permuted, sizes, tensors, tiny_llama, vocabulary, write
from kvcast.checkpoints import source as opening
from kvcast.checkpoints.source import fingerprint, open_adapters, open_checkpoint
from kvcast.errors import InputMissingError, KvcastError, UsageError
from kvcast.spec.stored_matrices import Encoding

LLAMA = "model.layers.1.self_attn.{}_proj"
QUERY, PAIR = LLAMA.format("q"), factors((32, 24), 2)
TOKENS = "model.embed_tokens.token_adapter.trainable_tokens_delta"
GGUF_QUERY = "blk.0.attn_q.weight"
GGUF_PAIR = {
    f"{GGUF_QUERY}.lora_{x}": m for x, m in zip("ab", factors((64, WIDTH), 2), strict=True)
}


def shapes_of(model, modules):
    return {name: tuple(model.get_submodule(name).weight.shape) for name in modules}


CASES = {
    "llama": (
        lambda: random_decoder("llama"),
        save_decoder,
        [LLAMA.format("q"), LLAMA.format("v"), "model.layers.0.mlp.up_proj"],
    ),
    "whisper": (
        random_model,
        save,
        [
            "model.encoder.conv1",
            "model.encoder.layers.0.self_attn.k_proj",
            "model.decoder.layers.1.encoder_attn.v_proj",
            "model.decoder.layers.2.fc1",
        ],
    ),
    "t5": (
        lambda: random_t5("T5_11"),
        save_t5,
        [
            "encoder.block.0.layer.0.SelfAttention.k",
            "decoder.block.1.layer.1.EncDecAttention.v",
            "decoder.block.0.layer.2.DenseReluDense.wi_1",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_two_adapters_with_weights_are_the_sum_of_their_products(case, tmp_path):
    make, save_model, modules = CASES[case]
    shapes = shapes_of(make(), modules)
    few = {name: factors(shape, 2) for name, shape in shapes.items()}
    more = {name: factors(shapes[name], 3, seed=1) for name in modules[1:]}
    write_peft(tmp_path / "few", few)
    write_peft(tmp_path / "more", more, r=3)
    base = save_model(make(), tmp_path / "base")
    deltas = {name: 1.5 * product(*pair) for name, pair in few.items()}
    for name, pair in more.items():
        deltas[name] = deltas[name] - 0.25 * product(*pair)
    same = save_model(add_to(make(), deltas), tmp_path / "same")
    adapters = open_adapters([str(tmp_path / "few"), f"{tmp_path / 'more'}=-0.25"])
    merged = open_checkpoint(base, adapters)
    wanted = open_checkpoint(same)
    assert merged.dimensions == wanted.dimensions
    assert_close(merged.tensors, wanted.tensors)


CONFIGURATIONS = {
    "rank_pattern": ({"rank_pattern": {"q_proj": 2}, "r": 5}, 3 / 2),
    "rank_pattern of a layer": ({"rank_pattern": {r"layers\.1\.self_attn.q_proj": 2}}, 3 / 2),
    "alpha_pattern": ({"alpha_pattern": {"v_proj": 1, "self_attn.q_proj": 7}}, 7 / 2),
    "use_rslora": ({"use_rslora": True}, 3 / 2**0.5),
    "defaults": ({"lora_alpha": None}, 8 / 2),
    "without effect": (
        {"lora_dropout": 0.1, "target_modules": ["q_proj"], "init_lora_weights": "gaussian",
         "use_dora": False, "corda_config": None, "later": 3},
        3 / 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_fields_that_scale_a_product(case, tmp_path):
    config, scale = CONFIGURATIONS[case]
    check_sum(
        write_peft(tmp_path / "adapter", {QUERY: PAIR}, **config), QUERY, scale * product(*PAIR)
    )


def check_sum(adapter, module, delta):
    base = save_decoder(random_decoder("llama"), adapter.parent / "base")
    same = save_decoder(add_to(random_decoder("llama"), {module: delta}), adapter.parent / "same")
    adapted = open_checkpoint(base, open_adapters(str(adapter)))
    assert_close(adapted.tensors, open_checkpoint(same).tensors)


def test_weights_with_their_inputs_first_are_changed_by_the_transposed_product(tmp_path):
    module = LLAMA.format("o")  # its weight is [24, 32]
    adapter = write_peft(tmp_path / "adapter", {module: PAIR}, fan_in_fan_out=True)
    check_sum(adapter, module, 1.5 * product(*PAIR).T)


def test_tensors_that_were_trained_whole_replace_the_models_in_proportion(tmp_path):
    base = random_decoder("llama")
    saved = {
        "lm_head.weight": np.full((19, 24), 2, np.float32),
        "model.layers.0.self_attn.q_proj.base_layer.bias": np.ones(32, np.float32),
        "model.layers.2.input_layernorm.modules_to_save.weight": np.zeros(24, np.float32),
    }
    adapter = write_peft(tmp_path / "adapter", {}, saved, bias="all", modules_to_save=["lm_head"])
    folder = save_decoder(base, tmp_path / "base")
    before = {name: np.array(tensor) for name, tensor in open_checkpoint(folder).tensors.items()}
    whole = open_checkpoint(folder, open_adapters(str(adapter))).tensors
    half = open_checkpoint(folder, open_adapters(f"{adapter}=0.5")).tensors
    query = slice(0, 32)
    for name, part, trained in (
        ("decoder.head.weight", slice(None), 2),
        ("decoder.layers.0.attention.qkv.bias", query, 1),
        ("decoder.layers.2.attention_norm.weight", slice(None), 0),
    ):
        np.testing.assert_array_equal(whole[name][part], np.full_like(before[name][part], trained))
        np.testing.assert_allclose(half[name][part], (before[name][part] + trained) / 2, atol=1e-6)
        before[name][part] = whole[name][part]
    assert_same_tensors(whole, before)


@pytest.mark.parametrize("adapted", ["embedding", "head"])
def test_of_a_tied_pair_only_the_trained_one_changes(adapted, tmp_path):
    folder = save_decoder(random_decoder("qwen3"), tmp_path / "base")
    assert open_checkpoint(folder).dimensions.tied
    lora_a, lora_b = factors((19, 24), 2)
    matrices, saved, table = {}, {}, "model.embed_tokens.lora_embedding"
    if adapted == "head":
        matrices = {"lm_head": (lora_a, lora_b)}
    else:
        saved = {f"{table}_A": lora_b.T, f"{table}_B": lora_a.T}
    adapter = write_peft(tmp_path / "adapter", matrices, saved)
    delta = 1.5 * product(lora_a, lora_b)
    checkpoint = open_checkpoint(folder, open_adapters(str(adapter)))
    before = open_checkpoint(folder).tensors["decoder.embedding.weight"]
    assert not checkpoint.dimensions.tied
    for name in ("embedding", "head"):
        wanted = before + delta if name == adapted else before
        np.testing.assert_allclose(
            checkpoint.tensors[f"decoder.{name}.weight"], wanted, rtol=1e-5, atol=1e-5
        )


def test_a_gguf_adapter_changes_queries_in_the_files_order_and_embeddings_by_rows(tmp_path):
    arrays = tensors(tied=True)
    query = "blk.1.attn_q.weight"
    lora_a, lora_b = factors(arrays[query].shape, 2)
    embedding_a, embedding_b = factors(arrays["token_embd.weight"].shape[::-1], 2)
    adapter = write_gguf_adapter(
        tmp_path / "adapter.gguf",
        {
            f"{query}.lora_a": lora_a,
            f"{query}.lora_b": permuted(query, lora_b),
            "token_embd.weight.lora_a": embedding_a.T,
            "token_embd.weight.lora_b": embedding_b,
            "output_norm.weight": np.ones(WIDTH, np.float32),
        },
    )
    arrays["output.weight"] = arrays["token_embd.weight"]
    same = arrays | {
        query: arrays[query] + 0.5 * 1.5 * product(lora_a, lora_b),
        "token_embd.weight": arrays["token_embd.weight"]
        + 0.5 * 1.5 * product(embedding_a, embedding_b).T,
        "output_norm.weight": (arrays["output_norm.weight"] + 1) / 2,
    }
    values = sizes("llama") | vocabulary()
    files = [
        write(
            tmp_path / f"{name}.gguf", "llama", values,
            {name: permuted(name, array) for name, array in given.items()},
        )
        for name, given in (("base", tensors(tied=True)), ("same", same))
    ]  # fmt: skip
    merged = open_checkpoint(files[0], open_adapters(f"{adapter}=0.5"))
    wanted = open_checkpoint(files[1])
    assert merged.dimensions == wanted.dimensions
    assert_close(merged.tensors, wanted.tensors)


def test_what_an_adapter_leaves_of_a_quantised_matrix_keeps_its_codes(tmp_path):
    values = sizes("llama") | vocabulary()
    path = write(tmp_path / "base.gguf", "llama", values, tensors(), {"attn_k.weight": "Q8_0"})
    adapter = write_gguf_adapter(tmp_path / "adapter.gguf", GGUF_PAIR)
    merged = open_checkpoint(path, open_adapters(str(adapter))).tensors
    rows = merged.rows_of("decoder.layers.0.attention.qkv.weight")
    assert rows.encodings[[0, 63, 64]].tolist() == [Encoding.F32, Encoding.F32, Encoding.Q8_0]


REFUSED = {
    "another kind": ({"peft_type": "LOHA"}, "LOHA"),
    "no kind": ({"peft_type": None}, "None"),
    "no magnitudes": ({"use_dora": True}, "q_proj: it has no lora_magnitude_vector"),
    "no bias": ({"lora_bias": True}, "it has no lora_B.bias"),
    "activation": ({"alora_invocation_tokens": [1]}, "changes only what follows these tokens"),
    "repeated layers": ({"layer_replication": [[0, 2], [1, 3]]}, "as layers of their own"),
    "no parameters": ({"target_parameters": "experts"}, "target_parameters must list names"),
    "two parameters": (
        {"target_parameters": ["q_proj.weight", "q_proj.scale"]},
        "target_parameters has several",
    ),
    "no flag of DoRA": ({"use_dora": "yes"}, "use_dora must be true or false"),
    "later fields": ({"use_later\n": True}, "use_later"),
    "another start": ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
    "another rank": ({"r": 4}, "rank 4"),
    "no rank": ({"r": -1}, "r must be"),
    "no alpha": ({"lora_alpha": "8"}, "lora_alpha must be"),
    "no pattern": ({"rank_pattern": {"q_proj(": 2}}, "names no modules"),
    "a pattern that takes for ever": ({"alpha_pattern": {"(a+)+b": 2}}, "names no modules"),
    "no patterns": ({"alpha_pattern": [1]}, "must be an object"),
    "no flag": ({"fan_in_fan_out": 1}, "true or false"),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_decoder(random_decoder("llama"), tmp_path_factory.mktemp("llama") / "base")


def problem(base, *adapters, kind=KvcastError):
    def read():
        dict(open_checkpoint(base, open_adapters([str(adapter) for adapter in adapters])).tensors)

    return one_line(kind, read)


@pytest.mark.parametrize("case", REFUSED)
def test_configurations_that_are_not_computed_are_refused(case, llama, tmp_path):
    config, message = REFUSED[case]
    assert message in problem(llama, write_peft(tmp_path / "adapter", {QUERY: PAIR}, **config))


DAMAGED = {
    "a module that the model lacks": ({LLAMA.format("q").replace("1", "9"): PAIR}, {}, "layers.9"),
    "another shape": ({QUERY: factors((24, 32), 2)}, {}, "has shape [32, 24]"),
    "NaN": ({QUERY: (np.nan * PAIR[0], PAIR[1])}, {}, "not finite"),
    "infinity": ({QUERY: (PAIR[0], np.inf * PAIR[1])}, {}, "not finite"),
    "NaN in a whole tensor": ({}, {"model.norm.weight": np.full(24, np.nan, "f4")}, "not finite"),
    "more tokens": ({}, {"lm_head.weight": np.ones((20, 24), np.float32)}, "has shape [19, 24]"),
    "magnitudes without DoRA": (
        {QUERY: PAIR}, {f"{QUERY}.lora_magnitude_vector": np.ones(32, "f4")}, "not one of",
    ),
    "a bias without lora_bias": (
        {QUERY: PAIR}, {f"{QUERY}.lora_B.bias": np.ones(32, "f4")}, "lora_B.bias is not one of",
    ),
    "tokens without their ids": ({}, {TOKENS: np.ones((1, 24), "f4")}, "lists no token ids"),
    "one matrix of two": ({}, {f"{QUERY}.lora_A.weight": PAIR[0]}, "has no lora_B"),
    "nothing": ({}, {}, "no tensors"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_tensors_that_do_not_fit_are_refused(case, llama, tmp_path):
    matrices, saved, message = DAMAGED[case]
    assert message in problem(llama, write_peft(tmp_path / "adapter", matrices, saved))


MAGNITUDE, BIAS = f"{QUERY}.lora_magnitude_vector", f"{QUERY}.lora_B.bias"
ONES = np.ones(32, np.float32)
CONTRADICTIONS = {
    "magnitudes of other outputs": (
        {MAGNITUDE: ONES[:24]}, {"use_dora": True}, "has shape [24] for 32 outputs",
    ),
    "magnitudes that are not finite": ({MAGNITUDE: np.inf * ONES}, {"use_dora": True}, "finite"),
    "a bias that is not finite": ({BIAS: np.nan * ONES}, {"lora_bias": True}, "not finite"),
    "a bias of other outputs": ({BIAS: ONES[:24]}, {"lora_bias": True}, "has shape [32]"),
    "tokens of another width": (
        {TOKENS: np.ones((1, 20), "f4")}, {"trainable_token_indices": [1]}, "shape [19, 24]",
    ),
    "more tokens than ids": (
        {TOKENS: np.ones((2, 24), "f4")}, {"trainable_token_indices": [1]}, "of the 1 tokens",
    ),
    "a token beyond the vocabulary": (
        {TOKENS: np.ones((1, 24), "f4")}, {"trainable_token_indices": [19]}, "shape [19, 24]",
    ),
    "a token below the vocabulary": (
        {TOKENS: np.ones((1, 24), "f4")}, {"trainable_token_indices": [-1]}, "no token ids",
    ),
    "ids of another module": (
        {TOKENS: np.ones((1, 24), "f4")}, {"trainable_token_indices": {"wte": [1]}}, "no token ids",
    ),
    "embeddings that are not finite": (
        {TOKENS: np.full((1, 24), np.nan, "f4")}, {"trainable_token_indices": [1]}, "not finite",
    ),
    "parameters that it lacks": (
        {}, {"target_parameters": ["model.layers.1.self_attn.q_proj.scale"]}, "does not have",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_fields_and_tensors_that_contradict_one_another_are_one_line(case, llama, tmp_path):
    saved, config, message = CONTRADICTIONS[case]
    assert message in problem(
        llama, write_peft(tmp_path / "adapter", {QUERY: PAIR}, saved, **config)
    )


@pytest.mark.parametrize(
    ("experts", "outputs", "message"),
    [
        (2, 40, "gate_up_proj has more than 2 experts"),
        (4, 40, "changes model.layers.0.mlp.experts.3.w1.weight"),
        (3, 39, "w3.weight has shape [20, 24]"),
    ],
)
def test_a_lora_of_other_experts_than_files_list_is_refused(experts, outputs, message, tmp_path):
    folder = save_decoder(random_decoder("mixtral"), tmp_path / "base")
    name = "model.layers.0.mlp.experts.lora_{}.weight"
    saved = {name.format("A"): np.ones((2 * experts, 24), np.float32)}
    saved[name.format("B")] = np.ones((outputs, 2 * experts), np.float32)
    targets = ["experts.gate_up_proj"]
    adapter = write_peft(tmp_path / "adapter", {}, saved, target_parameters=targets)
    assert message in problem(folder, adapter)


def test_a_bias_for_a_layer_without_one_is_refused(tmp_path):
    folder = save_decoder(random_decoder("qwen3"), tmp_path / "base")
    adapter = write_peft(tmp_path / "adapter", {QUERY: PAIR}, {BIAS: ONES}, lora_bias=True)
    assert "has no bias, so that neither" in problem(folder, adapter)


def test_a_share_of_dora_is_that_share_of_the_difference(llama, tmp_path):
    saved = {MAGNITUDE: 2 * ONES}
    adapter = write_peft(tmp_path / "adapter", {QUERY: PAIR}, saved, use_dora=True)
    name = "decoder.layers.1.attention.qkv.weight"
    before, half, whole = (
        open_checkpoint(llama, open_adapters(given)).tensors[name]
        for given in ([], f"{adapter}=0.5", str(adapter))
    )
    np.testing.assert_allclose(half, (before + whole) / 2, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(whole[:32], axis=1), 2, rtol=1e-5)


def test_trained_tokens_are_those_of_a_tied_head_that_files_repeat(tmp_path):
    folder = save_decoder(random_decoder("qwen3"), tmp_path / "base")
    rewrite_weights(
        folder, lambda x: x | {"lm_head.weight": x["model.embed_tokens.weight"].clone()}
    )
    adapter = write_peft(
        tmp_path / "adapter", {}, {TOKENS: np.ones((2, 24), "f4")}, trainable_token_indices=[7, 3]
    )
    checkpoint = open_checkpoint(folder, open_adapters(str(adapter)))
    assert checkpoint.dimensions.tied
    wanted = open_checkpoint(folder).tensors["decoder.embedding.weight"].copy()
    wanted[[7, 3]] = 1
    np.testing.assert_array_equal(checkpoint.tensors["decoder.embedding.weight"], wanted)


def test_a_whispers_head_stays_its_embedding(tmp_path):
    folder = save(random_model(), tmp_path / "base")
    adapter = write_peft(tmp_path / "adapter", {"proj_out": factors((13, 8), 2)})
    assert "head differs from the embedding" in problem(folder, adapter)


GGUF_REFUSED = {
    "a model": ({"kind": "model"}, {}, "general.type is 'model'"),
    "another kind": ({"adapter": "control_vector"}, {}, "adapter.type is 'control_vector'"),
    "another architecture": ({"architecture": "qwen3"}, GGUF_PAIR, "'qwen3'"),
    "one matrix of two": ({}, {f"{GGUF_QUERY}.lora_a": np.ones((2, WIDTH), "f4")}, "one matrix"),
    "no product": (
        {},
        {f"{GGUF_QUERY}.lora_a": np.ones((2, WIDTH), "f4"),
         f"{GGUF_QUERY}.lora_b": np.ones((64, 3), "f4")},
        "no product",
    ),
    "nothing": ({}, {}, "no tensors"),
}  # fmt: skip


@pytest.mark.parametrize("case", GGUF_REFUSED)
def test_gguf_adapters_that_do_not_fit_are_refused(case, tmp_path):
    values, arrays, message = GGUF_REFUSED[case]
    adapter = write_gguf_adapter(tmp_path / "adapter.gguf", arrays, **values)
    assert message in problem(tiny_llama(tmp_path / "base.gguf"), adapter)


def test_pickles_other_layouts_and_names_of_nothing_are_one_line(llama, tmp_path):
    pickled = write_peft(tmp_path / "pickled", {QUERY: PAIR})
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    assert "no pickled weights" in problem(llama, pickled, kind=InputMissingError)
    for name in ("", "nothing-here", "nothing-here=0.5"):
        assert "no adapter" in problem(llama, name, kind=InputMissingError)
    adapter = write_peft(tmp_path / "adapter", {QUERY: PAIR})
    for weight in ("x", "nan", "inf", ""):
        assert "=WEIGHT" in problem(llama, f"{adapter}={weight}", kind=UsageError)
    (tmp_path / "empty").mkdir()
    assert "holds no adapter" in problem(llama, tmp_path / "empty")
    gguf_model = tiny_llama(tmp_path / "base.gguf")
    assert "convert_lora_to_gguf" in problem(gguf_model, adapter, kind=UsageError)
    other = write_gguf_adapter(tmp_path / "adapter.gguf", GGUF_PAIR)
    assert "fits GGUF files" in problem(llama, other, kind=UsageError)
    assert "no GGUF file" in problem(llama, adapter / "adapter_config.json", kind=UsageError)


def test_an_adapter_of_the_hub_is_its_files_alone(llama, tmp_path, monkeypatch):
    adapter = write_peft(tmp_path / "adapter", {QUERY: PAIR})
    asked = []

    def download(name, on_phase, patterns):
        asked.append((name, patterns))
        return adapter

    monkeypatch.setattr(opening, "download", download)
    (opened,) = open_adapters("org/name@v2=0.5")
    assert (opened.name, opened.weight) == ("org/name@v2", 0.5)
    assert [name for name, _ in asked] == ["org/name@v2"]
    assert "adapter_model.safetensors" in asked[0][1]
    assert not any("model-" in name and "adapter" not in name for name in asked[0][1])


def test_a_fingerprint_tells_adapters_their_weights_and_their_order_apart(llama, tmp_path):
    names = [
        str(write_peft(tmp_path / str(seed), {QUERY: factors((32, 24), 2, seed=seed)}))
        for seed in (1, 2)
    ]
    digests = [
        fingerprint(llama, open_adapters(given))
        for given in ([], names[:1], names[1:], names, [f"{names[0]}=0.5"])
    ]
    assert len(set(digests)) == len(digests)
    assert fingerprint(llama) == digests[0]
    edit_json(Path(names[0]) / "adapter_config.json", lora_alpha=4)
    assert fingerprint(llama, open_adapters(names[0])) != digests[1]
    assert json.loads((Path(names[0]) / "adapter_config.json").read_text())["lora_alpha"] == 4
