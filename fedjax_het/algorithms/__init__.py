"""Algorithms: one factory per method.

ALGORITHMS has each by the name that a config uses.
"""

from collections.abc import Callable

from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms._fedavg import fedavg
from fedjax_het.algorithms._fedbn import fedbn
from fedjax_het.algorithms._fedcm import fedcm
from fedjax_het.algorithms._fedga import fedga
from fedjax_het.algorithms._fedgh import fedgh
from fedjax_het.algorithms._fediir import fediir
from fedjax_het.algorithms._fedld import fedld
from fedjax_het.algorithms._fedmgc import fedavg_dgc, fedmgc, fedprox_dgc
from fedjax_het.algorithms._fednova import fednova
from fedjax_het.algorithms._fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from fedjax_het.algorithms._fedpac import fedpac
from fedjax_het.algorithms._fedprox import fedprox
from fedjax_het.algorithms._fedrd import fedrd
from fedjax_het.algorithms._fedsr import fedl2r, fedsr
from fedjax_het.algorithms._harmofl import harmofl
from fedjax_het.algorithms._hierarchical import hierarchical
from fedjax_het.algorithms._moon import moon
from fedjax_het.algorithms._scaffold import scaffold

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "fedbn": fedbn,
    "fedld": fedld,
    "harmofl": harmofl,
    "fednova": fednova,
    "fedcm": fedcm,
    "fedavgm": fedavgm,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "fedmgc": fedmgc,
    "fedavg_dgc": fedavg_dgc,
    "fedprox_dgc": fedprox_dgc,
    "fedgh": fedgh,
    "hierarchical": hierarchical,
    "fedsr": fedsr,
    "fedl2r": fedl2r,
    "fediir": fediir,
    "fedrd": fedrd,
    "fedga": fedga,
    "moon": moon,
    "fedpac": fedpac,
}

__all__ = ["ALGORITHMS", *ALGORITHMS]
