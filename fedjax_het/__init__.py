"""fedjax_het: a simulator for heterogeneous federated learning, a whole round in one XLA program."""

from fedjax_het import algorithms, data, models, sharing
from fedjax_het.algorithm import Algorithm
from fedjax_het.client import schedules
from fedjax_het.engine import Sweep, bernoulli, chunked, full, sharded, simulate, uniform, vmapped
from fedjax_het.errors import InputError

__all__ = [
    "Algorithm",
    "InputError",
    "Sweep",
    "algorithms",
    "bernoulli",
    "chunked",
    "data",
    "full",
    "models",
    "schedules",
    "sharded",
    "sharing",
    "simulate",
    "uniform",
    "vmapped",
]
