"""Masks that keep the entries of an update whose direction agrees with the client's earlier rounds (FedHEAL)."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_het import tree
from fedjax_het.algorithm import LocalUpdate, Memory, Problem
from fedjax_het.client.memories import result
from fedjax_het.types import Array, ClientView, Key, Params, Trained, Variables
from fedjax_het.validation import Finite, validate_arguments

Absence = Literal["ignored", "counted"]


class SignHistory(NamedTuple):
    """How often each entry of a client's updates did not rise, and over how many rounds; 0 for personal leaves."""

    counts: Params
    rounds: Float[Array, "*clients"]


def sign_history() -> Memory:
    """The signs of the client's updates in its earlier rounds, which `with_consistency_mask` reads and adds to.

    Its name among the memories is "signs". One number per parameter.
    """

    def init(variables: Variables) -> SignHistory:
        return SignHistory(tree.zeros_like(variables["params"]), jnp.zeros((), float))

    return result("signs", init)


@validate_arguments
def with_consistency_mask(local_update: LocalUpdate, tau: Finite = 0.3, absence: Absence = "ignored") -> LocalUpdate:
    """Train by a local update, and undo what it did to entries that used to move the other way.

        u = w - w_i,   s = [u >= 0],   H: the mean of s over the client's earlier rounds
        c = H where s, else 1 - H,   m = [c > tau], all ones in the client's first round
        w_i <- w - m u;   H then counts the signs s of u as it was

    Shared parameters only; other collections and personal leaves stay as they were trained.
    Reads: memory["signs"] (`sign_history`). Makes results["signs"], its new value; results["mask"], m, a tree like the
    shared parameters; and results["distance"], the sum over tensors of ||m u||.

    Args:
        local_update: Any.
        tau: The paper's τ, .3. Below 0 nothing is masked, from 1 on everything after the first round.
        absence: Whether rounds of absence are "ignored", or, as in the released code, "counted" as if the mean H had
            been seen again in each of them.

    References:
        Chen, Huang and Ye, Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity, CVPR
        2024. arXiv:2405.16585; code yuhangchen0/FedHEAL.
    """

    def train(problem: Problem, view: ClientView, key: Key, train_unmasked: Callable[..., Trained]) -> Trained:
        trained = train_unmasked(problem, view, key)
        received, history = view.received.shared["params"], view.memory["signs"]
        _, own = tree.partition_like(trained.variables["params"], received)
        _, counts = tree.partition_like(history.counts, received)
        falls = jax.tree.map(lambda before, after: before - after >= 0, received, own)
        limit = _least_count(tau, history.rounds)
        mask = jax.tree.map(lambda fall, count: _is_consistent(fall, count, history.rounds, limit), falls, counts)
        masked = jax.tree.map(jnp.where, mask, own, received)

        factor = _weight_of_past(history.rounds, view.received.round, absence)
        counts = jax.tree.map(lambda fall, count: factor.astype(count.dtype) * count + fall, falls, counts)
        history = SignHistory(tree.merge(history.counts, counts), factor * history.rounds + 1)
        distances = map(tree.norm, jax.tree.leaves(tree.subtract(masked, received)))
        results = {"signs": history, "mask": mask, "distance": sum(distances, jnp.zeros((), float))}
        params = tree.merge(trained.variables["params"], masked)
        return trained._replace(
            variables=trained.variables | {"params": params}, results={**trained.results, **results}
        )

    masking = local_update._replace(train=partial(train, train_unmasked=local_update.train))
    if local_update.train_with_drift is None:
        return masking
    return masking._replace(train_with_drift=partial(train, train_unmasked=local_update.train_with_drift))


def _least_count(tau: float, rounds: Array) -> Array:
    """How many rounds have to agree, exclusively: tau times all of them; .3 of 10 is 3 in float32, too."""
    limit = tau * rounds
    whole = jnp.round(limit)
    return jnp.where(jnp.abs(limit - whole) <= 1e-6 * rounds, whole, limit)


def _is_consistent(falls: Array, count: Array, rounds: Array, limit: Array) -> Array:
    agreeing = jnp.where(falls, count, rounds.astype(count.dtype) - count)
    return (rounds == 0) | (agreeing > limit.astype(count.dtype))


def _weight_of_past(rounds: Array, round: Array, absence: Absence) -> Array:
    """By which the history is multiplied before this round is added; more than 1 repeats the mean of the past."""
    if absence == "ignored":
        return jnp.ones_like(rounds)
    return jnp.where(rounds > 0, round / tree.positive_or_one(rounds), 1.0)
