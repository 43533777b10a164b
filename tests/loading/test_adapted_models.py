"""Models with adapters, as users open them: the same on every runtime, and each its own export."""

from pathlib import Path

import numpy as np
import pytest
import torch

import kvcast
from checkpoints.tiny_decoders import random_decoder, save_decoder
from kit.adapters import add_to, factors, product, write_gguf_adapter, write_peft
from kit.in_transformers import random_t5, save_t5
from kit.models import own_cache
from kit.tiny_gguf import WIDTH, tiny_llama
from kvcast.bundle.manifest import Manifest, read_bundle
from kvcast.checkpoints.source import open_adapters, open_checkpoint
from kvcast.cli import main
from kvcast.errors import UsageError
from kvcast.loading.opening import model_digest, open_model
from kvcast.loading.params import LoadParams
from kvcast.runtimes.target import TARGETS
from kvcast.spec.runtimes import BundlePrecision

QUERY = "blk.0.attn_q.weight"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "base.gguf")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    names = [f"{name}.lora_{side}" for name in (QUERY, "blk.1.ffn_up.weight") for side in "ab"]
    pairs = [matrix for seed in (0, 1) for matrix in factors((64, WIDTH), 2, seed=seed)]
    return write_gguf_adapter(tmp_path / "adapter.gguf", dict(zip(names, pairs, strict=True)))


def test_logits_are_those_of_a_model_that_was_changed_likewise(tmp_path: Path) -> None:
    module = "model.layers.0.self_attn.v_proj"
    pair = factors((16, 24), 2)
    oracle = random_decoder("llama", sliding_window=None)
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            parameter.normal_(mean=float("norm" in name), std=0.15)
    folder = save_decoder(oracle, tmp_path / "base")
    lora = write_peft(tmp_path / "adapter", {module: pair})
    checkpoint = open_checkpoint(folder, open_adapters(str(lora)))
    tokens = np.random.default_rng(1).integers(0, 19, 12)
    logits = []
    for of in (open_checkpoint(folder), checkpoint):
        precision = BundlePrecision(quantize="none")
        runtime = TARGETS["native"].open_checkpoint(of, precision, 1)
        rows, _ = runtime.decode([tokens], runtime.new_cache(1, 12), positions=range(12))
        logits.append(rows[0].copy())
    add_to(oracle, {module: 1.5 * product(*pair)})
    with torch.no_grad():
        expected = oracle(torch.from_numpy(tokens)[None]).logits[0].numpy()
    np.testing.assert_allclose(logits[1], expected, atol=1e-4)
    assert np.abs(logits[0] - expected).max() > 1e-2


def test_every_runtime_writes_the_adapted_models_tokens_and_each_has_its_export(
    llama: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = own_cache(monkeypatch, tmp_path / "cache")
    prompt = [1, 5, 9, 30]

    def written(runtime: str, *adapters: str, quantize: str = "none") -> list[int]:
        model = kvcast.load(llama, runtime=runtime, quantize=quantize, adapter=adapters)
        return model.generate(prompt, max_new_tokens=12).tokens

    plain, adapted = written("native"), written("native", str(adapter))
    assert plain != adapted
    assert written("native", f"{adapter}=0") == plain
    assert written("eager", str(adapter)) == adapted
    assert written("onnx", str(adapter)) == adapted
    assert written("onnx") == plain
    assert len(list((cache / "bundles").glob("*/bundle.json"))) == 2
    assert len(written("native", str(adapter), quantize="int8")) > 0


def test_a_bundle_names_its_adapters_and_takes_no_others(
    llama: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle"
    words = ["export", str(llama), "-o", str(bundle), "--runtime", "native", "--quantize", "none"]
    assert main([*words, "--adapter", f"{adapter}=0.5", "--quiet"]) == 0
    manifest = read_bundle(bundle)
    (record,) = manifest.adapters
    assert record == {
        "name": "adapter.gguf",
        "sha256": open_adapters(str(adapter))[0].digest(),
        "weight": 0.5,
    }
    assert Manifest.from_json(manifest.to_json()) == manifest
    with pytest.raises(UsageError, match="takes no adapters"):
        kvcast.load(bundle, adapter=str(adapter))
    capsys.readouterr()
    tokens = kvcast.load(llama, quantize="none", adapter=f"{adapter}=0.5").generate([1, 5]).tokens
    assert kvcast.load(bundle).generate([1, 5]).tokens == tokens


def test_a_models_digest_tells_its_adapters(llama: Path, adapter: Path) -> None:
    digests = {
        model_digest(llama, LoadParams(adapter=given))
        for given in ((), (str(adapter),), (f"{adapter}=2",))
    }
    assert len(digests) == 3


def test_an_adapter_of_another_model_is_a_notice(tmp_path: Path) -> None:
    model, module = random_t5("T5_11"), "encoder.block.0.layer.0.SelfAttention.q"
    base = save_t5(model, tmp_path / "Flan")
    pair = {module: factors(tuple(model.get_submodule(module).weight.shape), 2)}
    trained_for = ("someone/flan", "someone/other", "")
    adapters = [
        write_peft(tmp_path / str(i), pair, base_model_name_or_path=name)
        for i, name in enumerate(trained_for)
    ]
    opened = open_model(base, LoadParams(quantize="none", adapter=[str(path) for path in adapters]))
    lines = [line for line in opened.notices if "trained for" in line]
    assert lines == [f"1 was trained for someone/other, which may not be {base}"]


def test_commands_take_adapters(
    llama: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", "--model", str(llama), "--max-new-tokens", "8", "--quantize", "none"]
    written = []
    for more in ([], ["--adapter", str(adapter)], ["--lora", str(adapter)]):
        assert main([*words, *more, "--quiet", "hello"]) == 0
        written.append(capsys.readouterr().out)
    assert written[0] != written[1] == written[2]
    assert main(["serve", str(llama), "demo", "--adapter", str(adapter)]) == 2
    assert "--adapter is for one model" in capsys.readouterr().err
    assert main(["doctor", "--adapter", str(adapter)]) == 2
    assert "--adapter needs a MODEL" in capsys.readouterr().err
