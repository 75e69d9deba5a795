"""A simulator for heterogeneous federated learning in which a whole round is one XLA program."""

from fedjax_het import algorithms, data, diagnostics, models, sharing
from fedjax_het.algorithm import Algorithm
from fedjax_het.client import measures, objectives, schedules
from fedjax_het.engine import History, Simulation, Sweep, simulate
from fedjax_het.engine.parallel import layout
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from fedjax_het.server import aggregators, weightings

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "History",
    "InputError",
    "Simulation",
    "Sweep",
    "__version__",
    "aggregators",
    "algorithms",
    "data",
    "diagnostics",
    "layout",
    "measures",
    "models",
    "objectives",
    "participation",
    "schedules",
    "sharing",
    "simulate",
    "weightings",
]
