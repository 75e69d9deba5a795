"""Fair directions: q-FFL's bounded step, FedMGDA+'s common descent, FedFV's projections in the order of losses."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Int

from fedjax_het import geometry, tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.server.aggregators._conflict import project_in_order
from fedjax_het.server.aggregators._gram_space import GramEdit, gram_space_mean
from fedjax_het.server.simplex import minimize_on_simplex
from fedjax_het.server.weightings import (
    SMALLEST_LOSS,
    WeightingName,
    WeightingOrName,
    normalise,
    resolve_weighting,
    tilted,
    uniform,
)
from fedjax_het.types import Aggregate, Array, PyTree, ServerView, Variables, WeightedSum
from fedjax_het.validation import CountOrZero, Fraction, NonNegative, validate_arguments

_ROUNDING = 1e-6  # so that .9 of 10 clients is 9 in float32


# ---- the power of the losses (q-FFL) --------------------------------------------------------------------------------
@validate_arguments
def lipschitz_mean(
    q: NonNegative = 1.0, weighting: WeightingOrName = "uniform", *, is_bounded: bool = True
) -> Aggregator:
    """The mean weighted by powers of losses, shortened by an estimate of their Lipschitz constant (q-FedAvg).

        u = sum_i p_i F_i^q u_i / sum_i p_i (F_i^q + q F_i^(q-1) ||u_i||^2 / lr)

    Parameters only; other collections use the mean with weights p_i F_i^q. 1e-10 is added to F_i.
    Reads: reports["loss"] (F_i, at the received model), reports["movement"] (||u_i||^2 / lr, see
    client.measures.movement_per_rate).

    Args:
        q: The paper's q. 0: the plain mean.
        weighting: The weights p_i, as in `mean`.
        is_bounded: False divides by sum_i p_i alone, the authors' static step: the update then grows with F_i^q.

    Raises:
        InputError: A number is out of range, or, when traced, clients do not report their loss.

    References:
        Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020. arXiv:1905.10497
    """
    shares, total = resolve_weighting(weighting), WeightedSum()
    powers = tilted(q, shares, "power")

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        base, _ = shares.update(state, view)
        weights, state = powers.update(state, view)
        losses = jnp.maximum(view.uploads.reports["loss"], 0) + SMALLEST_LOSS
        if is_bounded:
            rate = 1 / (1 + q * jnp.sum(weights * view.uploads.reports["movement"] / losses))
        else:
            rate = jnp.sum(base * losses**q)
        mean = view.updates.weighted_sum(weights, total)
        return Aggregate(mean | {"params": tree.scale(rate, mean["params"])}, {}), state

    return Aggregator(powers.init, update, powers.reads, (total,))


# ---- common descent (FedMGDA+) --------------------------------------------------------------------------------------
def common_descent_edit(epsilon: float) -> GramEdit:
    """FedMGDA+'s edit, which replaces every update by the common descent direction; see `common_descent`."""

    def edit(gram: Array, is_present: Array, centre: Array) -> Array:
        sizes = geometry.lengths(gram)
        is_moving = is_present & (sizes > 0)
        centre = normalise(centre.astype(gram.dtype), is_moving)
        lower = jnp.where(is_moving, jnp.maximum(centre - epsilon, 0), 0)
        upper = jnp.where(is_moving, jnp.minimum(centre + epsilon, 1), 0)
        mixture = minimize_on_simplex(geometry.cosines(gram), jnp.argmax(centre), upper, lower)
        coefficients = jnp.where(is_moving, mixture / tree.positive_or_one(sizes), 0)
        return jnp.broadcast_to(coefficients, gram.shape)

    return edit


@validate_arguments
def common_descent(epsilon: Fraction = 0.1, weighting: WeightingName = "samples") -> Aggregator:
    """The shortest mixture of normalized updates, which decreases the losses of all clients (FedMGDA+).

        u = sum_i l_i u_i / ||u_i||,   l = argmin ||sum_i l_i u_i / ||u_i|| ||^2,   |l_i - p_i| <= epsilon, l in simplex

    The length of the update does not depend on the lengths of the clients' updates. Zero updates are left out.
    Collections besides the parameters use the mean with weights p_i.

    Args:
        epsilon: How far l may differ from p. 1: any mixture (MGDA). 0: the mean of the normalized updates.
        weighting: The weights p_i: "samples" or "uniform".

    Raises:
        InputError: An option is unknown or out of range.

    References:
        Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022. arXiv:2006.11489
    """
    shares = resolve_weighting(weighting)
    return gram_space_mean(
        common_descent_edit(epsilon), weighting, extra_inputs=lambda view: (shares.update((), view)[0],)
    )


# ---- conflicts in the order of losses (FedFV) -----------------------------------------------------------------------
def ordered_edit(alpha: float) -> GramEdit:
    """FedFV's internal step as coefficients; see `ordered_projection`."""

    def edit(gram: Array, is_present: Array, losses: Array) -> Array:
        order = jnp.argsort(jnp.where(is_present, losses, jnp.inf), stable=True)
        first_kept = jnp.ceil((jnp.sum(is_present) - 1) * (1 - alpha) - _ROUNDING)
        is_kept = (jnp.argsort(order) >= first_kept) & (alpha > 0)
        is_pair = ~is_kept[:, None] & is_present & ~jnp.eye(len(gram), dtype=bool)
        return project_in_order(gram, jnp.broadcast_to(order, gram.shape), is_pair)

    return edit


class LastUpdates(NamedTuple):
    """The state of `ordered_projection` if it looks back."""

    updates: Variables  # the last update of every client, leaves [clients, ...]
    number: Int[Array, "clients"]  # the round of that update, from 1; 0: none


@validate_arguments
def ordered_projection(alpha: Fraction = 0.1, tau: CountOrZero = 1, *, against_cohort: bool = True) -> Aggregator:
    """Remove conflicts between updates in the order of losses, and with updates of earlier rounds (FedFV).

        internal:   g_i <- g_i - (g_i . u_j)/|u_j|^2 u_j for each j by ascending loss with g_i . u_j < 0
                    for all clients but the alpha of largest loss;   g = mean_i g_i
        external:   for k = tau - 1, ..., 0, from round tau on:   s = sum of the last updates u_j with g . u_j < 0
                    of clients that last took part k rounds ago;   g <- g - (g . s)/|s|^2 s
        u = g |mean_i u_i| / |g|

    A zero g moves nothing, and a zero update is in no conflict. Collections besides the parameters use the plain mean.
    Reads: reports["loss"] (at the received model). State with tau > 1: the last update of every client.

    Args:
        alpha: Fraction of clients that keep their updates, at least one client if it is above 0.
        tau: Number of rounds of the external step, this one included. 0: none.
        against_cohort: Whether the external step includes the clients of this round (k = 0), as in the authors' code.

    Raises:
        InputError: A number is out of range, or, when traced, clients do not report their loss.

    References:
        Wang et al., Federated Learning with Fair Averaging, IJCAI 2021. arXiv:2104.14937; code WwZzz/easyFL.
    """
    buffers = WeightedSum(uniform.per_client, lambda path: not tree.is_parameter(path))
    edit = ordered_edit(alpha)

    def init(shared: Variables, num_clients: int) -> PyTree:
        if tau < 2:
            return ()
        zeros = tree.broadcast({"params": tree.zeros_like(shared["params"])}, num_clients)
        return LastUpdates(zeros, jnp.zeros(num_clients, jnp.int32))

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, _ = uniform.update((), view)
        own, number = view.updates.select(tree.is_parameter), view.received.round + 1
        gram = own.gram()
        direction = own.combine(weights @ gram_edit(gram, view))
        if tau > 1:
            ids, is_present = view.cohort, view.is_present
            last = state.number.at[ids].set(jnp.where(is_present, number, state.number[ids]).astype(jnp.int32))
            for age in range(tau - 1, 0, -1):
                is_old = (last == number - age) & (last > 0) & (number >= tau)
                products = _multiply(state.updates, direction)
                direction = _without(direction, products, is_old, lambda c: tree.weighted_sum(state.updates, c))
            now = tree.where(is_present, own.tensors(), tree.take(state.updates, ids))
            state = LastUpdates(tree.put(state.updates, ids, now), last)
        if tau and against_cohort:
            is_now = view.is_present & (number >= tau)
            direction = _without(direction, own.products(direction), is_now, own.combine)
        length, norm = jnp.sqrt(jnp.maximum(weights @ gram @ weights, 0)), tree.norm(direction)
        scaled = tree.scale(jnp.where(norm > 0, length / tree.positive_or_one(norm), 0), direction)
        return Aggregate({**view.updates.weighted_sum(weights, buffers), **scaled}, {}), state

    def gram_edit(gram: Array, view: ServerView) -> Array:
        return edit(gram, view.is_present, view.uploads.reports["loss"])

    return Aggregator(init, update, "gram", (buffers,), gram_edit=gram_edit)


def _multiply(stack: PyTree, direction: PyTree) -> Array:
    """The inner products of the rows of a stack with a tree like one of them."""
    multiply = lambda rows, leaf: jnp.sum(rows.reshape(len(rows), -1) * leaf.reshape(-1), axis=1)  # noqa: E731
    first, *others = jax.tree.leaves(jax.tree.map(multiply, stack, direction))
    return sum(others, start=first)


def _without(direction: PyTree, products: Array, is_last: Array, combine) -> PyTree:
    """The direction without its component along the sum of those of some updates that it conflicts with."""
    is_conflict = is_last & (products < 0)
    opposing = combine(is_conflict.astype(products.dtype))
    product, square = jnp.sum(jnp.where(is_conflict, products, 0)), tree.squared_norm(opposing)
    share = jnp.where(square > 0, product / tree.positive_or_one(square), 0)
    return tree.subtract(direction, tree.scale(share, opposing))
