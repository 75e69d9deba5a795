"""Take the conflict out of every pair of updates (FedGH)."""

import jax
import jax.numpy as jnp

from fedjax_het import geometry
from fedjax_het.algorithm import Aggregator, Weighting
from fedjax_het.errors import InputError, nearest
from fedjax_het.server.aggregators import projection
from fedjax_het.server.aggregators.gram import Edit, edited_mean
from fedjax_het.types import Array, ServerView
from fedjax_het.validation import Seed, validate_arguments

CONFLICT_TESTS = ("current", "original", "sequential")


def lexicographic(view: ServerView, seed: int) -> Array:
    """[m, m]: when a pair has its turn, the smallest first: (0, 1), (0, 2), ... by the clients' ids."""
    place = jnp.argsort(jnp.argsort(view.cohort))
    return jnp.minimum(place[:, None], place) * len(place) + jnp.maximum(place[:, None], place)


def at_random(view: ServerView, seed: int) -> Array:
    """[m, m]: the same in an order drawn anew each round, a function of (seed, round, the two ids)."""
    key = jax.random.fold_in(jax.random.key(seed), view.received.round)

    def draw(one: Array, other: Array) -> Array:
        pair = jax.random.fold_in(jax.random.fold_in(key, jnp.minimum(one, other)), jnp.maximum(one, other))
        return jax.random.bits(pair, (), "uint32")

    return jax.vmap(jax.vmap(draw, (None, 0)), (0, None))(view.cohort, view.cohort)


PAIR_ORDERS = {"lexicographic": lexicographic, "random": at_random}


def harmonized_edit(conflict_test: str = "current") -> Edit:
    """FedGH's revision of every update, as coefficients of the Gram core; see `harmonized_mean`."""
    if conflict_test not in CONFLICT_TESTS:
        raise InputError(f"conflict_test: unknown option '{conflict_test}'. {nearest(conflict_test, CONFLICT_TESTS)}")

    def edit(gram: Array, is_present: Array, turns: Array) -> Array:
        size = gram.shape[0]
        if conflict_test == "sequential":
            first, second = jnp.triu_indices(size)
            pairs = jnp.stack([first, second], axis=1)[jnp.argsort(turns[first, second], stable=True)]
            return projection.running(gram, pairs, pairs[:, 0] != pairs[:, 1], is_mutual=True)
        is_original = conflict_test == "original"
        is_pair = geometry.is_conflict(gram) if is_original else ~jnp.eye(size, dtype=bool)
        partners = jnp.argsort(turns, axis=1, stable=True)
        return projection.in_turn(gram, partners, is_pair, is_tested=not is_original)

    return edit


@validate_arguments
def harmonized_mean(
    conflict_test: str = "current",
    weighting: str | Weighting = "samples",
    *,
    pair_order: str = "lexicographic",
    seed: Seed = 0,
    scope: str = "model",
    buffers: str = "weighted_mean",
    stack: str = "float32",
) -> Aggregator:
    """Project the two updates of every conflicting pair onto each other's normal plane, and average.

        for each pair i < j in conflict:   g_i' <- g_i' - (g_i' . g_j)/|g_j|^2 g_j,   g_j' likewise against g_i
        u = sum_i p_i g_i'

    Shapes: leaves [cohort, ...] -> [...]; Gram matrix [m, m] in float64, two passes over the stack.
    conflict_test: "current": g_i' . g_j < 0 just before the projection, so that only what opposes is taken out (PCGrad)
    | "original": g_i . g_j < 0, decided once; a later projection may then take out an agreeing part |
    "sequential": g_i' . g_j' < 0, and projects on g_j', both as they run; one pair after another, m^2/2 steps.
    pair_order: "lexicographic" by id | "random", drawn anew each round from `seed`.
    scope, buffers, stack: see `edited_mean`.
    Zero updates conflict with nobody. With two clients all tests agree. For three or more in conflict the result
    depends on the order of the pairs, so on the ids.
    The paper's text leaves the test open; no authors' code was found. The default equals PCGrad with partners in the
    order of ids.
    Zhang, Sun and Chen, FedGH: Federated Learning via Gradient Harmonization, 2023. arXiv:2309.06692
    """
    if pair_order not in PAIR_ORDERS:
        raise InputError(f"pair_order: unknown option '{pair_order}'. {nearest(pair_order, PAIR_ORDERS)}")
    evidence = lambda view: (PAIR_ORDERS[pair_order](view, seed),)  # noqa: E731
    return edited_mean(
        harmonized_edit(conflict_test), weighting, evidence=evidence, scope=scope, buffers=buffers, stack=stack
    )
