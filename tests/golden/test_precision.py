"""The error of float32 in the gradient-editing aggregators, on the golden stacks of updates and on a hard one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.float64 import run_in_required_precision
from fedjax_het.engine.parallel import update_stack
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.server.aggregators import (
    dominant_correction,
    harmonized_mean,
    hierarchical_mean,
    mean,
    principal_directions,
)
from fedjax_het.server.aggregators._principal import principal_axes
from tests.golden.cases import Case, find_cases
from tests.golden.replay import aggregate
from tests.golden.test_golden import HERE

pytestmark = pytest.mark.extended

AGGREGATORS = {
    "mean": mean,
    "principal": principal_directions,
    "every axis": partial(principal_directions, 1.0),
    "dominant": dominant_correction,
    "harmonized": harmonized_mean,
    "harmonized in sequence": partial(harmonized_mean, "sequential"),
    "hierarchical": hierarchical_mean,
}


def stacks() -> dict[str, np.ndarray]:
    """name -> updates [m, d] of every case that holds some; those of other cases with the same bytes but once."""
    found = {}
    for case in map(Case, find_cases(HERE)):
        for name in {"G", "stack"} & set(case.matching("*")):
            if case[name].ndim == 2:
                found.setdefault(case[name].tobytes(), (f"{case.family}/{case.name}", case[name]))
    return dict(found.values())


def every_other_slowly(names):
    return [pytest.param(name, marks=[pytest.mark.slow] * (i % 2)) for i, name in enumerate(names)]


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("name", every_other_slowly(stacks()))
def test_float32_is_within_1e_5_of_float64(name, aggregator):
    stack = stacks()[name]
    with jax.enable_x64(True):
        exact = aggregate_vectors(aggregator, stack, np.float64)
    assert exact.dtype == np.float64
    single = aggregate_vectors(aggregator, stack, np.float32)
    assert single.dtype == np.float32
    assert np.abs(single - exact).max() <= 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("aggregator", every_other_slowly(["principal", "harmonized", "dominant", "hierarchical"]))
def test_products_by_digits_are_as_good_on_all_stacks(aggregator, monkeypatch):
    """On TPUs, which emulate float64, the Gram matrix is computed by digits."""
    multiply_by_digits_alone(monkeypatch)
    for name, stack in stacks().items():
        with jax.enable_x64(True):
            exact = aggregate_vectors(aggregator, stack, np.float64)
        single = aggregate_vectors(aggregator, stack, np.float32)
        assert np.abs(single - exact).max() <= 5e-7 * np.abs(exact).max(), name


def multiply_by_digits_alone(monkeypatch):
    monkeypatch.setattr(update_stack, "target_platform", lambda: "tpu")
    monkeypatch.setattr(update_stack, "_FEW_ENTRIES", 0)


def aggregate_vectors(name: str, updates: np.ndarray, dtype: type, **options) -> np.ndarray:
    aggregator = partial(AGGREGATORS[name], **options)()
    losses = {"loss": jnp.asarray(np.linspace(0.5, 1.5, len(updates)), dtype)}
    update = {"params": {"w": jnp.asarray(updates, dtype)}}
    return np.asarray(aggregate(aggregator, update, reports=losses)[0]["params"]["w"])


@pytest.mark.slow
@pytest.mark.parametrize("aggregator", sorted(AGGREGATORS.keys() - {"mean", "hierarchical"}))
@pytest.mark.parametrize("name", stacks())
def test_bfloat16_is_within_1e_2_of_float64(name, aggregator):
    stack = stacks()[name]
    with jax.enable_x64(True):
        exact = aggregate_vectors(aggregator, stack, np.float64)
    ours = aggregate_vectors(aggregator, stack, np.float32, stack="bfloat16")
    assert ours.dtype == np.float32
    assert np.abs(ours - exact).max() <= 1e-2 * np.abs(exact).max()


@pytest.fixture(params=["the kernel, if it can be had", "block by block", "by digits"])
def gram_implementation(request, monkeypatch):
    if request.param == "by digits":
        multiply_by_digits_alone(monkeypatch)
    elif request.param == "block by block":
        monkeypatch.setattr(update_stack, "explain_missing_kernel", lambda: "a test")


def errors_of_axes(dtype: str = "float32") -> np.ndarray:
    """Of singular values 1, 1e-1, ..., 1e-5, each as a share of itself."""
    generator = np.random.default_rng(0)
    left, right = (np.linalg.qr(generator.normal(size=(size, 6)))[0] for size in (6, 4096))
    values = 10.0 ** -np.arange(6)
    stack = StackedUpdates(jnp.asarray((left * values) @ right.T, jnp.float32)).astype(dtype)
    lengths = run_in_required_precision(lambda: principal_axes(stack.gram(), jnp.ones(6, bool), 1.0).lengths)
    return np.abs(np.asarray(lengths) - values) / values


def test_a_float32_stack_resolves_an_axis_of_relative_length_1e_5(gram_implementation):
    """A float32 Gram matrix would have lost the last two."""
    assert errors_of_axes().max() < 1e-4


def test_a_bfloat16_stack_resolves_an_axis_of_relative_length_1e_2(gram_implementation):
    assert errors_of_axes("bfloat16")[:3].max() < 1e-2


@pytest.mark.parametrize("aggregator", [principal_directions, dominant_correction])
def test_aggregators_with_a_traced_fraction_work_under_vmap(aggregator):
    """A sweep under vmap: what the float64 part closes over is batched as well."""
    stack = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)
    losses = {"loss": jnp.arange(1.0, 7.0)}

    def update(fraction):
        return aggregate(aggregator(fraction), {"params": {"w": stack}}, reports=losses)[0]["params"]["w"]

    fractions = [0.3, 0.6, 1.0]
    np.testing.assert_allclose(
        jax.vmap(update)(jnp.array(fractions)), [update(f) for f in fractions], rtol=1e-5, atol=1e-7
    )
