"""The conditional as AOTInductor compiles it, and the published pattern that has no reset."""

import re
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import kvcast
from conditional.tiny_transformers import FRESH, SAME, SOURCE, Decoder, random_model, sources, steps
from kvcast.conditional.cross_attention import CachedCrossAttention, fill, keep

PAGE = Path(kvcast.__file__).parents[2] / "docs" / "conditional.md"


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


class Published(nn.Module):
    """Computes once and then aliases, as in optimum-executorch: nothing resets the flag."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        shape = (1, attention.num_heads, SOURCE, attention.head_dim)
        self.register_buffer("keys", torch.zeros(shape), persistent=False)
        self.register_buffer("values", torch.zeros(shape), persistent=False)
        self.register_buffer("initialised", torch.zeros(1, dtype=torch.bool), persistent=False)

    def forward(self, hidden: Tensor, states: Tensor) -> Tensor:
        def reuse(keys: Tensor, values: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            return keep(keys), keep(values)

        def recompute(keys: Tensor, values: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
            key, value = self.attention.k_proj(given), self.attention.v_proj(given)
            return fill(keys, self._split(key)), fill(values, self._split(value))

        keys, values = torch.cond(
            self.initialised, reuse, recompute, (self.keys, self.values, states)
        )
        self.initialised.fill_(True)
        query = self._split(self.attention.q_proj(hidden))
        mixed = scaled_dot_product_attention(query, keys, values)
        return self.attention.out_proj(mixed.transpose(1, 2).flatten(2))

    def _split(self, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (self.attention.num_heads, -1)).transpose(1, 2)


class WithReset(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.cached = CachedCrossAttention(attention, rows=1, source_positions=SOURCE)

    def forward(self, hidden: Tensor, states: Tensor, fresh: Tensor) -> Tensor:
        self.cached.reset(fresh)
        return self.cached(hidden, states)[0]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's, of its own doings
def test_without_a_reset_the_second_source_is_answered_with_the_firsts_keys():
    attention = random_model("whisper").model.decoder.layers[0].encoder_attn
    first, second = sources(rows=1)
    hidden = torch.randn(1, 2, first.shape[-1])
    answers = [attention(hidden, source)[0] for source in (first, second)]
    assert (answers[0] - answers[1]).abs().max() > 0.01

    given = (hidden, first)
    published = torch.export.export(Published(attention), given, strict=False).module()
    torch.testing.assert_close(published(hidden, first), answers[0])
    torch.testing.assert_close(published(hidden, second), answers[0])

    given = (hidden, first, FRESH)
    ours = torch.export.export(WithReset(attention), given, strict=False).module()
    torch.testing.assert_close(ours(hidden, first, FRESH), answers[0])
    torch.testing.assert_close(ours(hidden, first, SAME), answers[0])
    torch.testing.assert_close(ours(hidden, second, FRESH), answers[1])
    torch.testing.assert_close(ours(hidden, second, SAME), answers[1])


def page_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The variables after running the page's code, which compiles for half a minute."""
    stock = random_model("whisper")
    (states, other_states), (tokens, _, longer) = sources(rows=1), steps(rows=1)
    names = {
        "model": random_model("whisper"),
        "states": states,
        "other_states": other_states,
        "tokens": tokens,
        "longer": longer,
        "package": str(tmp_path_factory.mktemp("package") / "decoder.pt2"),
    }
    quick = {"aot_inductor.compile_wrapper_opt_level": "O0"}
    with torch._inductor.config.patch(quick), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of its own doings
        for block in page_blocks():
            exec(block, names)
    return {**names, "stock": Decoder(stock)}


@dataclass(frozen=True)
class Call:
    """The C++ of one call of a program, in parts, and its named sizes."""

    rest: str
    read: list[str]
    computed: list[str]
    sizes: dict[str, str]


@pytest.fixture(scope="module")
def call(page):
    with zipfile.ZipFile(page["package"]) as package:
        (wrapper,) = (name for name in package.namelist() if name.endswith("wrapper.cpp"))
        source = package.read(wrapper).decode()
    sizes = dict(re.findall(r"int64_t (int_array_\d+)\[\] = \{([^}]*)\}", source))
    rest = source[source.index("::run_impl(") : source.index("// AOTInductorModel::run_impl")]
    branch = r"// subgraph: {}_graph_\d+\n(.*?)\n    \}}"
    read, computed = (
        re.findall(branch.format(name), rest, re.DOTALL) for name in ("true", "false")
    )
    for part in read + computed:
        rest = rest.replace(part, "")
    return Call(rest, read, computed, sizes)


@pytest.mark.slow
def test_the_pages_code_gives_the_stock_models_logits(page):
    stock, close = page["stock"], {"atol": 1e-5, "rtol": 1e-5}
    expected = stock(page["tokens"], page["states"], FRESH)
    torch.testing.assert_close(page["first"], expected, **close)
    expected = stock(page["longer"], page["states"], FRESH)
    torch.testing.assert_close(page["later"], expected, **close)
    expected = stock(page["tokens"], page["other_states"], FRESH)
    torch.testing.assert_close(page["second"], expected, **close)


@pytest.mark.slow
def test_a_compiled_program_whose_reset_is_missing_gives_nan(page):
    decode = page["decode"]
    decode(page["tokens"], page["states"], FRESH)
    assert torch.isnan(decode(page["longer"], page["other_states"], SAME)).all()
    assert not torch.isnan(decode(page["longer"], page["states"], SAME)).any()


@pytest.mark.slow
def test_the_branch_that_reads_only_assigns(call):
    read = call.read
    assert len(read) == 2
    allowed = r"AtenTensorHandle \w+;|RAIIAtenTensorHandle \w+\(\w+\);|\w+\.reset\(\);|"
    allowed += r"\w+ = std::move\(\w+\);|"
    allowed += r"AOTI_TORCH_ERROR_CODE_CHECK\(aoti_torch_assign_tensors_out\(\w+, &\w+\)\);"
    for line in "\n".join(read).splitlines():
        assert re.fullmatch(allowed, line.strip()), line


@pytest.mark.slow
def test_projections_of_a_source_stand_in_the_computing_branch_alone(call):
    rest, computed = call.rest, call.computed
    assert len(computed) == 2
    for branch in computed:
        assert len(re.findall(r"mm_out\(", branch)) == 2
        assert "encoder_attn_key_weight" in branch
    products = [line for line in rest.splitlines() if "mm_out(" in line]
    assert len(products) > 10
    assert not re.search(r"encoder_attn_(key|value)_weight", "".join(products))


@pytest.mark.slow
def test_a_step_neither_copies_keys_nor_makes_anything_of_their_size(call):
    rest = call.rest
    allocated = re.findall(r"empty_strided\w*\(\d+, (int_array_\d+),", rest)
    assert len(allocated) > 5
    for name in allocated:
        named = call.sizes.get(name, "")  # a scalar has none
        assert not {f"{SOURCE}L", f"{SOURCE + 1}L"} & set(re.findall(r"\d+L", named))
    assert not re.search(r"aoti_torch_(cpu_)?(clone|cat|repeat)", rest)
    # A scalar copy each: the flags.
    assert len(re.findall(r"aoti_torch_(?:cpu_)?copy_?\(", rest)) <= 2


@pytest.mark.slow
def test_the_buffers_memory_is_taken_for_nothing_else(call):
    rest, read = call.rest, call.read
    handed_out = re.findall(r"(buf\d+) = std::move", "\n".join(read))
    assert len(handed_out) == 6
    for name in handed_out:
        assert re.search(rf"\b{name}\b", rest)
        assert f"std::move({name})" not in rest
        assert not re.search(rf"auto buf\d+ = [^;]*\b{name}\b[^;]*;[^\n]*// reuse", rest)
