import numpy as np
import pytest

from fedjax_het.diagnostics import decomposition, drift
from fedjax_het.errors import InputError

RNG = np.random.default_rng(0)


def test_the_parts_add_up_to_the_global_loss():
    losses, overall, counts = RNG.uniform(size=(4, 4)), RNG.uniform(size=4), np.array([5, 1, 7, 2])
    parts = decomposition(losses, overall, counts)
    np.testing.assert_allclose(parts.local + parts.shift + parts.aggregation, parts.total, rtol=1e-6)
    np.testing.assert_allclose(parts.total, overall @ counts / counts.sum(), rtol=1e-6)


def test_equal_losses_have_no_shift_and_no_aggregation_part():
    losses = np.full((3, 3), 0.7)
    parts = decomposition(losses, np.full(3, 0.7), np.ones(3))
    assert abs(float(parts.shift)) < 1e-7 and abs(float(parts.aggregation)) < 1e-7


def test_drift_is_zero_without_movement_and_quadratic_in_the_distance():
    path = RNG.normal(size=(5, 6))
    assert float(drift([np.repeat(path[:1], 4, axis=0)])) == 0
    wider = path[0] + 3 * (path - path[0])
    np.testing.assert_allclose(drift([wider]), 9 * drift([path]), rtol=1e-5)
    with pytest.raises(InputError, match="index"):
        drift([path], "middle")
