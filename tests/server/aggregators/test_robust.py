"""Robust rules: what lies can move, whose place does not matter, and which cohorts are refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het import aggregators
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round import server_step
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import _robust_coordinates
from fedjax_het.server.aggregators._robust_gram import subset_of_rank
from fedjax_het.types import Broadcast, ServerView, Upload

SIZE, LIARS, LENGTH = 9, 2, 6
RULES = {
    "krum": aggregators.krum(LIARS),
    "multi_krum": aggregators.multi_krum(LIARS),
    "minimum_diameter_mean": aggregators.minimum_diameter_mean(LIARS),
    "geometric_median": aggregators.geometric_median(),
    "centred_clipping": aggregators.centred_clipping(num_steps=3),
    "norm_bounded_mean": aggregators.norm_bounded_mean(),
    "fltrust": aggregators.fltrust(SIZE - 1),  # an honest one
    "coordinate_median": aggregators.coordinate_median(),
    "trimmed_mean": aggregators.trimmed_mean(LIARS),
    "mean_around_median": aggregators.mean_around_median(LIARS),
    "geometric_median behind nnm": aggregators.geometric_median(LIARS, before=("nnm",)),
    "trimmed_mean behind arc, nnm": aggregators.trimmed_mean(LIARS, before=("arc", "nnm")),
    "geometric_median behind bucketing": aggregators.geometric_median(1, before=("bucketing",)),
    "coordinate_median behind clip, bucketing": aggregators.coordinate_median(1, before=("clip", "bucketing")),
}
UNAWARE = ("geometric_median", "centred_clipping", "norm_bounded_mean", "coordinate_median")  # no f is declared
seeds, few = given(st.integers(0, 10_000)), settings(deadline=None, max_examples=15)


@functools.cache
def compiled(names):
    """All rules on one stack [cohort, length], in one program."""

    def run(stack, is_present, cohort):
        leaf = jnp.where(is_present[:, None], stack, 0)
        updates = {"params": {"w": leaf[:, :4], "b": leaf[:, 4:]}}
        template = jax.tree.map(lambda x: jnp.zeros_like(x[0]), updates)
        ones = is_present.astype(float)
        view = ServerView(
            Broadcast(jnp.array(3), template, {}),
            Upload({}, {}, ones, ones),
            cohort,
            is_present,
            20,
            StackedUpdates(updates),
        )
        results = [
            server_step.aggregate(RULES[name], None, RULES[name].init(template, 20), view)[0].update for name in names
        ]
        return jnp.stack([jnp.concatenate([update["params"]["w"], update["params"]["b"]]) for update in results])

    return jax.jit(run)


def aggregate(stack, is_present=None, cohort=None, names=tuple(RULES)):
    """name -> its result, in float32 as a round computes it."""
    size = len(stack)
    is_present = jnp.ones(size, bool) if is_present is None else jnp.asarray(is_present)
    cohort = jnp.arange(size) if cohort is None else jnp.asarray(cohort)
    results = compiled(names)(jnp.asarray(stack, jnp.float32), is_present, cohort)
    return dict(zip(names, np.asarray(results), strict=True))


def draw_updates(seed):
    """Honest updates around a common direction; the first LIARS rows are the liars'."""
    generator = np.random.default_rng(seed)
    return (generator.normal(size=LENGTH) + 0.5 * generator.normal(size=(SIZE, LENGTH))).astype(np.float32)


@pytest.mark.extended
@given(st.integers(0, 10_000), st.floats(-30, 38), st.booleans())
@few
def test_liars_of_any_size_move_the_result_by_a_bounded_amount(seed, exponent, is_same):
    stack = draw_updates(seed)
    attacks = stack[:1] if is_same else stack[:LIARS]
    stack[:LIARS] = attacks / np.abs(attacks).max() * np.float32(10**exponent)
    longest = np.linalg.norm(stack[LIARS:].astype(float), axis=1).max()
    for name, result in aggregate(stack).items():
        assert np.linalg.norm(result.astype(float)) <= 4 * longest, name
    inside = aggregate(stack, names=("coordinate_median", "trimmed_mean"))
    for name, result in inside.items():
        assert np.all(result >= stack[LIARS:].min(axis=0) - 1e-6), name
        assert np.all(result <= stack[LIARS:].max(axis=0) + 1e-6), name


@pytest.mark.extended
@seeds
@few
def test_identical_clients_give_their_update(seed):
    row = draw_updates(seed)[:1]
    for name, result in aggregate(np.repeat(row, SIZE, axis=0)).items():
        np.testing.assert_allclose(result, row[0], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.extended
def test_zeros_give_zero():
    for name, result in aggregate(np.zeros((SIZE, LENGTH))).items():
        assert np.array_equal(result, np.zeros(LENGTH)), name


@pytest.mark.slow
@seeds
@few
def test_the_order_of_clients_and_absent_ones_do_not_matter(seed):
    """Seven clients, in another order and among two absent ones; bucketing goes by ids, FLTrust by the root's."""
    stack, generator = draw_updates(seed), np.random.default_rng(seed)
    is_present = generator.permutation(np.arange(SIZE) < 7)
    is_present[-1] = True
    names = tuple(name for name in RULES if name != "minimum_diameter_mean")  # subsets with the same longest pair tie
    order = generator.permutation(SIZE)
    alone = aggregate(stack, is_present, names=names)
    moved = aggregate(stack[order], is_present[order], np.arange(SIZE)[order], names)
    for name, result in alone.items():
        np.testing.assert_allclose(moved[name], result, rtol=1e-4, atol=1e-6, err_msg=name)
    dense = np.flatnonzero(is_present)
    shorter = aggregate(stack[dense], cohort=dense, names=names)
    for name, result in alone.items():
        np.testing.assert_allclose(shorter[name], result, rtol=1e-4, atol=1e-6, err_msg=name)


def test_without_attackers_the_rules_that_drop_some_are_the_mean():
    rules = [
        aggregators.multi_krum(0),
        aggregators.trimmed_mean(0),
        aggregators.minimum_diameter_mean(0),
        aggregators.mean_around_median(0),
        aggregators.trimmed_mean(0, before=("nnm", "arc")),
        aggregators.norm_bounded_mean(1e6),
        aggregators.centred_clipping(1e6),
    ]
    stack = draw_updates(0)
    for number, result in enumerate(_each(rules, stack)):
        np.testing.assert_allclose(result, stack.mean(axis=0), rtol=1e-5, atol=1e-6, err_msg=str(number))


def test_rules_without_a_centre_follow_a_shift_of_all_updates():
    """The geometric median starts at zero, but where it ends follows."""
    rules = [aggregators.geometric_median(num_steps=200), aggregators.krum(2), aggregators.trimmed_mean(2)]
    stack, shift = draw_updates(1), np.arange(LENGTH, dtype=np.float32)
    for original, moved_ in zip(_each(rules, stack), _each(rules, stack + shift), strict=True):
        np.testing.assert_allclose(moved_, original + shift, rtol=1e-4, atol=1e-4)


def _each(rules, stack):
    size = len(stack)

    @jax.jit
    def run(stack):
        ones, model = jnp.ones(size), {"params": {"w": jnp.zeros(LENGTH)}}
        updates = StackedUpdates({"params": {"w": stack}})
        view = ServerView(
            Broadcast(jnp.array(0), model, {}), Upload({}, {}, ones, ones), jnp.arange(size), ones > 0, size, updates
        )
        return [
            server_step.aggregate(rule, None, rule.init(model, size), view)[0].update["params"]["w"] for rule in rules
        ]

    return run(jnp.asarray(stack))


@pytest.mark.extended
def test_too_few_present_clients_leave_the_model_as_it_is():
    stack, is_present = draw_updates(0), np.arange(SIZE) < 2 * LIARS
    results = aggregate(stack, is_present)
    for name, result in results.items():
        assert np.any(result) == (name in UNAWARE), name


@pytest.mark.slow
def test_buffers_are_treated_or_kept():
    stack = {"params": {"w": jnp.ones((5, 2))}, "batch_stats": {"mean": jnp.full((5, 3), 2.0).at[0].set(1e30)}}
    model, ones = jax.tree.map(lambda x: x[0], stack), jnp.ones(5)
    view = ServerView(Broadcast(jnp.array(0), model, {}), Upload({}, {}, ones, ones), jnp.arange(5), ones > 0, 5, None)
    for buffers, expected in (("in_vector", 2.0), ("keep_server", 0.0)):
        for rule in (aggregators.trimmed_mean(1, buffers=buffers), aggregators.multi_krum(1, buffers=buffers)):
            own = view._replace(updates=StackedUpdates(stack))
            update = server_step.aggregate(rule, None, (), own)[0].update
            assert np.all(np.asarray(update["batch_stats"]["mean"]) == expected)
            assert np.all(np.asarray(update["params"]["w"]) == 1)


@pytest.mark.parametrize("size", [0, 1, 2, 4])
def test_every_subset_has_one_number(size):
    count = {0: 1, 1: 6, 2: 15, 4: 15}[size]
    subsets = {tuple(np.asarray(subset_of_rank(jnp.array(rank), 6, size))) for rank in range(count)}
    assert len(subsets) == count and {sum(subset) for subset in subsets} == {size}


def _refuse(rule, size):
    ones, template = jnp.ones(size), {"params": {"w": jnp.zeros(2)}}
    updates = StackedUpdates({"params": {"w": jnp.ones((size, 2))}})
    view = ServerView(
        Broadcast(jnp.array(0), template, {}), Upload({}, {}, ones, ones), jnp.arange(size), ones > 0, 9, updates
    )
    jax.eval_shape(lambda: server_step.aggregate(rule, None, rule.init(template, 9), view)[0].update)


@pytest.mark.parametrize(
    ("rule", "size", "message"),
    [
        (
            aggregators.trimmed_mean(2),
            4,
            "'trimmed_mean': num_attackers=2 needs at least 5 clients per round, .* has 4",
        ),
        (aggregators.krum(1), 3, "'krum': num_attackers=1 needs at least 4 clients"),
        (
            aggregators.krum(1, before=("bucketing",)),
            6,
            r"needs at least 4 buckets \(now 3\) per round, .* has 6 clients",
        ),
        (aggregators.minimum_diameter_mean(9), 30, "14307150 subsets of 30 updates .* exceed the limit of 100000"),
    ],
)
def test_cohorts_that_are_too_small_or_too_large_are_refused(rule, size, message):
    with pytest.raises(InputError, match=message):
        _refuse(rule, size)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: aggregators.krum(-1), "num_attackers: must be a whole number from 0"),
        (lambda: aggregators.krum(neighbours="pape"), "neighbours: unknown option 'pape'"),
        (lambda: aggregators.krum(before=("nmm",)), "before: must be a list in which each is 'nnm'"),
        (lambda: aggregators.krum(before=("nnm", "nnm")), "before: 'nnm' is named twice"),
        (lambda: aggregators.norm_bounded_mean(0), "radius: must be .*above 0"),
        (lambda: aggregators.norm_bounded_mean("mean"), "radius: unknown option 'mean'"),
        (
            lambda: aggregators.geometric_median(weighting="samples", before=("bucketing",)),
            "weighting: buckets are not weighted",
        ),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_blocks_of_columns_do_not_change_the_result(monkeypatch):
    rules, stack = [aggregators.trimmed_mean(2), aggregators.coordinate_median(before=("clip",))], draw_updates(2)
    whole = _each(rules, stack)
    monkeypatch.setattr(_robust_coordinates, "_BLOCK", 2 * SIZE)
    np.testing.assert_allclose(_each(rules, stack), whole, rtol=1e-6)
