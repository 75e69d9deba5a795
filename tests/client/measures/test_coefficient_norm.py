import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.client.measures import coefficient_norm
from fedjax_het.client.measures._updates import impulse_response_norm
from fedjax_het.client.optimizers import torch_sgd
from fedjax_het.errors import InputError
from tests.client.test_local_updates import PROBLEM, view

MEASURE = jax.jit(
    lambda rate, momentum, mu, num_steps: impulse_response_norm(torch_sgd(rate, momentum), rate, mu)(num_steps)
)


def norm_of_steps(num_steps: int, *settings, **options) -> float:
    after = view([0], 1)._replace(num_steps=jnp.asarray(num_steps, float))
    return float(coefficient_norm(*settings, **options)(PROBLEM, after))


def impulse_by_impulse(num_steps: int, rate: float, momentum: float, mu: float) -> float:
    """Each gradient of the round in turn is replaced by 1, the others by 0."""
    total = 0.0
    for number in range(num_steps):
        moved, buffer = 0.0, 0.0
        for step in range(num_steps):
            buffer = momentum * buffer + (step == number) + mu * moved
            moved -= rate * buffer
        total += abs(moved) / rate
    return total


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.floats(0.01, 0.5), st.floats(0, 0.95), st.floats(0, 1))
def test_one_impulse_gives_the_norm_that_impulses_one_by_one_give(num_steps, rate, momentum, mu):
    ours = MEASURE(rate, momentum, mu, float(num_steps))
    np.testing.assert_allclose(ours, impulse_by_impulse(num_steps, rate, momentum, mu), rtol=1e-4)


@pytest.mark.parametrize("rule", ["impulse", "released"])
def test_the_norm_of_plain_steps_is_their_number(rule):
    assert [norm_of_steps(steps, 0.1, rule=rule) for steps in (0, 1, 7)] == pytest.approx([0, 1, 7])


@pytest.mark.parametrize("rule", ["impulse", "released"])
def test_momentum_increases_the_norm(rule):
    rho, steps = 0.9, 6
    wanted = sum((1 - rho ** (steps - k)) / (1 - rho) for k in range(steps))
    assert norm_of_steps(steps, 0.1, rho, rule=rule) == pytest.approx(wanted)


@pytest.mark.parametrize("rule", ["impulse", "released"])
def test_a_proximal_pull_decreases_the_norm(rule):
    assert norm_of_steps(3, 0.1, 0.0, 0.5, rule=rule) == pytest.approx(1 + 0.95 + 0.95**2)


def test_the_released_rule_is_larger_with_momentum_and_a_pull_together():
    assert norm_of_steps(2, 0.1, 0.5, 0.05, rule="released") == pytest.approx(4.477525, abs=1e-5)
    assert norm_of_steps(2, 0.1, 0.5, 0.05) == pytest.approx(2.495)


def test_an_unknown_rule_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"rule: unknown option 'impulses'\. Did you mean 'impulse'"):
        coefficient_norm(0.1, rule="impulses")
