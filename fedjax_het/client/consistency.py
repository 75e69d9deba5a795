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
    """The number of updates that did not increase each entry, and the number of rounds; 0 for personal leaves."""

    counts: Params
    rounds: Float[Array, "*clients"]


def sign_history() -> Memory:
    """The signs of the client's updates in its earlier rounds, which `with_consistency_mask` reads and updates.

    The memory's name is "signs". It stores one number per parameter.
    """

    def init(variables: Variables) -> SignHistory:
        return SignHistory(tree.zeros_like(variables["params"]), jnp.zeros((), float))

    return result("signs", init)


@validate_arguments
def with_consistency_mask(local_update: LocalUpdate, tau: Finite = 0.3, absence: Absence = "ignored") -> LocalUpdate:
    """Train with a local update, and undo its changes to entries that previously moved in the other direction.

        u = w - w_i,   s = [u >= 0],   H: the mean of s over the client's earlier rounds
        c = H where s, else 1 - H,   m = [c > tau], all ones in the client's first round
        w_i <- w - m u;   H then counts the signs s of u as it was

    Shared parameters only; other collections and personal leaves keep their trained values.
    Reads: memory["signs"] (`sign_history`). Results: results["signs"], its new value; results["mask"], m, a tree like
    the shared parameters; and results["distance"], the sum over tensors of ||m u||.

    Args:
        local_update: Any local update.
        tau: The paper's τ (.3). Below 0, no entry is masked; from 1 on, all entries are masked after the first round.
        absence: Whether rounds of absence are "ignored", or "counted" as if the mean H had been observed again in each
            of them, as in the released code.

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
        limit = _min_count(tau, history.rounds)
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


def _min_count(tau: float, rounds: Array) -> Array:
    """The number of rounds (exclusive) that have to agree: tau times all of them; .3 of 10 is 3 also in float32."""
    limit = tau * rounds
    whole = jnp.round(limit)
    return jnp.where(jnp.abs(limit - whole) <= 1e-6 * rounds, whole, limit)


def _is_consistent(falls: Array, count: Array, rounds: Array, limit: Array) -> Array:
    agreeing = jnp.where(falls, count, rounds.astype(count.dtype) - count)
    return (rounds == 0) | (agreeing > limit.astype(count.dtype))


def _weight_of_past(rounds: Array, round: Array, absence: Absence) -> Array:
    """The factor of the history before this round is added; above 1, it repeats the mean of the past."""
    if absence == "ignored":
        return jnp.ones_like(rounds)
    return jnp.where(rounds > 0, round / tree.positive_or_one(rounds), 1.0)
