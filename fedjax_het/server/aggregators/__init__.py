"""From the stacked uploads of a cohort to one update."""

from fedjax_het.server.aggregators.collaboration import collaborative_heads
from fedjax_het.server.aggregators.dominant import dominant_correction
from fedjax_het.server.aggregators.gram import edited_mean
from fedjax_het.server.aggregators.harmonization import harmonized_mean
from fedjax_het.server.aggregators.hierarchical import hierarchical_mean
from fedjax_het.server.aggregators.mean import mean
from fedjax_het.server.aggregators.normalized import normalized_mean
from fedjax_het.server.aggregators.principal import principal_directions
from fedjax_het.server.aggregators.sum_of_models import sum_of_models

__all__ = [
    "collaborative_heads",
    "dominant_correction",
    "edited_mean",
    "harmonized_mean",
    "hierarchical_mean",
    "mean",
    "normalized_mean",
    "principal_directions",
    "sum_of_models",
]
