"""Aggregation of low-rank adapters: of the products A_i B_i of clients, instead of A_i and B_i alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_het import tree
from fedjax_het._internal.decompositions import qr, solve, svd
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.errors import InputError
from fedjax_het.server.weightings import WeightingOrName, resolve_weighting
from fedjax_het.types import Aggregate, Array, PyTree, ServerView, Variables, WeightedSum
from fedjax_het.validation import Count, NonNegative, Positive, validate_arguments

_A, _B = "/lora_a", "/lora_b"


class _Adapters(NamedTuple):
    """The adapters of one layer; the window of a convolution is part of its inputs."""

    path: str
    a: Float[Array, "cohort in rank"]
    b: Float[Array, "cohort rank out"]

    def leaves_of(self, leaves: Mapping[str, Array]) -> tuple[Array, Array]:
        """A [in, rank] and B [rank, out] of this layer in a tree without a cohort axis."""
        return leaves[self.path + _A].reshape(self.a.shape[1:]), leaves[self.path + _B].reshape(self.b.shape[1:])

    def product_residual(self, weights: Array, a_mean: Array, b_mean: Array) -> Array:
        """sum_i p_i A_i B_i - A B = sum_i p_i (A_i - A) (B_i - B) [in, out], for the means A and B."""
        return jnp.einsum("n,nir,nro->io", weights, self.a - a_mean, self.b - b_mean)


@validate_arguments
def mean_with_exact_products(scale: Positive = 2.0, weighting: WeightingOrName = "samples") -> Aggregator:
    """The weighted mean of A and B, with the difference from the mean product added to the kernels (FedEx-LoRA).

        W <- W + s sum_i p_i (A_i - A) (B_i - B),   A = sum_i p_i A_i,   B = sum_i p_i B_i

    The layers' weights are then W + s sum_i p_i A_i B_i. The kernels of the layers with adapters must be in the model's
    `base`, see `models.server_kernels`. Clients without a report count as weight 0.

    Args:
        scale: Scale s of the adapters, alpha / r (default 2).
        weighting: Weights p_i, as in `mean`.

    Raises:
        InputError: When traced: the model has no adapters, or a kernel is not in `base`.

    References:
        Singhal, Ponkshe and Vepakomma, FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of
        Foundation Models, ACL 2025. The sum is written by deviations from the mean, which loses fewer digits.
    """
    weighting = resolve_weighting(weighting)
    declared = WeightedSum(weighting.per_client)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        moved = view.updates.weighted_sum(weights, declared)
        means, base = tree.leaves_by_path(moved), tree.leaves_by_path(tree.zeros_like(view.received.base))
        for adapters in _read_adapters(view.updates.tensors()):
            path, kernel = adapters.path, _kernel(base, adapters.path)
            residual = scale * adapters.product_residual(weights, *adapters.leaves_of(means))
            base[f"{path}/kernel"] = residual.reshape(kernel.shape).astype(kernel.dtype)
        return Aggregate(moved, {}, tree.from_paths(base)), state

    return Aggregator(weighting.init, update, "tensors", (declared,))


@validate_arguments
def mean_with_corrected_b(
    penalty: NonNegative = 0.01,
    similarity: Literal["squared_error", "cosine"] = "squared_error",
    weighting: WeightingOrName = "samples",
    *,
    steps: Count = 300,
    learning_rate: Positive = 0.1,
) -> Aggregator:
    """The weighted mean of A and B, and a correction of B towards the mean of the products (LoRA-FAIR).

        A = sum_i p_i A_i,   B = sum_i p_i B_i,   M = sum_i p_i A_i B_i,   B <- B + D
        squared error:   D = argmin |M - A (B + D)|^2 + lambda |D|^2 = (A^T A + lambda I)^-1 A^T (M - A B)
        cosine:          D by gradient descent from 0 on 1 - cos(M, A (B + D)) + lambda |D|^2

    The cosine ignores the size of the product, and has no gradient where M or A B is 0.

    Args:
        penalty: Penalty lambda of the correction (default .01). 0 is the best fit in the span of A.
        similarity: The measure of similarity, which the paper does not specify (default "squared_error").
        weighting: Weights p_i, as in `mean`.
        steps: Steps of gradient descent for the cosine.
        learning_rate: Its learning rate.

    Raises:
        InputError: When traced: the model has no adapters.

    References:
        Bian, Wang, Zhang and Xu, LoRA-FAIR: Federated LoRA Fine-Tuning with Aggregation and Initialization Refinement,
        ICCV 2025. No code by the authors was found.
    """
    weighting = resolve_weighting(weighting)
    declared = WeightedSum(weighting.per_client)

    def minimize(product: Array, a: Array, b: Array) -> Array:
        def loss(change: Array) -> Array:
            ours = a @ (b + change)
            cosine = jnp.sum(ours * product) / tree.positive_or_one(tree.norm(ours) * tree.norm(product))
            return 1 - cosine + penalty * jnp.sum(change**2)

        step = lambda _, change: change - learning_rate * jax.grad(loss)(change)  # noqa: E731
        return jax.lax.fori_loop(0, steps, step, jnp.zeros_like(b))

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        moved = view.updates.weighted_sum(weights, declared)
        received, means = tree.leaves_by_path(view.received.shared), tree.leaves_by_path(moved)
        for adapters in _read_adapters(view.updates.tensors()):
            path, (a_mean, b_mean), (a_old, b_old) = (
                adapters.path,
                adapters.leaves_of(means),
                adapters.leaves_of(received),
            )
            a, b = a_old + a_mean, b_old + b_mean
            residual = adapters.product_residual(weights, a_mean, b_mean)  # M - A B
            if similarity == "cosine":
                correction = minimize(a @ b + residual, a, b)
            else:
                ridge = a.T @ a + penalty * jnp.eye(a.shape[1], dtype=a.dtype)
                correction = solve(ridge, a.T @ residual)
            means[path + _B] += correction.reshape(means[path + _B].shape)
        return Aggregate(tree.from_paths(means), {}), state

    return Aggregator(weighting.init, update, "tensors", (declared,))


@validate_arguments
def mean_by_product_norms(
    scope: Literal["layer", "model"] = "layer", weighting: WeightingOrName = "samples"
) -> Aggregator:
    """The mean of A and B with weights proportional to the norm of each client's product (HetLoRA).

        A <- sum_i w_i A_i,   B <- sum_i w_i B_i,   w_i = |A_i B_i| / sum_j |A_j B_j|

    Columns of A and rows of B beyond a client's rank are zeros and count as such. All other leaves are averaged with
    the weights p_i. If all products are zero, w_i is uniform over the clients that report.

    Args:
        scope: Whether each "layer" has weights of its own (default), or the norms are summed over the "model".
        weighting: Weights p_i of the other leaves, as in `mean`.

    Raises:
        InputError: When traced: the model has no adapters.

    References:
        Cho, Liu, Xu, Fahrezi and Joshi, Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models,
        EMNLP 2024. arXiv:2401.06432
    """
    weighting = resolve_weighting(weighting)
    declared = WeightedSum(weighting.per_client)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        stack = view.updates.tensors()
        updates, moved = tree.leaves_by_path(stack), tree.leaves_by_path(view.updates.weighted_sum(weights, declared))
        received = tree.leaves_by_path(view.received.shared)
        norms = {}
        for adapters in _read_adapters(stack):
            a, b = (part + old for part, old in zip(adapters[1:], adapters.leaves_of(received), strict=True))
            squared = jnp.einsum("nir,nis,nro,nso->n", a, a, b, b)
            norms[adapters.path] = jnp.where(view.is_present, tree.safe_sqrt(squared), 0)
        total = sum(norms.values(), jnp.zeros(()))
        for path, own in norms.items():
            sizes = own if scope == "layer" else total
            sizes = jnp.where(jnp.any(sizes > 0), sizes, view.is_present.astype(sizes.dtype))
            own_weights = sizes / tree.positive_or_one(jnp.sum(sizes))
            for leaf in (path + _A, path + _B):
                moved[leaf] = tree.weighted_sum(updates[leaf], own_weights)
        return Aggregate(tree.from_paths(moved), {}), state

    return Aggregator(weighting.init, update, "tensors", (declared,))


@validate_arguments
def merged_products(
    ranks: Sequence[Count], alpha: Positive, weighting: WeightingOrName = "samples", *, decompose: bool = False
) -> Aggregator:
    """The weighted mean of the products of adapters of different ranks (FLoRA, FlexLoRA).

        M = sum_i p_i s_i A_i B_i,   s_i = alpha / r_i

    FLoRA adds M to the kernels, which must be in the model's `base`, and does not change A and B; its clients start
    with fresh adapters. With `decompose`, as in FlexLoRA, A and B become the best approximation of M at the largest
    rank r: M = U S V^T, A = U_r, s B = S_r V_r^T, by QR of the stacked factors and an SVD of their small product. All
    other leaves are averaged.

    Args:
        ranks: Client i has the rank ranks[i mod len(ranks)].
        alpha: Scale alpha.
        weighting: Weights p_i, as in `mean`.
        decompose: Whether M is decomposed instead of merged (default False).

    Raises:
        InputError: When traced: the model has no adapters, or a kernel is not in `base`.

    References:
        Wang et al., FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations, NeurIPS
        2024. Bai et al., Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client Resources,
        NeurIPS 2024 (FlexLoRA).
    """
    weighting = resolve_weighting(weighting)
    declared = WeightedSum(weighting.per_client)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        moved = tree.leaves_by_path(view.updates.weighted_sum(weights, declared))
        received = tree.leaves_by_path(view.received.shared)
        base = tree.leaves_by_path(tree.zeros_like(view.received.base))
        shares = weights * alpha / jnp.asarray(ranks)[view.cohort % len(ranks)]
        moved["adapter/scale"] = jnp.zeros_like(moved["adapter/scale"])
        for path, a_update, b_update in _read_adapters(view.updates.tensors()):
            old_a, old_b = received[path + _A], received[path + _B]
            is_here = view.is_present[:, None, None]
            a = jnp.where(is_here, a_update + old_a.reshape(a_update.shape[1:]), 0)
            b = jnp.where(is_here, b_update + old_b.reshape(b_update.shape[1:]), 0)
            if decompose:
                left = jnp.moveaxis(shares[:, None, None] * a, 0, 1).reshape(a.shape[1], -1)
                new_a, new_b = _decompose(left, b.reshape(-1, b.shape[-1]), a.shape[-1])
                new_b = new_b / received["adapter/scale"]
                moved[path + _A] = new_a.reshape(old_a.shape) - old_a
                moved[path + _B] = new_b.reshape(old_b.shape) - old_b
            else:
                moved[path + _A], moved[path + _B] = jnp.zeros_like(old_a), jnp.zeros_like(old_b)
                kernel = _kernel(base, path)
                product = jnp.einsum("n,nir,nro->io", shares, a, b)
                base[f"{path}/kernel"] = product.reshape(kernel.shape).astype(kernel.dtype)
        return Aggregate(tree.from_paths(moved), {}, tree.from_paths(base)), state

    return Aggregator(weighting.init, update, "tensors", (declared,))


def _decompose(left: Array, right: Array, rank: int) -> tuple[Array, Array]:
    """A [in, rank] with orthonormal columns and B [rank, out], the best approximation of left [in, n] @ right [n, out].

    The entry of largest magnitude in each column of A is positive, so that the signs do not depend on the order of
    clients. Missing directions, where a side of the matrix is smaller than the rank, are zero.
    """
    (q_left, r_left), (q_right, r_right) = qr(left), qr(right.T)
    u, sizes, v = svd(r_left @ r_right.T)
    a, b = (q_left @ u)[:, :rank], (sizes[:, None] * v @ q_right.T)[:rank]
    signs = jnp.where(jnp.max(a, axis=0) < -jnp.min(a, axis=0), -1.0, 1.0)
    a, b = a * signs, b * signs[:, None]
    missing = rank - a.shape[1]
    return jnp.pad(a, ((0, 0), (0, missing))), jnp.pad(b, ((0, missing), (0, 0)))


def _read_adapters(stack: Variables) -> Iterator[_Adapters]:
    """The adapters of all layers; leaves of the stack are [cohort, ...]."""
    leaves = tree.leaves_by_path(stack)
    paths = [path.removesuffix(_A) for path in leaves if path.endswith(_A)]
    if not paths:
        raise InputError("aggregator: the model has no low-rank adapters. Add them with fh.models.lora(rank)(model).")
    for path in paths:
        a, b = leaves[path + _A], leaves[path + _B]
        yield _Adapters(path, a.reshape(len(a), -1, a.shape[-1]), b.reshape(len(b), a.shape[-1], -1))


def _kernel(base: dict[str, Array], path: str) -> Array:
    if f"{path}/kernel" not in base:
        raise InputError(
            f"aggregator: the kernel of {path} is not changed by the server. Use the algorithm fedexlora, or "
            "fh.models.server_kernels with the targets of the adapters."
        )
    return base[f"{path}/kernel"]
