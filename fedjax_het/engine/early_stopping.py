"""Early stopping: end training when a metric no longer improves."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.engine.evaluation.client_statistics import flatten_evaluation, is_larger_better
from fedjax_het.engine.simulation import Simulation
from fedjax_het.errors import InputError, nearest
from fedjax_het.validation import Count, NonNegative, check_constraints, constraints

TRAIN_LOSS = "train/loss"


@dataclass(frozen=True)
class EarlyStopping:
    """Stop at the first evaluation where no seed has improved for `patience` evaluations.

    Args:
        metric: An evaluation metric, such as "valid/accuracy" (the mean over clients), "clients/accuracy_worst10"
            or "valid/loss"; or "train/loss". Smaller values are better for losses, distances, calibration errors,
            deviations and Gini coefficients.
        patience: Number of consecutive evaluations without improvement (default 5).
        min_delta: Minimum change that counts as an improvement, exclusive (default 0). NaN never counts.
    """

    metric: str
    patience: Count = 5
    min_delta: NonNegative = 0.0

    def __post_init__(self):
        check_constraints(constraints(EarlyStopping), vars(self))

    def __str__(self) -> str:
        return f"{self.metric} has not improved in {self.patience} evaluations"

    def check_rounds(self, rounds: int, evaluate_every: int) -> None:
        """Raise InputError if training ends before it can be stopped."""
        if (self.patience + 1) * evaluate_every >= rounds:
            raise InputError(
                f"patience: {self.patience} evaluations after the first take {(self.patience + 1) * evaluate_every} "
                f"rounds, but training ends after {rounds}. Lower patience or evaluate_every, or raise rounds."
            )

    def complete(self, simulation: Simulation) -> "EarlyStopping":
        """Return a copy with the full metric name; raise InputError if the simulation lacks the metric."""
        self.check_rounds(simulation.rounds, simulation.evaluate_every)
        return self.name_in({TRAIN_LOSS, *flatten_evaluation(simulation.evaluate(simulation.start()))})

    def name_in(self, figures: Collection[str]) -> "EarlyStopping":
        """Return a copy with the full metric name among figures (the mean by default), or raise InputError."""
        for name in (self.metric, f"{self.metric}_mean"):
            if name in figures:
                return replace(self, metric=name)
        raise InputError(f"metric: '{self.metric}' is not evaluated. {nearest(self.metric, sorted(figures))}")

    def find_end(self, scores: Sequence[ArrayLike]) -> int | None:
        """Find the evaluation after which training ends.

        Args:
            scores: The metric of each evaluation, [seeds].

        Returns:
            The index of the evaluation; None if training continues.
        """
        sign = 1 if is_larger_better(self.metric) else -1
        best, num_waited, has_ended = -np.inf, 0, False
        for i, values in enumerate(scores):
            score = sign * np.asarray(values, np.float64)
            is_better = score > best + self.min_delta
            best, num_waited = np.where(is_better, score, best), np.where(is_better, 0, num_waited + 1)
            has_ended |= num_waited >= self.patience
            if np.all(has_ended):
                return i
        return None
