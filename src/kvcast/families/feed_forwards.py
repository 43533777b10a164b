"""Mixtures of experts, and embeddings of a token for each layer (Gemma 4).

A shared expert may be scaled by the sigmoid of a gate. Experts in addition to a feed-forward have a
norm before their router, and factors on their routing weights. Layer embeddings: a table has a row
of all layers' embeddings for each token, to which a projection of the usual embedding is added;
each layer multiplies its part by a gate of its hidden state and adds the result.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kvcast.errors import KvcastError
from kvcast.families.alternating import tokens_in
from kvcast.families.blocks import TOKENS, sigmoid
from kvcast.spec.program import Node, ProgramWriter
from kvcast.spec.sizes import require_one_of, require_positive

if TYPE_CHECKING:
    from kvcast.families.decoder_dimensions import DecoderDimensions


SCORES = ("softmax", "sigmoid")


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How a token chooses its experts and weighs their results, beyond Mixtral's way.

    Experts in groups: a token chooses among the experts of the groups with the highest scores, each
    the sum of a group's highest ranks. An expert's rank is its score, plus its bias if it has one.
    """

    score: str = "softmax"  # of the router's logits, or "sigmoid" of each
    bias: bool = False  # whether each expert has a bias, which counts for the choice alone
    groups: int = 1
    groups_per_token: int = 1  # how many a token chooses from
    best: int = 2  # how many ranks make a group's score (1 in DeepSeek V2)
    epsilon: float = 0.0  # added to the sum that a token's sigmoids are divided by, if normalised
    scale: float = 1.0  # factor on weights

    def check(self, experts: int, per_token: int) -> None:
        """KvcastError unless a token can choose `per_token` of these experts."""
        require_one_of("score", self.score, SCORES)
        if not 0 <= self.epsilon < math.inf or not 0 < self.scale < math.inf:
            raise KvcastError(f"routing with {self.epsilon} and {self.scale} is not possible")
        if self.epsilon and self.score != "sigmoid":
            raise KvcastError("only sums of sigmoids have an epsilon")
        groups, chosen = self.groups, self.groups_per_token
        require_positive(groups=groups, groups_per_token=chosen, best=self.best)
        of_group, rest = divmod(experts, groups)
        fits = not rest and self.best <= of_group and per_token <= chosen * of_group
        if chosen > groups or (self.grouped and not fits):
            raise KvcastError(
                f"{per_token} of {experts} experts in {chosen} of {groups} groups is not possible"
            )

    @property
    def grouped(self) -> bool:
        """Whether a token does not choose among all."""
        return self.groups_per_token < self.groups


class MixtureSizes(Protocol):
    @property
    def layers(self) -> int:
        """Number of layers."""

    @property
    def width(self) -> int:
        """Size of a hidden state."""

    @property
    def inner(self) -> int:
        """Inner width of one expert."""

    @property
    def activation(self) -> str:
        """Of the gates."""

    @property
    def experts(self) -> int:
        """Number of experts; 0: no mixtures."""

    @property
    def experts_per_token(self) -> int:
        """How many of them each token uses."""

    @property
    def experts_normalised(self) -> bool:
        """Whether routing weights sum to 1 over a token's experts, not over all."""

    @property
    def routing(self) -> Routing:
        """How they are chosen and weighed."""

    @property
    def shared_inner(self) -> int:
        """Inner width of an expert that all tokens go through; 0: none."""

    @property
    def shared_gated(self) -> bool:
        """Whether each token has a share of that expert."""

    @property
    def expert_bias(self) -> bool:
        """Whether the router and the experts' matrices have biases."""

    @property
    def swiglu_limit(self) -> float:
        """Clamp of gates and of the up projection, to which 1 is added; 0: none."""

    @property
    def swiglu_alpha(self) -> float:
        """Factor on gates in their sigmoid, with a limit."""

    @property
    def expert_inner(self) -> int:
        """Inner width of an expert next to a feed-forward; 0: experts replace it."""

    @property
    def dense_layers(self) -> Sequence[int]:
        """Indices of the layers that have one feed-forward instead."""

    @property
    def dense_inner(self) -> int:
        """Inner width of their feed-forward."""


def check_mixtures(sizes: MixtureSizes) -> None:
    each, experts, dense = sizes.experts_per_token, sizes.experts, sizes.dense_layers
    if not 0 <= each <= experts or bool(experts) != bool(each):
        raise KvcastError(f"{each} of {experts} experts is not possible")
    beside = sizes.expert_inner
    if beside and (not experts or sizes.shared_inner or sizes.expert_bias or sizes.swiglu_limit):
        raise KvcastError("experts beside a feed-forward are none that others have")
    if experts and not beside and sizes.activation != "silu":
        raise KvcastError(f"experts with {sizes.activation} instead of silu are not supported")
    if experts:
        sizes.routing.check(experts, each)
    elif dense or sizes.shared_inner or sizes.expert_bias or sizes.swiglu_limit:
        raise KvcastError("layers are dense, or share an expert, in mixtures of experts alone")
    factors = (sizes.swiglu_limit, sizes.swiglu_alpha)
    if not all(0 <= factor < math.inf for factor in factors) or (factors[0] and not factors[1]):
        raise KvcastError(f"a gate with the limit and factor {factors} is not possible")
    if beside:
        require_positive(expert_inner=beside)
    if sizes.shared_inner:
        require_positive(shared_inner=sizes.shared_inner)
    if dense:
        require_positive(dense_inner=sizes.dense_inner)
    are_layers = all(type(i) is int and 0 <= i < sizes.layers for i in dense)
    if not are_layers or len(set(dense)) != len(dense) or (experts and len(dense) == sizes.layers):
        raise KvcastError("dense_layers must number some of the layers, each once, and not all")


def is_mixture(sizes: MixtureSizes, layer: int) -> bool:
    return bool(sizes.experts) and not sizes.expert_inner and layer not in sizes.dense_layers


def has_experts_beside(sizes: MixtureSizes, layer: int) -> bool:
    """Whether a layer has experts in addition to its feed-forward."""
    return bool(sizes.expert_inner) and layer not in sizes.dense_layers


def write_mixture(
    write: ProgramWriter,
    normed: Node,
    block: str,
    sizes: MixtureSizes,
    routed: Node | None = None,
) -> Node:
    """Route tokens [rows, n, width] to experts; `routed`: the router's input; None: the same."""
    tokens = write.step("flatten", normed, 0, -2)
    read = tokens if routed is None else write.step("flatten", routed, 0, -2)
    experts, width, inner = sizes.experts, sizes.width, sizes.expert_inner or sizes.inner
    router = write.linear(read, f"{block}.router", (experts, width), bias=sizes.expert_bias)
    matrices = (
        write.tensor(f"{block}.gate_up", experts, 2 * inner, width),
        write.tensor(f"{block}.down", experts, width, inner),
    )
    options: dict[str, Any] = {} if sizes.experts_normalised else {"normalised": False}
    if sizes.swiglu_limit:
        options |= {"alpha": sizes.swiglu_alpha, "limit": sizes.swiglu_limit}
    if sizes.expert_bias:
        for name, outputs in (("gate_up_bias", 2 * inner), ("down_bias", width)):
            options[name] = write.tensor(f"{block}.{name}", experts, outputs)
    options |= _routing(write, block, sizes)
    if sizes.expert_inner:
        scales = write.tensor(f"{block}.scales", experts)
        options |= {"activation": sizes.activation, "scales": scales}
    each = sizes.experts_per_token
    mixed = write.step("mixture_of_experts", tokens, router, *matrices, each, **options)
    if sizes.shared_inner:
        mixed = _add_shared_expert(write, mixed, tokens, f"{block}.shared", sizes)
    return write.step("view", mixed, [write.size(normed, 0), write.size(normed, 1), sizes.width])


def _routing(write: ProgramWriter, block: str, sizes: MixtureSizes) -> dict[str, Any]:
    routing, usual = sizes.routing, Routing()
    names = ("score", "epsilon", "scale")
    given = {name: getattr(routing, name) for name in names}
    options = {name: value for name, value in given.items() if value != getattr(usual, name)}
    if routing.grouped:
        options["groups"] = [routing.groups, routing.groups_per_token, routing.best]
    if routing.bias:
        options["choice_bias"] = write.tensor(f"{block}.choice_bias", sizes.experts)
    return options


def _add_shared_expert(
    write: ProgramWriter, mixed: Node, tokens: Node, block: str, sizes: MixtureSizes
) -> Node:
    width, size = sizes.width, sizes.shared_inner
    shape = 2 * size, width
    inner = write.linear(tokens, f"{block}.gate_up", shape, gate=sizes.activation)
    if not sizes.shared_gated:
        return write.linear(inner, f"{block}.down", (width, size), residual=mixed)
    share = sigmoid(write, write.linear(tokens, f"{block}.gate", (1, width)))
    shared = write.step("mul", write.linear(inner, f"{block}.down", (width, size)), share)
    return write.step("add", mixed, shared)


_TABLE, _PROJECTION = "decoder.layer_embedding", "decoder.layer_projection"


def embed_for_layers(write: ProgramWriter, x: Node, dimensions: "DecoderDimensions") -> Node:
    """Return [rows, new, layers * width], sqrt(2) larger than Gemma's: a norm follows."""
    width, hidden = dimensions.layer_embedding, dimensions.width
    whole = dimensions.layers * width
    projected = write.linear(x, _PROJECTION, (whole, hidden))
    parts = write.step("unflatten", projected, -1, [-1, width])
    # Norms of a projection divided by the root of `hidden`.
    normed = write.rms_norm(parts, f"{_PROJECTION}_norm", width, dimensions.norm_eps * hidden)
    rows, tokens = dimensions.layer_vocabulary or dimensions.vocab_size, TOKENS
    if rows < dimensions.vocab_size:
        tokens = tokens_in(write, rows)
    own = write.embedding(f"{_TABLE}.weight", tokens, (rows, whole))
    own = write.step("mul", own, math.sqrt(width))
    return write.step("add", own, write.step("flatten", normed, -2))


def add_layer_embedding(
    write: ProgramWriter, x: Node, part: Node, i: int, dimensions: "DecoderDimensions"
) -> Node:
    return write.step("add", x, layer_embedding(write, x, part, i, dimensions))


def layer_embedding(
    write: ProgramWriter, x: Node, part: Node, i: int, dimensions: "DecoderDimensions"
) -> Node:
    """Return a layer's `part` of a token's embeddings, gated by x, in its width."""
    layer = f"decoder.layers.{i}.layer_input"
    width, hidden = dimensions.layer_embedding, dimensions.width
    gate = write.linear(x, f"{layer}.gate", (width, hidden), activation=dimensions.activation)
    product = write.linear(write.step("mul", gate, part), f"{layer}.out", (hidden, width))
    # Of parts that are larger by the root of 2.
    return write.rms_norm(product, f"{layer}_norm", hidden, 2 * dimensions.norm_eps)
