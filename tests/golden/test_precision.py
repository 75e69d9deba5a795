"""The error of float32 in the gradient-editing aggregators, on the golden stacks of updates and on a hard one."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.float64 import run_in_double
from fedjax_het.engine.parallel import update_stack
from fedjax_het.engine.parallel.update_stack import StackedUpdates, pack
from fedjax_het.engine.round import server_step
from fedjax_het.engine.round.update_plan import pack_for
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
from tests.views import server_view

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
    """name -> updates [m, d] of every case that has some, without duplicates."""
    found = {}
    for case in map(Case, find_cases(HERE)):
        for name in {"G", "stack"} & set(case.matching("*")):
            if case[name].ndim == 2:
                found.setdefault(case[name].tobytes(), (f"{case.family}/{case.name}", case[name]))
    return dict(found.values())


STACKS = stacks()
EDITS = ("principal", "harmonized", "dominant", "hierarchical")


@cache
def aggregate_all(names: tuple[str, ...], size: int, width: int, way: str = "", **options):
    """A program of these aggregators for stacks [size, width]; `way` tells programs of different `update_stack`s."""
    losses, template = {"loss": jnp.linspace(0.5, 1.5, size)}, {"params": {"w": jnp.zeros(width)}}

    @jax.jit
    def run(stack):
        reports = jax.tree.map(lambda loss: loss.astype(stack.dtype), losses)
        start = jax.tree.map(lambda x: x.astype(stack.dtype), template)

        def combine(rule):
            view = server_view(size, reports, pack_for(rule, {"params": {"w": stack}}), start)
            return server_step.aggregate(rule, None, rule.init(template, size), view)[0].update["params"]["w"]

        return {name: combine(partial(AGGREGATORS[name], **options)()) for name in names}

    return run


@cache
def exact_updates(name: str) -> dict[str, np.ndarray]:
    with jax.enable_x64(True):
        exact = aggregate_all(tuple(AGGREGATORS), *STACKS[name].shape)(STACKS[name])
        assert all(update.dtype == np.float64 for update in exact.values())
        return jax.tree.map(np.asarray, exact)


def inexact(name: str, tolerance: float, aggregators=tuple(AGGREGATORS), way: str = "", **options) -> list[str]:
    """The aggregators whose float32 updates are farther from float64 ones than this, relative to the largest entry."""
    ours = aggregate_all(aggregators, *STACKS[name].shape, way, **options)(STACKS[name].astype(np.float32))
    assert all(update.dtype == np.float32 for update in ours.values())
    exact = exact_updates(name)
    return [key for key in ours if not np.abs(ours[key] - exact[key]).max() <= tolerance * np.abs(exact[key]).max()]


@pytest.mark.parametrize("name", STACKS)
def test_float32_is_within_1e_5_of_float64(name):
    assert inexact(name, 1e-5) == []


@pytest.mark.parametrize("name", STACKS)
def test_products_by_digits_are_as_good(name, monkeypatch):
    """On TPUs, which emulate float64, the Gram matrix is computed by digits."""
    multiply_by_digits_alone(monkeypatch)
    assert inexact(name, 5e-7, EDITS, "digits") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", STACKS)
def test_bfloat16_is_within_1e_2_of_float64(name):
    assert inexact(name, 1e-2, tuple(AGGREGATORS.keys() - {"mean", "hierarchical"}), stack="bfloat16") == []


def multiply_by_digits_alone(monkeypatch):
    monkeypatch.setattr(update_stack, "target_platform", lambda: "tpu")
    monkeypatch.setattr(update_stack, "_FEW_ENTRIES", 0)


@pytest.fixture(params=["the kernel, if it can be had", "block by block", "by digits"])
def gram_implementation(request, monkeypatch):
    if request.param == "by digits":
        multiply_by_digits_alone(monkeypatch)
    elif request.param == "block by block":
        monkeypatch.setattr(update_stack, "explain_missing_kernel", lambda: "a test")


def errors_of_axes(dtype: str = "float32") -> np.ndarray:
    """The relative errors of the singular values 1, 1e-1, ..., 1e-5."""
    generator = np.random.default_rng(0)
    left, right = (np.linalg.qr(generator.normal(size=(size, 6)))[0] for size in (6, 4096))
    values = 10.0 ** -np.arange(6)
    rows = jnp.asarray((left * values) @ right.T, jnp.float32)
    stack = StackedUpdates(pack(rows) if dtype == "bfloat16" else rows)
    lengths = run_in_double(lambda: principal_axes(stack.gram(), jnp.ones(6, bool), 1.0).lengths)
    return np.abs(np.asarray(lengths) - values) / values


@pytest.mark.slow
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
