"""Aggregators: combine the updates of a cohort into one update.

A new aggregator is a function of the problem, its state and a `ServerView`, wrapped in an `Aggregator`; it reads the
updates with the methods of `view.updates`, an `UpdateStack`. Those in AGGREGATORS work with any algorithm.
"""

from collections.abc import Callable, Mapping

from fedjax_het.algorithm import Aggregator
from fedjax_het.server.aggregators._collaboration import collaborative_heads
from fedjax_het.server.aggregators._conflict import dominant_correction, harmonized_mean
from fedjax_het.server.aggregators._ensemble import Scheme, ensemble_distillation
from fedjax_het.server.aggregators._extrapolation import (
    Displaced,
    averaged_model,
    displaced_mean,
    extrapolated_mean,
    mean_of_last_two,
    with_model_average,
)
from fedjax_het.server.aggregators._fairness import common_descent, lipschitz_mean, ordered_projection
from fedjax_het.server.aggregators._generator import LabelWeights, with_generator
from fedjax_het.server.aggregators._gram_space import GramEdit, gram_space_mean
from fedjax_het.server.aggregators._hierarchical import hierarchical_mean
from fedjax_het.server.aggregators._low_rank import (
    mean_by_product_norms,
    mean_with_corrected_b,
    mean_with_exact_products,
    merged_products,
)
from fedjax_het.server.aggregators._mean import masked_mean, mean, normalized_mean, sum_of_models
from fedjax_het.server.aggregators._principal import principal_directions
from fedjax_het.server.aggregators._robust_centres import centred_clipping, geometric_median
from fedjax_het.server.aggregators._robust_coordinates import coordinate_median, mean_around_median, trimmed_mean
from fedjax_het.server.aggregators._robust_gram import (
    fltrust,
    krum,
    minimum_diameter_mean,
    multi_krum,
    norm_bounded_mean,
)
from fedjax_het.server.aggregators._robust_steps import Preparation

AGGREGATORS: Mapping[str, Callable[..., Aggregator]] = {
    "mean": mean,
    "principal_directions": principal_directions,
    "harmonized_mean": harmonized_mean,
    "hierarchical_mean": hierarchical_mean,
    "krum": krum,
    "multi_krum": multi_krum,
    "minimum_diameter_mean": minimum_diameter_mean,
    "geometric_median": geometric_median,
    "centred_clipping": centred_clipping,
    "norm_bounded_mean": norm_bounded_mean,
    "fltrust": fltrust,
    "coordinate_median": coordinate_median,
    "trimmed_mean": trimmed_mean,
    "mean_around_median": mean_around_median,
}
"""The aggregators that need only client updates, by their config names."""

__all__ = [
    "AGGREGATORS",
    "Displaced",
    "GramEdit",
    "LabelWeights",
    "Preparation",
    "Scheme",
    "averaged_model",
    "centred_clipping",
    "collaborative_heads",
    "common_descent",
    "coordinate_median",
    "displaced_mean",
    "dominant_correction",
    "ensemble_distillation",
    "extrapolated_mean",
    "fltrust",
    "geometric_median",
    "gram_space_mean",
    "harmonized_mean",
    "hierarchical_mean",
    "krum",
    "lipschitz_mean",
    "masked_mean",
    "mean",
    "mean_around_median",
    "mean_by_product_norms",
    "mean_of_last_two",
    "mean_with_corrected_b",
    "mean_with_exact_products",
    "merged_products",
    "minimum_diameter_mean",
    "multi_krum",
    "norm_bounded_mean",
    "normalized_mean",
    "ordered_projection",
    "principal_directions",
    "sum_of_models",
    "trimmed_mean",
    "with_generator",
    "with_model_average",
]
