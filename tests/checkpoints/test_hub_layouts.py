import pytest
from huggingface_hub.utils import filter_repo_objects

from kvcast.checkpoints import hub
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.errors import InputMissingError, UsageError

MISTRAL = ["params.json", "consolidated.safetensors", "tekken.json"]
OTHER = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
NEVER = [
    "consolidated.00.pth",
    "pytorch_model.bin",
    "flax_model.msgpack",
    "tf_model.h5",
    "model.fp32-00001-of-00002.safetensors",
    "model.safetensors.index.fp32.json",
    "model-Q8_0.gguf",
    "tokenizer.py",
    "onnx.gguf",
]


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """Return a function that downloads a repository with these files and lists what arrived."""

    def fetch(files):
        def snapshot_download(_repository, *, allow_patterns, **_):
            for file in filter_repo_objects(files, allow_patterns=allow_patterns):
                (tmp_path / file).parent.mkdir(exist_ok=True)
                (tmp_path / file).write_text("")
            return str(tmp_path)

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
        assert hub.download("org/name") == tmp_path
        paths = (path for path in tmp_path.rglob("*") if path.is_file())
        return {path.relative_to(tmp_path).as_posix() for path in paths}

    return fetch


def test_where_both_layouts_are_mistrals_is_left_there(fetched):
    assert fetched([*OTHER, *MISTRAL, *NEVER, "tokenizer.model.v3"]) == set(OTHER)


@pytest.mark.parametrize("weights", ["model-00001-of-00002.safetensors", "model.bin"])
def test_so_it_is_with_shards_and_other_formats(fetched, weights):
    assert fetched([weights, *MISTRAL]) == {weights}


def test_mistrals_layout_is_fetched_where_there_is_no_other(fetched):
    files = [*MISTRAL, "tokenizer.model.v3", "config.json", "tokenizer_config.json"]
    shards = ["consolidated-00001-of-00002.safetensors", "consolidated.safetensors.index.json"]
    assert fetched([*files, *shards, *NEVER]) == {*files, *shards}


def test_what_chat_needs_is_fetched_too(fetched):
    files = [*OTHER, "chat_template.jinja", "additional_chat_templates/tool_use.jinja"]
    files += ["generation_config.json", "special_tokens_map.json"]
    assert fetched([*files, *NEVER]) == set(files)


def test_the_folder_of_a_model_in_the_hubs_cache_is_its_snapshot(tmp_path):
    root = tmp_path / "models--org--name"
    (root / "snapshots").mkdir(parents=True)
    with pytest.raises(InputMissingError, match="run hf download org/name again"):
        locate(str(root))
    for commit in ("abc", "def", "ghi"):
        (root / "snapshots" / commit).mkdir()
    (root / "refs").mkdir()
    (root / "refs/main").write_text("def\n")
    snapshot = root / "snapshots" / "def"
    assert locate(str(root)) == locate(str(snapshot)) == locate(str(root / "snapshots")) == snapshot
    assert locate(str(tmp_path)) == snapshot
    (tmp_path / "models--org--other").mkdir()
    with pytest.raises(UsageError, match=r"several models: .* \(org/name, org/other\)"):
        locate(str(tmp_path))
    (root / "blobs").mkdir()
    (root / "blobs/012.incomplete").touch()
    (snapshot / "config.json").write_text("{}")
    with pytest.raises(InputMissingError, match=r"download incomplete .*run hf download org/name"):
        open_checkpoint(locate(str(root)))


@pytest.mark.parametrize("file", ["spiece.model", "vocab.txt"])
def test_what_t5s_and_berts_have_instead_of_a_tokenizer_comes_along(fetched, file):
    files = ["config.json", "model.safetensors", "tokenizer_config.json", file]
    assert fetched([*files, *NEVER]) == set(files)


def test_graphs_are_fetched_with_a_bundle_and_not_with_anothers_exports(fetched):
    # As in distil-whisper/distil-large-v3: gigabytes in several precisions.
    others = ["onnx/encoder_model.onnx", "onnx/decoder_model_merged_quantized.onnx"]
    whisper = [*OTHER, "generation_config.json", "preprocessor_config.json"]
    assert fetched([*whisper, *others]) == set(whisper)


def test_a_bundle_comes_whole(fetched):
    bundle = ["bundle.json", "tokenizer.json", "onnx/decode.onnx", "onnx/decode.onnx.data"]
    bundle += ["text.json", "chat_template.tool_use.jinja", "native/decode.json"]
    assert fetched([*bundle, "README.md"]) == set(bundle)


def test_a_fine_tunes_own_tokenizer_comes_along(fetched):
    files = ["config.json", "model.safetensors", "vocab.json", "merges.txt", "added_tokens.json"]
    assert fetched([*files, "normalizer.json"]) == set(files)
