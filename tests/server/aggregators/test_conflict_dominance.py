"""Ranking of dominant clients, and the correction of updates against them (FedMGC)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import dominant_correction
from fedjax_het.server.aggregators._conflict import dominant_edit, rank_by_dominance
from tests.golden.replay import aggregate

EVERYONE = jnp.ones(6, bool)
seeds = given(st.integers(0, 10_000))
few = settings(deadline=None, max_examples=25)


@functools.cache
def correct(**options):
    edit = jax.jit(dominant_edit(**options))

    def run(stack, losses):
        with jax.enable_x64(True):
            gram = jnp.asarray(np.asarray(stack, float) @ np.asarray(stack, float).T)
            return np.asarray(edit(gram, jnp.ones(len(stack), bool), jnp.asarray(losses))) @ stack

    return run


def dominant_clients(stack, losses, fraction=0.5, **options):
    gram = jnp.asarray(stack @ stack.T)
    order, count = rank_by_dominance(gram, jnp.ones(len(stack), bool), jnp.asarray(losses), fraction, **options)
    return np.asarray(order)[: int(count)]


def draw_updates(seed, size=6, length=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(size, length)), rng.uniform(0.2, 2, size)


@pytest.mark.extended
@seeds
@few
def test_no_update_grows_and_none_opposes_the_last_dominant(seed):
    stack, losses = draw_updates(seed)
    revised = correct()(stack, losses)
    assert np.all(np.linalg.norm(revised, axis=1) <= np.linalg.norm(stack, axis=1) * (1 + 1e-9))
    last = dominant_clients(stack, losses)[-1]
    assert np.all(revised @ stack[last] >= -1e-9 * np.linalg.norm(stack[last]) ** 2)


@pytest.mark.extended
@seeds
@few
def test_a_single_dominant_update_is_kept_and_the_mean_follows_it(seed):
    stack, losses = draw_updates(seed)
    (chosen,) = dominant_clients(stack, losses, 0.1)
    revised = correct(fraction=0.1)(stack, losses)
    np.testing.assert_allclose(revised[chosen], stack[chosen])
    along = revised.mean(axis=0) @ stack[chosen]
    assert along >= (1 - 1e-9) * stack[chosen] @ stack[chosen] / 6


@pytest.mark.extended
@seeds
@few
def test_dominance_does_not_depend_on_the_scale_of_updates_and_losses(seed):
    stack, losses = draw_updates(seed)
    chosen = dominant_clients(stack, losses)
    assert np.array_equal(chosen, dominant_clients(1e-3 * stack, 7 * losses))


@seeds
@few
def test_the_order_of_clients_does_not_matter(seed):
    stack, losses = draw_updates(seed)
    order = np.random.default_rng(seed).permutation(6)
    np.testing.assert_allclose(correct()(stack[order], losses[order]), correct()(stack, losses)[order], atol=1e-9)


@seeds
@few
def test_the_sum_of_projections_ranks_as_their_mean_and_is_no_option(seed):
    """So that it is no option: 1/(K - 1) is the same for all clients, and z = p / l is only compared."""
    stack, losses = draw_updates(seed)
    assert np.array_equal(dominant_clients(stack, losses), dominant_clients(stack, losses, p_mode="sum_excl"))
    with pytest.raises(InputError, match="p_mode: unknown option 'sum_excl'"):
        dominant_edit(p_mode="sum_excl")


@pytest.mark.extended
@pytest.mark.parametrize(("fraction", "count"), [(0.1, 1), (0.3, 3), (0.5, 5), (0.7, 7), (0.75, 8), (1.0, 10)])
def test_the_number_of_dominant_clients_is_the_rounded_fraction(fraction, count):
    stack, losses = draw_updates(0, size=10)
    assert len(dominant_clients(stack, losses, fraction)) == count
    traced = jax.jit(lambda share: rank_by_dominance(jnp.eye(10), jnp.ones(10, bool), jnp.ones(10), share)[1])
    assert traced(jnp.float32(fraction)) == count


def test_ties_in_dominance_go_to_the_lower_id():
    assert dominant_clients(np.ones((6, 3)), np.ones(6)).tolist() == [0, 1, 2]


def test_absent_clients_are_never_dominant():
    gram = jnp.zeros((6, 6)).at[:3, :3].set(-1 + 2 * jnp.eye(3))
    order, count = rank_by_dominance(gram, jnp.arange(6) < 3, jnp.ones(6), 1.0)
    assert int(count) == 3 and set(np.asarray(order)[:3].tolist()) == {0, 1, 2}


@pytest.mark.extended
def test_min_norm_ratio_excludes_nearly_zero_updates_from_dominance():
    stack = np.concatenate([[[1e-13, 0, 0]], [[1.0, 0, 0]], [[-0.2, 1, 0]], [[-0.2, 0, 1]]])
    losses = np.array([0.1, 1, 1, 1])
    assert dominant_clients(stack, losses, 0.25).tolist() == [0]
    kept, dropped = (correct(fraction=0.25, min_norm_ratio=ratio)(stack, losses) for ratio in (0.0, 1e-8))
    assert kept[2] @ stack[0] >= 0 > dropped[0] @ stack[2] - 1
    np.testing.assert_allclose(dropped[0], stack[0])


@pytest.mark.extended
def test_with_scope_tensor_each_tensor_has_its_own_dominant_clients():
    rng = np.random.default_rng(1)
    stack = {"params": {"a": rng.normal(size=(4, 3)), "b": rng.normal(size=(4, 5))}}
    losses = {"loss": jnp.ones(4)}
    together, _ = aggregate(dominant_correction(scope="tensor"), stack, None, losses)
    for name in ("a", "b"):
        alone, _ = aggregate(dominant_correction(), {"params": {name: stack["params"][name]}}, None, losses)
        np.testing.assert_allclose(together["params"][name], alone["params"][name], rtol=1e-5)
