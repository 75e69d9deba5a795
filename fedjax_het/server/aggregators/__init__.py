"""Aggregators: from the updates of a cohort to one update.

A new one is a function of the problem, its own state and a `ServerView`, wrapped in an `Aggregator`; it reads the
updates by the methods of `view.updates`, an `UpdateStack`.
"""

from fedjax_het.server.aggregators._collaboration import collaborative_heads
from fedjax_het.server.aggregators._conflict import dominant_correction, harmonized_mean
from fedjax_het.server.aggregators._extrapolation import Displaced, displaced_mean, extrapolated_mean, mean_of_last_two
from fedjax_het.server.aggregators._gram_space import GramEdit, gram_space_mean
from fedjax_het.server.aggregators._hierarchical import hierarchical_mean
from fedjax_het.server.aggregators._mean import mean, normalized_mean, sum_of_models
from fedjax_het.server.aggregators._model_average import averaged_model, with_model_average
from fedjax_het.server.aggregators._principal import principal_directions

__all__ = [
    "Displaced",
    "GramEdit",
    "averaged_model",
    "collaborative_heads",
    "displaced_mean",
    "dominant_correction",
    "extrapolated_mean",
    "gram_space_mean",
    "harmonized_mean",
    "hierarchical_mean",
    "mean",
    "mean_of_last_two",
    "normalized_mean",
    "principal_directions",
    "sum_of_models",
    "with_model_average",
]
