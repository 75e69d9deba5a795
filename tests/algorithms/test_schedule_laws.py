"""Laws of learning-rate schedules."""

import numpy as np
import pytest

from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.client.schedules import steps, warm_up
from tests.harness import TINY, compose, difference, is_equal, plain_round, run

pytestmark = pytest.mark.extended

ITS_OWN = {"fedpac": {"head_learning_rate": 0.2}, "fedtgp": {"server_learning_rate": 0.05}}  # .1 and the rate else


def half(round):
    return 0.5


# Algorithms that use the rate elsewhere or have another optimizer; for all others the rate enters in the same way.
OFTEN = ("fedavg", "fedcm", "fednova", "fedpac", "fedsr", "harmofl", "scaffold")
NAMES = [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS]


@pytest.mark.parametrize("name", NAMES)
def test_halving_twice_the_rate_gives_the_same_run(name):
    """For the whole state after a round: FedCM, FedNova and SCAFFOLD also divide by the rate."""
    options = {"learning_rate": 2 * TINY["learning_rate"], "learning_rate_schedule": half} | ITS_OWN.get(name, {})
    halved, _ = run(compose(name, options=options), rounds=3)
    as_ever, _ = run(plain_round(name), rounds=3)
    assert difference(halved, as_ever) < 1e-5


@pytest.mark.slow
def test_fednovas_coefficients_with_a_proximal_term_use_the_scheduled_rate():
    """They depend on the rate if there is a proximal term."""
    pulled = {"mu": 2.0, "momentum": 0.5}
    halved = compose(
        "fednova", options=pulled | {"learning_rate": 2 * TINY["learning_rate"], "learning_rate_schedule": half}
    )
    (ours, _), (other, _) = run(halved), run(compose("fednova", options=pulled))
    assert difference(ours, other) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedcm", "fednova"])
def test_a_round_at_rate_zero_does_not_change_the_model(name):
    begun = run(compose(name, norm="none"), rounds=0)[0]
    still, _ = run(compose(name, norm="none", options={"learning_rate_schedule": warm_up(2)}), rounds=1)
    assert is_equal(still.server.shared, begun.server.shared)
    moved, _ = run(compose(name, norm="none", options={"learning_rate_schedule": warm_up(2)}), rounds=2)
    assert 0 < difference(moved.server.shared, begun.server.shared) < np.inf


@pytest.mark.slow
def test_schedule_steps_apply_from_the_beginning_of_their_rounds():
    options = {"learning_rate_schedule": steps((2,), factor=0.0)}
    (before, _), (after, _) = (run(compose("fedavg", norm="none", options=options), rounds=r) for r in (2, 4))
    assert is_equal(before.server.shared, after.server.shared)
    as_ever, _ = run(compose("fedavg", norm="none"), rounds=2)
    assert difference(before.server.shared, as_ever.server.shared) < 1e-6
