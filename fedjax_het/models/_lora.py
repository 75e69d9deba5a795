"""Low-rank adapters of frozen layers."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het import tree
from fedjax_het.errors import InputError
from fedjax_het.models._dense import multiply
from fedjax_het.models._frozen import frozen_by, to_patterns
from fedjax_het.models._targets import choose_layers, init_added, matches
from fedjax_het.sharing import HEAD, share_only
from fedjax_het.types import Array, Context, Key, Leaf, LeafRule, Model, Named, Params, Variables
from fedjax_het.validation import Count, FractionBelowOne, Positive, may_be_nonzero, validate_arguments

SHARED, LOCAL = "lora", "local"
"""The names of low-rank terms, whose leaves are NAME_a and NAME_b."""


class AdapterSettings(TypedDict, total=False):
    """The settings of `lora`, where they are documented, besides ranks and scales."""

    targets: str | Sequence[str]
    dropout: FractionBelowOne
    train_head: bool


class LowRank(AdapterSettings, total=False):
    """The settings of `lora`, where they are documented, for algorithms that add adapters themselves."""

    rank: Count
    alpha: Positive | None
    rank_stabilized: bool


def lora_scale(rank: Count = 8, alpha: Positive | None = None, rank_stabilized: bool = False) -> float:
    """The scale s of adapters: alpha / r, or alpha / sqrt(r); by default, alpha is 2 r."""
    return (2 * rank if alpha is None else alpha) / (math.sqrt(rank) if rank_stabilized else rank)


@validate_arguments
def lora(
    rank: Count = 8,
    alpha: Positive | None = None,
    *,
    targets: str | Sequence[str] = "*",
    rank_stabilized: bool = False,
    dropout: FractionBelowOne = 0.0,
    train_head: bool = True,
    own_scale: bool = False,
) -> Callable[[Model], Model]:
    """Freeze a model, and add a trained low-rank term to the chosen layers.

        y = x W + b + s (drop(x) A) B,   s = alpha / r,   or alpha / sqrt(r) if rank-stabilized

    A [in, r] is uniform on (-1/sqrt(in), 1/sqrt(in)), B [r, out] zero, so that training starts from the model as it is.
    Both are leaves of their layer, lora_a and lora_b. The product with the frozen W is computed once for all clients.
    Of a convolution, A [height, width, channel, r] has its window, strides and padding, and B is [1, 1, r, features].
    An algorithm that shares all leaves then is FedIT: it averages A and B, not their products.

    Args:
        rank: Rank r (default 8).
        alpha: Scale alpha (default None, 2 r).
        targets: Patterns of the paths of layers; "query" and "*/query" both match the layer block_0/attention/query. By
            default all dense layers except the head; convolutions must be named.
        rank_stabilized: Whether to scale by alpha / sqrt(r) (rsLoRA).
        dropout: Dropout rate of the inputs of A; the frozen product sees all inputs.
        train_head: Whether the head, params/classifier, is trained, too (default True).
        own_scale: Whether s is the leaf adapter/scale, which rules may set, instead of a constant (default False).

    Raises:
        InputError: A number is out of range; or, when the model is initialized, a pattern matches no layer, or a chosen
            layer is neither a dense layer nor a convolution of Linen, is in several groups, or has adapters already.

    References:
        Hu, Shen, Wallis et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022. Kalajdzievski, A Rank
        Stabilization Scaling Factor for Fine-Tuning with LoRA, 2023. Zhang, Vahidian, Kuo et al., Towards Building the
        Federated GPT: Federated Instruction Tuning, ICASSP 2024 (FedIT). Initialization as in the library peft.
    """
    return add_adapters(
        (SHARED,), rank, lora_scale(rank, alpha, rank_stabilized), targets, dropout, train_head, own_scale
    )


def add_adapters(
    names: Sequence[str],
    rank: int,
    scale: float,
    targets: str | Sequence[str],
    dropout: float,
    train_head: bool,
    own_scale: bool,
) -> Callable[[Model], Model]:
    """Add the leaves NAME_a and NAME_b to layers; of several adapters, all but the first begin with the scale 0.

    A scale that is a leaf may be a number, or one for each example of a batch.
    """
    patterns = to_patterns(targets)
    scale_leaves = {name: "scale" if name == SHARED else f"{name}_scale" for name in names}

    def adapt(model: Model) -> Model:
        def init_layer(layer: str, key: Key, kernel: Array) -> Params:
            keys = [key, *(jax.random.fold_in(key, number) for number in range(1, len(names)))]
            own = {name: _init_adapter(rank, key, kernel) for name, key in zip(names, keys, strict=True)}
            return {f"{name}_{part}": leaf for name, pair in own.items() for part, leaf in zip("ab", pair, strict=True)}

        def init(key: Key, inputs: Array) -> Variables:
            leaves = init_terms(model, key, inputs, choose_layers(model.layers(inputs), patterns), init_layer)
            if own_scale:
                start = {leaf: scale if name == names[0] else 0.0 for name, leaf in scale_leaves.items()}
                leaves |= {f"adapter/{leaf}": jnp.asarray(value, float) for leaf, value in start.items()}
            return tree.from_paths(leaves)

        def term_scale(variables: Variables, layer: str, name: str) -> Array | float:
            return variables["adapter"][scale_leaves[name]] if own_scale else scale

        leaves = [f"*/{name}_{part}" for name in names for part in "ab"]
        scales = [f"adapter/{leaf}" for leaf in scale_leaves.values()] if own_scale else []
        trained = share_only(*leaves, *([HEAD] * train_head), *scales)
        return with_terms(model, init, term_scale, dropout, trained)

    return adapt


def with_terms(
    model: Model,
    init: Callable[[Key, Array], Variables],
    term_scale: Callable[[Variables, str, str], Array | float],
    dropout: float,
    frozen: LeafRule,
) -> Model:
    """The model with low-rank terms, whose leaves `init` adds.

    Raises:
        InputError: The model has low-rank terms already.
    """
    if model.term_scale is not None:
        raise InputError("lora: the model has such adapters already. Choose all layers in one list of targets.")

    def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
        own, rest = ({k: v for k, v in variables.items() if (k == "adapter") == is_own} for is_own in (True, False))
        with nn.intercept_methods(_add_terms(partial(term_scale, variables), dropout if context.is_training else 0.0)):
            outputs, state = model.encode(rest, inputs, context)
        return outputs, state | own

    return frozen_by(model, frozen)._replace(init=init, encode=encode, term_scale=term_scale)


def init_terms(
    model: Model, key: Key, inputs: Array, layers: Sequence[str], init: Callable[[str, Key, Array], Params]
) -> dict[str, Array]:
    """The leaves of a model and its low-rank terms, see `init_added`."""
    return init_added("lora", model, key, inputs, layers, init, _add_terms(lambda layer, name: 1.0))


def server_kernels(targets: str | Sequence[str] = "*") -> Callable[[Model], Model]:
    """Let the server change the kernels of the layers to which `lora` with these targets adds adapters."""
    patterns = to_patterns(targets)

    def is_kernel(leaf: Leaf) -> bool:
        layer = leaf.path.removeprefix("params/").removesuffix("/kernel")
        if leaf.layer is None or layer == "classifier" or not leaf.path.endswith("/kernel"):
            return False
        return any(matches(layer, leaf.layer, pattern) for pattern in patterns)

    return lambda model: model._replace(base=(*model.base, is_kernel))


def _init_adapter(rank: int, key: Key, kernel: Array) -> tuple[Array, Array]:
    """(A, B) of a layer."""
    *window, num_inputs, num_outputs = kernel.shape
    bound = 1 / math.sqrt(num_inputs * math.prod(window))
    a = jax.random.uniform(key, (*window, num_inputs, rank), kernel.dtype, -bound, bound)
    return a, jnp.zeros((*[1 for _ in window], rank, num_outputs), kernel.dtype)


def _add_terms(term_scale: Callable[[str, str], Array | float], dropout: float = 0.0) -> Callable:
    """The interceptor that adds the low-rank terms, given the scale of (layer, name of the term)."""

    def call_layer(call: Callable, args: tuple, options: dict, context: nn.module.InterceptorContext) -> Any:
        outputs, layer = call(*args, **options), context.module
        if context.method_name != "__call__" or not layer.path:
            return outputs
        for name in (SHARED, LOCAL):
            if layer.has_variable("params", f"{name}_a"):
                scale, term = term_scale("/".join(layer.path), name), compute_term(layer, name, args[0])
                factor = tree.add_axes(jnp.asarray(scale), term.ndim) if jnp.ndim(scale) else scale
                outputs = outputs + (factor * term).astype(outputs.dtype)
        return outputs

    def compute_term(layer: nn.Module, name: str, inputs: Array) -> Array:
        a, b = (layer.get_variable("params", f"{name}_{part}") for part in "ab")
        if may_be_nonzero(dropout):
            kept = jax.random.bernoulli(layer.make_rng("dropout"), 1 - dropout, inputs.shape)
            inputs = jnp.where(kept, inputs / (1 - dropout), 0)
        if isinstance(layer, nn.Dense):
            inputs = inputs.astype(jnp.promote_types(inputs.dtype, a.dtype))
            return multiply(multiply(inputs, a), b)
        window = layer.clone(parent=None, features=a.shape[-1], use_bias=False)
        return multiply(jnp.asarray(window.apply({"params": {"kernel": a}}, inputs)), b[0, 0])

    return call_layer
