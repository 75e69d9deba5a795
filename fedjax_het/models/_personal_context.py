"""Learned context of CLIP's texts, a part of which stays on each client (FedOTP, FedPGP)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models._adaptations import split_off
from fedjax_het.models._attention import Block
from fedjax_het.models._clip import ClipImages
from fedjax_het.models._context import LEAF, Position, classify_with_context, init_tower, start_context
from fedjax_het.models._frozen import frozen_by
from fedjax_het.models._model import output_shapes
from fedjax_het.sharing import share_only
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables
from fedjax_het.validation import Count, CountOrZero, Positive, PositiveFraction, validate_arguments


@validate_arguments
def transported_context(
    num_tokens: Count = 16,
    *,
    position: Position = "end",
    num_own: Count = 1,
    epsilon: Positive = 0.1,
    mass: PositiveFraction | None = 1.0,
    iterations: Count = 100,
) -> Callable[[Model], Model]:
    """Freeze CLIP, and compare patches of an image with several texts per class by optimal transport.

        z_c = exp(logit_scale) sum_mn T_mn S_mn,   S_mn = cos(patch m, text n of class c),   T = plan(S, epsilon)

    Features are the projected patches [batch, M, projection]. The leaves params/context/shared [1, tokens, feature] and
    params/context/own [num_own, tokens, feature] are the vectors of the N = 1 + num_own texts of a class and begin as
    N(0, .02^2). The plan, see `transport_plan`, is a constant in the gradient.

    Args:
        num_tokens: The number of vectors of a text (default 16).
        position: The place of the name, see `context`.
        num_own: The number of texts that an algorithm may keep on the client (default 1).
        epsilon: Weight of the entropy (default .1).
        mass: Mass of the plan (default 1); see `transport_plan`. None transports all of it.
        iterations: Number of iterations (default 100).

    Raises:
        InputError: A number is out of range; or, when the model is initialized, as for `context`.

    References:
        Li, Huang, Wang and Shi, Global and Local Prompts Cooperation via Optimal Transport for Federated Learning,
        CVPR 2024. arXiv:2403.00041
    """

    def take_patches(call: Callable, args: tuple, options: dict, about: nn.module.InterceptorContext) -> Any:
        if isinstance(about.module, Block) and about.method_name == "__call__":
            return call(*args, **{**options, "num_outputs": None})  # the last block, too, has outputs for patches
        is_pool = about.method_name == "pool" and isinstance(about.module, ClipImages)
        return call(args[0], "patches") if is_pool else call(*args, **options)

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            variables, _ = init_tower("transported_context", model, key, inputs)
            first, *others = (
                start_context(variables["params"], jax.random.fold_in(key, number), num_tokens)
                for number in range(1, num_own + 2)
            )
            own = {"shared": first[None], "own": jnp.stack(others)}
            variables = {**variables, "params": {**variables["params"], LEAF: own}}
            output_shapes(adapted, variables, inputs)
            return variables

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            with nn.intercept_methods(take_patches):
                return model.encode(split_off(variables, LEAF)[1], inputs, context)

        def classify(params: Params, features: Array) -> Array:
            rows = features.reshape(-1, features.shape[-1])
            vectors = jnp.concatenate([params[LEAF]["shared"], params[LEAF]["own"]])
            logits = jnp.stack([classify_with_context(model, params, rows, value, position) for value in vectors], -1)
            logits = jnp.moveaxis(logits.reshape(*features.shape[:2], *logits.shape[1:]), 2, 1)
            similarity = jax.lax.stop_gradient(logits / jnp.exp(params["logit_scale"]))
            plan = transport_plan(similarity, epsilon, mass, iterations)
            return jnp.sum(plan * logits, axis=(-2, -1))

        frozen = frozen_by(model, share_only(f"params/{LEAF}/shared", f"params/{LEAF}/own"))
        adapted = frozen._replace(init=init, encode=encode, classify=classify)
        return adapted

    return adapt


def transport_plan(similarity: Array, epsilon: float = 0.1, mass: float | None = 1.0, iterations: int = 100) -> Array:
    """The plan T that maximizes sum_mn T_mn S_mn plus epsilon times its entropy, by scaling in the logarithm.

        T_mn = u_m K_mn v_n,   K = exp((S - 1) / epsilon),   iterated from v = 1:
        u_m <- min(1, a_m / (K v)_m),   v_n <- b_n / (K^T u)_n,   a_m = 1 / M,   b_n = mass / N

    A column n receives b_n exactly, and a row m gives at most a_m as the iteration converges. With mass=None, u is not
    bounded by 1 and the mass is 1: Sinkhorn's iteration, where a row gives a_m.

    Shapes: similarity [..., M, N] -> [..., M, N].
    """
    num_rows, num_columns = similarity.shape[-2:]
    kernel = (similarity - 1) / epsilon
    row, column = -math.log(num_rows), math.log((1.0 if mass is None else mass) / num_columns)

    def step(_: Any, factors: tuple[Array, Array]) -> tuple[Array, Array]:
        u = row - jax.nn.logsumexp(kernel + factors[1][..., None, :], axis=-1)
        u = u if mass is None else jnp.minimum(u, 0)
        return u, column - jax.nn.logsumexp(kernel + u[..., None], axis=-2)

    start = jnp.zeros_like(kernel[..., 0]), jnp.zeros_like(kernel[..., 0, :])
    u, v = jax.lax.fori_loop(0, iterations, step, start)
    return jnp.exp(u[..., None] + kernel + v[..., None, :])


@validate_arguments
def low_rank_context(
    num_tokens: Count = 16,
    rank: Count = 4,
    *,
    position: Position = "end",
    reference: Sequence[CountOrZero] = (),
) -> Callable[[Model], Model]:
    """Freeze CLIP, and put vectors with a low-rank term into the texts that name its classes.

        V = sigma + u v,   sigma [tokens, feature],   u [tokens, rank],   v [rank, feature]

    The leaves params/context/{shared,u,v} begin as N(0, .02^2). The extras of a forward pass are text features [class,
    projection] of length one: "shared" with sigma alone, "whole" with V, and "reference", which are frozen.

    Args:
        num_tokens: The number of vectors (default 16).
        rank: Rank of the term (default 4).
        position: The place of the name, see `context`.
        reference: Tokens in the place of the vectors in the reference texts, such as those of "a photo of a" (default
            none, so that these texts are the prompts of the model).

    Raises:
        InputError: A number is out of range; or, when the model is initialized, as for `context`.

    References:
        Cui, Li, Wang and Shi, Harmonizing Generalization and Personalization in Federated Prompt Learning, ICML 2024.
        arXiv:2405.09771
    """

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            variables, _ = init_tower("low_rank_context", model, key, inputs)
            params, features = variables["params"], output_shapes(model, variables, inputs)[0]
            shared, left, right = (
                start_context(params, jax.random.fold_in(key, number), count)
                for number, count in enumerate((num_tokens, num_tokens, rank), 1)
            )
            if rank > left.shape[1]:
                raise InputError(f"rank: {rank} is larger than the {left.shape[1]} features of a vector.")
            own = {"shared": shared, "u": left[:, :rank], "v": right}
            texts = start_context(params, key, len(reference), reference)
            own["reference"] = encode_texts(params, texts, features.shape[-1])
            variables = {**variables, "params": {**params, LEAF: own}}
            output_shapes(adapted, variables, inputs)
            return variables

        def encode_texts(params: Params, vectors: Array, size: int) -> Array:
            features = jnp.eye(size, dtype=params["logit_scale"].dtype)
            return classify_with_context(model, params, features, vectors, position).T / jnp.exp(params["logit_scale"])

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            params, own = variables["params"], variables["params"][LEAF]
            (features, extras), state = model.encode(split_off(variables, LEAF)[1], inputs, context)
            vectors = {"shared": own["shared"], "whole": combine(own)}
            texts = {name: encode_texts(params, value, features.shape[-1]) for name, value in vectors.items()}
            return (features, {**extras, **texts, "reference": own["reference"]}), state

        def classify(params: Params, features: Array) -> Array:
            return classify_with_context(model, params, features, combine(params[LEAF]), position)

        def combine(own: Params) -> Array:
            return own["shared"] + own["u"] @ own["v"]

        frozen = frozen_by(model, share_only(*(f"params/{LEAF}/{name}" for name in ("shared", "u", "v"))))
        adapted = frozen._replace(init=init, encode=encode, classify=classify)
        return adapted

    return adapt
