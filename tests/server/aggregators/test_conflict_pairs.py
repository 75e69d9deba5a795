"""Projections of pairs in conflict onto each other (FedGH)."""

import functools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.server.aggregators._conflict import PAIR_ORDERS, ConflictTest, harmonized_edit
from fedjax_het.types import Broadcast, ServerView, Upload

SIZE = 5
PLACE = np.arange(SIZE)
TURNS = np.minimum.outer(PLACE, PLACE) * SIZE + np.maximum.outer(PLACE, PLACE)
seeds = given(st.integers(0, 10_000))
few = settings(deadline=None, max_examples=25)


@functools.cache
def edit(test):
    return jax.jit(harmonized_edit(test))


def harmonize(stack, test="current", turns=TURNS):
    with jax.enable_x64(True):
        return np.asarray(edit(test)(jnp.asarray(stack @ stack.T), jnp.ones(len(stack), bool), turns)) @ stack


def draw_updates(seed, length=4):
    return np.random.default_rng(seed).normal(size=(SIZE, length))


@seeds
@few
def test_no_update_grows_and_none_opposes_its_last_partner(seed):
    stack = draw_updates(seed)
    out = harmonize(stack)
    assert np.all(np.linalg.norm(out, axis=1) <= np.linalg.norm(stack, axis=1) * (1 + 1e-9))
    last = np.where(PLACE == SIZE - 1, SIZE - 2, SIZE - 1)
    assert np.all(np.sum(out * stack[last], axis=1) >= -1e-9)


@pytest.mark.extended
@seeds
@few
def test_no_conflict_test_increases_the_length_of_an_update(seed):
    stack = draw_updates(seed)
    for test in ("original", "sequential"):
        lengths = np.linalg.norm(harmonize(stack, test), axis=1)
        assert np.all(lengths <= np.linalg.norm(stack, axis=1) * (1 + 1e-9))


def test_conflicts_decided_once_also_remove_agreeing_parts():
    """g_0 conflicts with g_1 and g_2; without its part along g_1 it agrees with g_2, and would have kept that."""
    stack = np.array([[1.0, 0, 0], [-1, 0.2, 0], [-1, 3, 0], [0, 0, 1], [0, 0, 1]])
    kept, taken = harmonize(stack)[0], harmonize(stack, "original")[0]
    assert kept @ stack[2] > 0.1
    assert abs(taken @ stack[2]) < 1e-9
    assert np.linalg.norm(taken) < np.linalg.norm(kept)


@pytest.mark.parametrize("test", get_args(ConflictTest))
def test_more_clients_than_dimensions_give_finite_updates(test):
    """Five clients on a line or a plane: what is left of some is rounding, and must not be divided by."""
    for seed in range(20):
        for length in (1, 2):
            stack = draw_updates(seed, length)
            out = harmonize(stack, test)
            assert np.linalg.norm(out) <= 100 * np.linalg.norm(stack)


@pytest.mark.extended
@pytest.mark.parametrize("name", PAIR_ORDERS)
def test_the_order_of_a_pair_does_not_depend_on_other_clients(name):
    def turns(cohort):
        cohort = jnp.asarray(cohort)
        uploads = Upload({}, {}, jnp.ones(len(cohort)), jnp.ones(len(cohort)))
        view = ServerView(Broadcast(jnp.array(4), {}, {}), uploads, cohort, jnp.ones(len(cohort), bool), 10, None)
        return np.asarray(PAIR_ORDERS[name](view, 0), float)

    few_turns, many = turns([2, 5, 7]), turns([0, 2, 5, 7, 9])
    inside = np.ix_([1, 2, 3], [1, 2, 3])
    above = np.triu_indices(3, 1)
    assert np.array_equal(np.argsort(few_turns[above]), np.argsort(many[inside][above]))
    assert np.array_equal(many, many.T)


@pytest.mark.extended
@pytest.mark.parametrize("name", PAIR_ORDERS)
def test_the_order_of_pairs_does_not_depend_on_positions_in_the_cohort(name):
    order = jnp.array([3, 0, 4, 1, 2])

    def turns(cohort):
        uploads = Upload({}, {}, jnp.ones(SIZE), jnp.ones(SIZE))
        view = ServerView(Broadcast(jnp.array(4), {}, {}), uploads, cohort, jnp.ones(SIZE, bool), 10, None)
        return np.asarray(PAIR_ORDERS[name](view, 0))

    assert np.array_equal(turns(jnp.arange(SIZE))[np.ix_(order, order)], turns(order))


def test_another_pair_order_gives_another_result():
    stack = draw_updates(3)
    backwards = TURNS.max() - TURNS
    assert np.abs(harmonize(stack) - harmonize(stack, turns=backwards)).max() > 1e-3
