"""The tournament of updates that FedLD's tables call FedGH."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.server.aggregators import hierarchical_mean
from fedjax_het.server.aggregators._hierarchical import Reference
from tests.golden.replay import aggregate

pytestmark = pytest.mark.extended

RNG = np.random.default_rng(0)
STACK = {
    "params": {"a": RNG.normal(size=(5, 6)).astype(np.float32), "b": RNG.normal(size=(5, 2, 3)).astype(np.float32)}
}


def plain_mean(stack):
    return jax.tree.map(lambda x: x.mean(axis=0), stack)


def close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), a, b)


def test_the_first_round_gives_the_mean_and_sets_the_reference():
    update, state = aggregate(hierarchical_mean(), STACK)
    close(update, plain_mean(STACK))
    close(state.average, plain_mean(STACK))
    assert state.is_begun


def test_the_reference_is_a_moving_average_of_updates():
    _, state = aggregate(hierarchical_mean(), STACK)
    second = jax.tree.map(lambda x: -x, STACK)
    later, after = aggregate(hierarchical_mean(decay=0.9), second, state=state)
    close(after.average, jax.tree.map(lambda r, u: 0.9 * r + 0.1 * u, state.average, later))


def by_hand(first, second, third, reference):
    """Three clients: best meets worst, the middle one waits; then the last two, one after the other."""
    best, middle, worst = sorted((first, second, third), key=lambda g: -(g @ reference))

    def without(a, b):
        return a - min(a @ b, 0) / (b @ b) * b

    joined = without(best, worst) + without(worst, best)
    lessened = without(joined, middle)
    product = min(joined @ middle, 0)
    return (lessened + middle - product / (lessened @ lessened) * lessened) / 3


@pytest.mark.parametrize("seed", range(6))
def test_the_update_of_three_clients_matches_that_computed_by_hand(seed):
    stack = np.random.default_rng(seed).normal(size=(3, 4))
    reference = np.random.default_rng(seed + 100).normal(size=4)
    state = Reference({"params": {"w": jnp.asarray(reference, jnp.float32)}}, jnp.array(True))
    update, _ = aggregate(hierarchical_mean(eps=0.0), {"params": {"w": stack.astype(np.float32)}}, state=state)
    np.testing.assert_allclose(update["params"]["w"], by_hand(*stack, reference), atol=1e-5)


def test_a_zero_reference_gives_a_finite_update():
    begun = Reference(jax.tree.map(lambda x: jnp.zeros_like(x[0]), STACK), jnp.array(True))
    update, _ = aggregate(hierarchical_mean(), STACK, state=begun)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(update))


@pytest.mark.parametrize("buffers", ["weighted_mean", "keep_server", "in_vector"])
def test_buffers_are_averaged_kept_or_edited_as_requested(buffers):
    stack = STACK | {"batch_stats": {"mean": STACK["params"]["a"][:, :3]}}
    _, state = aggregate(hierarchical_mean(buffers=buffers), stack)
    update, after = aggregate(hierarchical_mean(buffers=buffers), stack, state=state)
    average = stack["batch_stats"]["mean"].mean(axis=0)
    alone, _ = aggregate(
        hierarchical_mean(),
        {"params": stack["batch_stats"]},
        state=Reference({"params": {"mean": jnp.asarray(average)}}, jnp.array(True)),
    )
    wanted = {"weighted_mean": average, "keep_server": np.zeros(3), "in_vector": alone["params"]["mean"]}
    close(update["batch_stats"]["mean"], wanted[buffers])
    assert ("batch_stats" in after.average) == (buffers == "in_vector")
