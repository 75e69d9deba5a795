"""Robust rules that hold updates against a reference: the last result (centred clipping), a root client (FLTrust)."""

from typing import Unpack

import jax
import jax.numpy as jnp

from fedjax_het import geometry, tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.server.aggregators._robust_gram import distances_from
from fedjax_het.server.aggregators._robust_steps import Preparation, Radius, RobustBuffers, clip_factors, count, prepare
from fedjax_het.types import Aggregate, Array, PyTree, ServerView, Variables
from fedjax_het.validation import Count, CountOrZero, validate_arguments


def clip_around(gram: Array, is_member: Array, radius: Radius, num_steps: int) -> Array:
    """The coefficients of centred clipping, [1 + rows]: row 0 of the Gram matrix is the centre, no member."""
    num_members = jnp.maximum(count(is_member), 1)
    coefficients = (jnp.arange(len(gram)) == 0).astype(float)
    for _ in range(num_steps):
        factors = clip_factors(distances_from(gram, coefficients), is_member, radius) * is_member / num_members
        coefficients = coefficients * (1 - jnp.sum(factors)) + factors
    return coefficients


@validate_arguments
def centred_clipping(
    radius: Radius = "median",
    num_steps: Count = 1,
    *,
    num_attackers: CountOrZero = 0,
    **preparation: Unpack[Preparation],
) -> Aggregator:
    """From the last round's result, go towards every update by a bounded step.

        v <- v + 1/m sum_i min(1, tau / |u_i - v|) (u_i - v),   L times;   v: the result of the round before, first 0

    Assumes that less than half lie; f clients move the result by no more than 2 L tau f / m.

    Args:
        radius: tau, a number, or "median", the median of |u_i - v|, which follows the scale of the updates. In the
            paper, whose clients send momentum, 10 / (1 - momentum).
        num_steps: L, the paper's 1; the authors' runs 3.
        num_attackers: f; the rule itself does not need it, but the steps "nnm" and "arc" do.
        preparation: See `Preparation`.

    Returns:
        An aggregator that keeps v, a tree like the shared variables.

    References:
        Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021.
    """
    steps = prepare("centred_clipping", num_attackers, preparation)

    def update(problem: Problem, centre: Variables, view: ServerView) -> tuple[Aggregate, Variables]:
        steps.check(view)
        updates = view.updates.select(steps.is_treated)
        gram, is_member, made = steps.members(updates, view)
        products = made @ updates.products(centre)
        squared = tree.squared_norm(jax.tree.map(lambda leaf: leaf.astype(float), centre))
        joined = jnp.block([[squared[None, None], products[None, :]], [products[:, None], gram]])
        coefficients = clip_around(joined, jnp.append(False, is_member), radius, num_steps)
        moved = tree.add(tree.scale(coefficients[0], centre), updates.combine(coefficients[1:] @ made))
        is_usable = steps.has_majority(is_member)
        return steps.decide(moved, view, is_usable), tree.where(is_usable, moved, centre)

    def init(shared: Variables, num_clients: int) -> Variables:
        return tree.zeros_like(tree.partition(shared, steps.is_treated)[1])

    return Aggregator(init, update)


def trust_coefficients(gram: Array, is_member: Array, is_root: Array) -> tuple[Array, Array]:
    """FLTrust from the Gram matrix [rows, rows]: (coefficients [rows], trust scores [rows]); the root has none."""
    norms, products = geometry.lengths(gram), gram @ is_root.astype(gram.dtype)
    own = norms @ is_root.astype(gram.dtype)
    cosines = products / tree.positive_or_one(norms) / tree.positive_or_one(own)
    trust = jnp.where(is_member & ~is_root, jnp.maximum(cosines, 0), 0)
    return trust * own / tree.positive_or_one(norms) / tree.positive_or_one(jnp.sum(trust)), trust


@validate_arguments
def fltrust(root: CountOrZero = 0, *, buffers: RobustBuffers = "in_vector") -> Aggregator:
    """Trust each update as far as it goes the way of a root client's, at that one's length (FLTrust).

        t_i = max(0, cos(u_i, g_0)),   u = sum_i t_i |g_0| / |u_i| u_i / sum_i t_i

    Assumes that the root client, whom the server trusts, has clean examples of all classes (the paper: 100 of them),
    and allows any number of attackers: |u| <= |g_0|, whatever they send. Its own update g_0 is no part of the sum. In a
    round without it, or where no client is trusted, the model stays as it is; so let it take part in every round.

    Deviations: the paper's server trains on examples of its own; here that is a client of the federation. Where no
    score is positive the paper divides 0 by 0. The paper's rate of the server is the server optimizer's.

    Args:
        root: The id of the client whose update is g_0.
        buffers: See `Preparation`.

    References:
        Cao, Fang, Liu and Gong, FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, NDSS 2021.
    """
    steps = prepare("fltrust", 0, {"buffers": buffers})

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        updates, is_root = view.updates.select(steps.is_treated), view.cohort == root
        coefficients, trust = trust_coefficients(updates.gram(), view.is_present, is_root & view.is_present)
        return steps.decide(updates.combine(coefficients), view, jnp.any(trust > 0)), state

    return Aggregator(lambda shared, num_clients: (), update)
