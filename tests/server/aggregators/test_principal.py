"""Properties that every mean-like aggregator has, and the edges of FedLD's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import _principal, gram_space_mean, mean, principal_directions
from fedjax_het.server.aggregators._principal import principal_edit
from tests.golden.replay import aggregate, combine

AGGREGATORS = {
    "mean": mean(),
    "uniform": mean("uniform"),
    "principal": principal_directions(),
    "by tensor": principal_directions(scope="tensor"),
    "whole": principal_directions(correction="whole", weighting="uniform"),
}
every_aggregator = pytest.mark.parametrize("name", AGGREGATORS)
RNG = np.random.default_rng(0)
STACK = RNG.normal(size=(6, 40)).astype(np.float32)
COUNTS = np.array([3, 1, 4, 1, 5, 9])


def close(a, b, tolerance=2e-5):
    np.testing.assert_allclose(a, b, atol=tolerance * max(1e-6, np.abs(b).max()))


@every_aggregator
def test_identical_clients_give_that_update(name):
    close(combine(AGGREGATORS[name], np.repeat(STACK[:1], 4, axis=0), COUNTS[:4]), STACK[0])


@every_aggregator
def test_a_single_client_gives_its_update(name):
    close(combine(AGGREGATORS[name], STACK[:1]), STACK[0])


@pytest.mark.extended
@every_aggregator
def test_the_order_of_clients_does_not_matter(name):
    order = RNG.permutation(6)
    close(combine(AGGREGATORS[name], STACK[order], COUNTS[order]), combine(AGGREGATORS[name], STACK, COUNTS))


@pytest.mark.extended
@every_aggregator
@pytest.mark.parametrize("factor", [1e-6, 3.0, 1e6, -1.0])
def test_scaled_updates_give_a_scaled_result(name, factor):
    close(combine(AGGREGATORS[name], factor * STACK, COUNTS), factor * combine(AGGREGATORS[name], STACK, COUNTS))


@every_aggregator
def test_zero_updates_give_zero(name):
    assert not np.any(combine(AGGREGATORS[name], np.zeros((4, 7), np.float32)))


@pytest.mark.extended
@every_aggregator
def test_absent_clients_do_not_change_the_result(name):
    padded = np.concatenate([STACK, np.zeros((2, 40), np.float32)])
    counts = np.concatenate([COUNTS, [0, 0]])
    close(combine(AGGREGATORS[name], padded, counts), combine(AGGREGATORS[name], STACK, COUNTS))


@pytest.mark.extended
@every_aggregator
@given(st.integers(1, 8), st.integers(1, 5), st.integers(0, 1000))
@settings(deadline=None, max_examples=15)
def test_the_result_is_finite_and_in_the_span_of_the_updates(name, num_clients, size, seed):
    stack = np.random.default_rng(seed).normal(size=(num_clients, size)).astype(np.float32)
    out = np.asarray(combine(AGGREGATORS[name], stack))
    assert np.all(np.isfinite(out))
    coefficients, *_ = np.linalg.lstsq(stack.T, out, rcond=None)
    np.testing.assert_allclose(stack.T @ coefficients, out, atol=1e-3)


# ---- principal directions --------------------------------------------------------------------------------------------
def edit_stack(stack, **options):
    with jax.enable_x64(True):
        stack = np.asarray(stack, float)
        return np.asarray(principal_edit(**options)(jnp.asarray(stack @ stack.T), jnp.ones(len(stack), bool))) @ stack


@pytest.mark.extended
@pytest.mark.parametrize("correction", ["per_axis", "whole"])
def test_a_revised_update_keeps_its_length(correction):
    lengths = np.linalg.norm(edit_stack(STACK, correction=correction), axis=1)
    np.testing.assert_allclose(lengths, np.linalg.norm(STACK, axis=1), rtol=1e-6)


@pytest.mark.extended
def test_a_zero_update_stays_zero():
    stack = STACK.copy()
    stack[2] = 0
    out = edit_stack(stack)
    assert np.all(np.isfinite(out)) and not np.any(out[2])


@pytest.mark.parametrize("correction", ["per_axis", "whole", "none"])
@pytest.mark.parametrize("projection", ["orthogonal", "cosine"])
def test_the_sign_of_an_axis_does_not_change_the_result(correction, projection, monkeypatch):
    """An axis and its negative project alike, so that FedLD's vote on the sign of an axis is no option."""
    options, principal_axes = {"correction": correction, "projection": projection}, _principal.principal_axes
    for seed in range(10):
        flips = np.random.default_rng(seed).choice([-1.0, 1.0], 6)

        def flipped(*arguments, flips=flips):
            axes = principal_axes(*arguments)
            return axes._replace(vectors=axes.vectors * flips, projections=axes.projections * flips)

        expected = edit_stack(STACK, **options)
        monkeypatch.setattr(_principal, "principal_axes", flipped)
        np.testing.assert_allclose(edit_stack(STACK, **options), expected, rtol=1e-12)
        monkeypatch.undo()


@pytest.mark.extended
def test_two_opposite_clients_cancel_as_in_the_mean():
    stack = np.stack([STACK[0], -STACK[0]])
    close(combine(principal_directions(), stack, [3, 1]), 0.5 * STACK[0])


def test_more_clients_than_parameters_give_a_finite_result():
    assert np.all(np.isfinite(combine(principal_directions(1.0), RNG.normal(size=(9, 3)).astype(np.float32))))


def test_a_direction_with_a_relative_singular_value_of_1e_5_is_kept():
    """Singular values 1 and 1e-5: a float32 Gram matrix would lose the second (1e-10 of the first, squared)."""
    basis = np.linalg.qr(RNG.normal(size=(500, 2)))[0].T
    stack = (np.array([[1, 1e-5], [1, -1e-5], [1, 1e-5]]) @ basis).astype(np.float32)
    exact = np.asarray(stack, float)
    with jax.enable_x64(True):
        wanted = combine(principal_directions(1.0), exact)
    close(combine(principal_directions(1.0), stack), wanted, 1e-6)


def test_runs_under_vmap_and_loops_without_float64():
    stacks = jnp.asarray(np.stack([STACK, 2 * STACK, STACK[::-1]]))
    single = [combine(principal_directions(), stack) for stack in stacks]

    def looped(stack):
        body = lambda i, total: total + aggregate(principal_directions(), {"params": {"w": stack}})[0]["params"]["w"]  # noqa: E731
        return jax.lax.fori_loop(0, 2, body, jnp.zeros(40))

    for ours, wanted in zip(jax.vmap(looped)(stacks), single, strict=True):
        close(ours, 2 * wanted)


@pytest.mark.parametrize("buffers", ["weighted_mean", "keep_server", "in_vector"])
def test_buffers_are_averaged_kept_or_edited_as_requested(buffers):
    stack = {"params": {"w": STACK}, "batch_stats": {"mean": STACK[:, :3]}}
    update, _ = aggregate(principal_directions(buffers=buffers), stack, COUNTS)
    average = np.average(STACK[:, :3], axis=0, weights=COUNTS)
    edited = combine(principal_directions(), np.concatenate([STACK, STACK[:, :3]], axis=1), COUNTS)[-3:]
    wanted = {"weighted_mean": average, "keep_server": np.zeros(3), "in_vector": edited}
    close(update["batch_stats"]["mean"], wanted[buffers], 1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 0}, "fraction"),
        ({"fraction": 1.5}, "fraction"),
        ({"correction": "per_axes"}, "Did you mean 'per_axis'"),
        ({"eig_norm": "l2"}, "eig_norm"),
        ({"scope": "layer"}, "scope"),
        ({"buffers": "mean"}, "buffers"),
        ({"rounding": "up"}, "rounding"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        principal_directions(**options)


@pytest.mark.extended
def test_an_edit_can_use_sorting_loops_and_conditionals():
    """argmin, sorting, cumulative sums, searches and loops are lowered after the float64 context of the trace ended."""

    def edit(gram, is_present):
        order = jnp.argsort(jnp.diagonal(gram))
        shortest, longest = jnp.argmin(jnp.diagonal(gram)), jnp.argmax(jnp.diagonal(gram))
        shares = jnp.cumsum(jnp.sort(jnp.diagonal(gram))) / jnp.trace(gram)
        rank = jnp.searchsorted(shares, 0.5)
        halvings = jax.lax.while_loop(lambda x: x[1] > 1e-3, lambda x: (x[0] + 1, x[1] / 2), (0, gram[0, 0]))[0]
        factor = jax.lax.cond(gram[0, 1] < 0, lambda: 1.0, lambda: 2.0) * (1.0 + rank + halvings)
        rows = jnp.zeros_like(gram).at[order[0], longest].set(factor)
        return rows.at[shortest, shortest].add(jnp.median(gram)).at[longest, order[1]].add(1.0)

    with jax.enable_x64(True):
        stack = jnp.asarray(STACK, float)
        coefficients = np.asarray(edit(stack @ stack.T, jnp.ones(6, bool)))
    expected = np.full(6, 1 / 6) @ coefficients @ STACK.astype(np.float64)
    close(combine(gram_space_mean(edit, "uniform"), STACK), expected)
    pair = jax.jit(jax.vmap(lambda stack: combine(gram_space_mean(edit, "uniform"), stack)))(
        jnp.stack([STACK, 2 * STACK])
    )
    close(pair[0], expected)
    close(pair[1], combine(gram_space_mean(edit, "uniform"), 2 * STACK))
