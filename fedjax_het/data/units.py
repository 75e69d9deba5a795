"""The units of numbers that are learnt in standardised form."""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedjax_het.errors import InputError


class Units(NamedTuple):
    """The origin and the scale of labels that are numbers, z = (y - mean) / deviation, per group of examples.

    Metrics are computed for y, in float64.
    """

    mean: Float[np.ndarray, "groups targets"]
    deviation: Float[np.ndarray, "groups targets"]  # 1 for constant targets
    group: Int[np.ndarray, " examples"]
    origin: Literal[
        "constant", "client", "common"
    ]  # constants, or moments of one client's or several clients' examples
    naive: Float[np.ndarray, " groups"] | None = None  # mean error of the naive forecast of the training part, for MASE

    def restore(self, values: np.ndarray, positions: np.ndarray) -> Float[np.ndarray, "... examples targets"]:
        """Convert standardised values [..., examples, targets] of the examples at these positions to their units."""
        groups = self.group[positions % len(self.group)]  # an entry of an index table may also name a concept
        return np.asarray(values, np.float64) * self.deviation[groups] + self.mean[groups]


def standardise_numbers(
    values: np.ndarray, group: np.ndarray, is_train: np.ndarray, origin: Literal["client", "common"]
) -> tuple[np.ndarray, Units]:
    """Standardise numbers by the mean and the deviation of the training examples of their group.

    Args:
        values: [examples, targets].
        group: The group of each example, from 0.
        is_train: [examples] bool.
        origin: Whether groups are clients, or have the examples of several.

    Returns:
        (Standardised values, float32; their units.) The divisor of the variance is the number of training examples.

    Raises:
        InputError: A group has examples, but none for training.
    """
    values, num_groups = np.asarray(values, np.float64), int(group.max()) + 1
    mean, deviation = np.zeros((num_groups, values.shape[1])), np.ones((num_groups, values.shape[1]))
    for number in range(num_groups):
        train = values[is_train & (group == number)]
        if not len(train):
            raise InputError(f"group {number} has no training examples to standardise by. Give each some.")
        mean[number], spread = train.mean(axis=0), train.std(axis=0)
        deviation[number] = np.where(spread > 0, spread, 1)
    units = Units(mean, deviation, np.asarray(group, np.int32), origin)
    return ((values - mean[group]) / deviation[group]).astype(np.float32), units
