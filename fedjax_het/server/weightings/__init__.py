"""How much each client's update counts; weights sum to one over the clients that are present. One mechanism a file."""

from fedjax_het.server.weightings.generalization_adjustment import generalization_adjustment
from fedjax_het.server.weightings.parameter_guided import parameter_guided
from fedjax_het.server.weightings.shares import WEIGHTINGS, by_examples, named, normalise, stateless, uniform

__all__ = [
    "WEIGHTINGS",
    "by_examples",
    "generalization_adjustment",
    "named",
    "normalise",
    "parameter_guided",
    "stateless",
    "uniform",
]
