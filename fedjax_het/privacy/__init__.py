"""Differential privacy: epsilon from the noise multiplier of a run, and the noise multiplier from epsilon.

(epsilon, delta) bounds how well an observer of all models of a run can distinguish it from a run in which one client is
replaced or absent; with unit="example", in which one example of a client is. Nothing here runs on a device. The
accountant is dp-accounting (extra `privacy`), which is imported on first use.

    epsilon(3.0, PoissonSampling(0.1), rounds=512, delta=1e-6)                  # 3.77
    noise_multiplier(2.0, PoissonSampling(1e-3), rounds=1500, delta=1e-6)       # 0.616
"""

from fedjax_het.privacy._accountant import (
    Accountant,
    FixedSizeSampling,
    LocalNoise,
    PoissonSampling,
    Sampling,
    Unit,
    epsilon,
    noise_multiplier,
    resolve_accountant,
)
from fedjax_het.privacy._records import RecordPrivacy, record_epsilons, record_noise

__all__ = [
    "Accountant",
    "FixedSizeSampling",
    "LocalNoise",
    "PoissonSampling",
    "RecordPrivacy",
    "Sampling",
    "Unit",
    "epsilon",
    "noise_multiplier",
    "record_epsilons",
    "record_noise",
    "resolve_accountant",
]
