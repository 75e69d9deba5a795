"""Weightings: the weight of each client's update; weights sum to one over the present clients."""

from fedjax_het.server.weightings._discrepancy import Discrepancy, discrepancy_aware
from fedjax_het.server.weightings._distance import distance_momentum
from fedjax_het.server.weightings._generalization_adjustment import StepSchedule, generalization_adjustment
from fedjax_het.server.weightings._parameter_guided import Distance, low_layer, parameter_guided
from fedjax_het.server.weightings._shares import (
    WEIGHTINGS,
    WeightingName,
    WeightingOrName,
    by_examples,
    by_report,
    mean_over_cohort,
    normalise,
    resolve_weighting,
    stateless,
    uniform,
)

__all__ = [
    "WEIGHTINGS",
    "Discrepancy",
    "Distance",
    "StepSchedule",
    "WeightingName",
    "WeightingOrName",
    "by_examples",
    "by_report",
    "discrepancy_aware",
    "distance_momentum",
    "generalization_adjustment",
    "low_layer",
    "mean_over_cohort",
    "normalise",
    "parameter_guided",
    "resolve_weighting",
    "stateless",
    "uniform",
]
