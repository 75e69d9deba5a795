"""Weightings: the weight of each client's update; weights sum to one over the present clients."""

from fedjax_het.server.weightings._discrepancy import Discrepancy, discrepancy_aware
from fedjax_het.server.weightings._distance import distance_momentum
from fedjax_het.server.weightings._generalization_adjustment import StepSchedule, generalization_adjustment
from fedjax_het.server.weightings._losses import (
    SMALLEST_LOSS,
    LambdaOrder,
    LambdaStart,
    Tilt,
    agnostic,
    released_tilt,
    tilted,
)
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
    "SMALLEST_LOSS",
    "WEIGHTINGS",
    "Discrepancy",
    "Distance",
    "LambdaOrder",
    "LambdaStart",
    "StepSchedule",
    "Tilt",
    "WeightingName",
    "WeightingOrName",
    "agnostic",
    "by_examples",
    "by_report",
    "discrepancy_aware",
    "distance_momentum",
    "generalization_adjustment",
    "low_layer",
    "mean_over_cohort",
    "normalise",
    "parameter_guided",
    "released_tilt",
    "resolve_weighting",
    "stateless",
    "tilted",
    "uniform",
]
