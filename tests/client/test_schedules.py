"""Values of learning-rate schedules."""

import numpy as np
import pytest

from fedjax_het.client.schedules import SCHEDULES, cosine, cyclic, exponential, steps, warm_up
from fedjax_het.errors import InputError


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (steps((2, 4), 0.1), [1, 1, 0.1, 0.1, 0.01, 0.01]),
        (exponential(0.5, every=2), [1, 1, 0.5, 0.5, 0.25, 0.25]),
        (cosine(4, final=0.2), [1, 0.2 + 0.4 * (1 + 0.5**0.5), 0.6, 0.2 + 0.4 * (1 - 0.5**0.5), 0.2, 0.2]),
        (cyclic(2, period=4, final=0.2), [1, 1, 0.4, 0.2, 0.8, 0.6]),
        (cyclic(2, period=1), [1, 1, 1, 1, 1, 1]),
        (warm_up(4), [0, 0.25, 0.5, 0.75, 1, 1]),
        (warm_up(2, first=0.5), [0.5, 0.75, 1, 1, 1, 1]),
    ],
)
def test_a_schedule_gives_its_factor_in_each_round(schedule, expected):
    np.testing.assert_allclose([schedule(np.int32(round)) for round in range(6)], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("steps", {"milestones": ()}, "milestones: expected rounds of at least 1"),
        ("steps", {"milestones": (0, 3)}, "milestones: must be a list in which each is a whole number from 1"),
        ("steps", {"milestones": (5, 3)}, "in ascending order"),
        ("steps", {"milestones": (5,), "factor": -1.0}, "factor: must be a finite number of at least 0"),
        ("exponential", {"factor": 0.0}, "factor: must be a finite number above 0"),
        ("exponential", {"every": 0}, "every: must be a whole number from 1"),
        ("cosine", {"rounds": 0}, "rounds: must be a whole number from 1"),
        ("warm_up", {"first": float("nan")}, "first: must be a finite number of at least 0, not nan"),
    ],
)
def test_invalid_schedule_options_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        SCHEDULES[name](**options)
