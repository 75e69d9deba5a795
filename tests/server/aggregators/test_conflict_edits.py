"""Laws of the aggregators that remove conflicts: FedMGC's, FedGH's, and the hierarchical one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round import server_step
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import dominant_correction, harmonized_mean, hierarchical_mean
from fedjax_het.server.aggregators._hierarchical import Reference
from fedjax_het.types import Broadcast, ServerView, Upload

AGGREGATORS = {
    "dominant": dominant_correction(),
    "all dominant": dominant_correction(1.0, "samples"),
    "simultaneous": dominant_correction(order="simultaneous"),
    "running target": dominant_correction(1.0, target="current"),
    "harmonized": harmonized_mean(),
    "original": harmonized_mean("original"),
    "sequential": harmonized_mean("sequential"),
    "random pairs": harmonized_mean(pair_order="random", seed=3),
    "hierarchical": hierarchical_mean(eps=0.0),
    "hierarchical, as released": hierarchical_mean(),
}
SCALE_FREE = [name for name in AGGREGATORS if name != "hierarchical, as released"]
UNWEIGHTED = ["dominant", "simultaneous", "running target", "hierarchical", "hierarchical, as released"]
every_aggregator = pytest.mark.parametrize("name", AGGREGATORS)
RNG = np.random.default_rng(0)
STACK = RNG.normal(size=(5, 12)).astype(np.float32)
AGREEING = np.abs(STACK)
COUNTS = np.array([3.0, 1, 4, 1, 5], np.float32)
LOSSES = np.array([0.3, 1.0, 0.5, 2.0, 0.7], np.float32)
REFERENCE = RNG.normal(size=12).astype(np.float32)


def state_of(name: str):
    begun = Reference({"params": {"w": jnp.asarray(REFERENCE)}}, jnp.array(True))
    return begun if name.startswith("hierarchical") else ()


@functools.cache
def compile_aggregator(name: str):
    def run(stack, counts, losses, round, state):
        size = len(stack)
        uploads = Upload({}, {"loss": losses}, counts, jnp.ones(size))
        received = Broadcast(round, {}, {})
        updates = StackedUpdates({"params": {"w": stack}})
        view = ServerView(received, uploads, jnp.arange(size), counts > 0, size, updates)
        return server_step.aggregate(AGGREGATORS[name], None, state, view)[0].update["params"]["w"]

    return jax.jit(run)


def combine_vectors(name, stack, counts=COUNTS, losses=LOSSES, round=1, state=None):
    arrays = (jnp.asarray(x, jnp.float32) for x in (stack, counts, losses))
    return np.asarray(compile_aggregator(name)(*arrays, jnp.asarray(round), state_of(name) if state is None else state))


def mean(name, stack, counts=COUNTS):
    return np.average(stack, axis=0, weights=np.ones_like(counts) if name in UNWEIGHTED else counts)


def close(a, b, tolerance=2e-6):
    np.testing.assert_allclose(a, b, atol=tolerance * max(1e-12, np.abs(b).max()))


@pytest.mark.extended
@every_aggregator
def test_without_conflicts_the_result_is_the_mean(name):
    close(combine_vectors(name, AGREEING), mean(name, AGREEING))


@pytest.mark.extended
@every_aggregator
def test_with_conflicts_the_result_differs_from_the_mean(name):
    assert np.abs(combine_vectors(name, STACK) - mean(name, STACK)).max() > 1e-2


@every_aggregator
def test_identical_clients_give_that_update(name):
    close(combine_vectors(name, np.repeat(STACK[:1], 5, axis=0)), STACK[0])


@pytest.mark.extended
@every_aggregator
def test_a_single_client_gives_its_update(name):
    close(combine_vectors(name, STACK[:1], COUNTS[:1], LOSSES[:1]), STACK[0])


@every_aggregator
def test_zero_updates_give_zero(name):
    assert not np.any(combine_vectors(name, np.zeros_like(STACK)))


@every_aggregator
def test_a_zero_update_conflicts_with_no_other(name):
    stack = AGREEING.copy()
    stack[2] = 0
    close(combine_vectors(name, stack), mean(name, stack))


@pytest.mark.extended
@every_aggregator
@pytest.mark.parametrize("present", [2, 3, 4])
def test_absent_clients_do_not_change_the_result(name, present):
    """Wherever they sit; their reports are zeros."""
    keep = np.sort(np.random.default_rng(present).permutation(5)[:present])
    is_here = np.isin(np.arange(5), keep)
    holes = combine_vectors(name, STACK * is_here[:, None], COUNTS * is_here, LOSSES * is_here)
    if name == "random pairs":  # the ids decide its order, and those of the short stack are others
        assert np.all(np.isfinite(holes))
    else:
        close(holes, combine_vectors(name, STACK[keep], COUNTS[keep], LOSSES[keep]))


@pytest.mark.parametrize("name", SCALE_FREE)
@pytest.mark.parametrize("factor", [1e-6, 3.0, 1e6])
def test_scaled_updates_give_a_scaled_result(name, factor):
    close(combine_vectors(name, factor * STACK), factor * combine_vectors(name, STACK), 1e-5)


@every_aggregator
def test_negated_updates_give_a_negated_result(name):
    turned = jax.tree.map(lambda x: x if x.dtype == bool else -x, state_of(name))
    close(combine_vectors(name, -STACK, state=turned), -combine_vectors(name, STACK))


@pytest.mark.extended
@pytest.mark.parametrize("name", ["all dominant", "harmonized", "original", "sequential", "random pairs"])
def test_exactly_opposite_updates_cancel(name):
    close(combine_vectors(name, np.stack([STACK[0], -STACK[0]]), np.ones(2), np.ones(2)), np.zeros(12))


@pytest.mark.extended
@pytest.mark.parametrize(("name", "survivor"), [("dominant", 0), ("running target", 1), ("hierarchical", 1)])
def test_of_exactly_opposite_updates_the_uncorrected_one_remains(name, survivor):
    """The dominant one; or, where the first has already become zero, the second."""
    stack = np.stack([STACK[0], -STACK[0]])
    close(combine_vectors(name, stack, np.ones(2), np.ones(2)), 0.5 * stack[survivor])


@pytest.mark.extended
@every_aggregator
def test_nearly_opposite_updates_give_a_finite_result(name):
    for noise in 10.0 ** -np.arange(1, 9):
        stack = np.stack([STACK[0], -STACK[0] + noise * STACK[1], STACK[0] + noise * STACK[2]])
        out = combine_vectors(name, stack, COUNTS[:3], LOSSES[:3])
        assert np.linalg.norm(out) <= 3 * np.linalg.norm(stack, axis=1).max()


@pytest.mark.extended
@every_aggregator
def test_runs_under_vmap_and_loops_without_float64(name):
    stacks = jnp.asarray(np.stack([STACK, 2 * STACK, STACK[::-1]]))

    def looped(stack):
        again = lambda number, total: total + compile_aggregator(name)(stack, COUNTS, LOSSES, 1, state_of(name))  # noqa: E731
        return jax.lax.fori_loop(0, 2, again, jnp.zeros(12))

    for ours, stack in zip(jax.jit(jax.vmap(looped))(stacks), stacks, strict=True):
        close(ours, 2 * combine_vectors(name, stack), 1e-5)


@pytest.mark.parametrize("name", ["harmonized", "original", "sequential", "random pairs"])
def test_two_clients_in_conflict_are_projected_onto_each_others_normal_plane(name):
    a, b = STACK[0], -STACK[0] + 0.5 * STACK[1]
    assert a @ b < 0
    expected = 0.5 * (a - (a @ b) / (b @ b) * b) + 0.5 * (b - (a @ b) / (a @ a) * a)
    close(combine_vectors(name, np.stack([a, b]), np.ones(2), np.ones(2)), expected, 1e-5)


def test_random_pairs_depend_on_the_round_only():
    first, again, later = (combine_vectors("random pairs", STACK, round=number) for number in (0, 0, 1))
    assert np.array_equal(first, again)
    outcomes = {combine_vectors("random pairs", STACK, round=number).tobytes() for number in range(8)}
    assert len(outcomes) > 1 or np.array_equal(first, later)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: dominant_correction(0.0), "fraction"),
        (lambda: dominant_correction(1.5), "fraction"),
        (lambda: dominant_correction(p_mode="sum"), "Valid|mean"),
        (lambda: dominant_correction(order="simultanous"), "Did you mean 'simultaneous'"),
        (lambda: dominant_correction(target="now"), "target: unknown option"),
        (lambda: dominant_correction(order="simultaneous", target="current"), "requires order='one_by_one'"),
        (lambda: dominant_correction(min_norm_ratio=2.0), "min_norm_ratio"),
        (lambda: dominant_correction(scope="layer"), "scope"),
        (lambda: harmonized_mean("curent"), "Did you mean 'current'"),
        (lambda: harmonized_mean(pair_order="lexical"), "pair_order"),
        (lambda: hierarchical_mean(eps=-1.0), "eps: must be a finite number of at least 0"),
        (lambda: hierarchical_mean(decay=1.1), "decay: must be a number in"),
        (lambda: hierarchical_mean(buffers="mean"), "buffers"),
    ],
)
def test_options_out_of_range_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
