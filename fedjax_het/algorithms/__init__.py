"""One recipe a paper. ALGORITHMS: the name used in a config -> its factory."""

from collections.abc import Callable

from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms.fedadagrad import fedadagrad
from fedjax_het.algorithms.fedadam import fedadam
from fedjax_het.algorithms.fedavg import fedavg
from fedjax_het.algorithms.fedavgm import fedavgm
from fedjax_het.algorithms.fedbn import fedbn
from fedjax_het.algorithms.fedcm import fedcm
from fedjax_het.algorithms.fedga import fedga
from fedjax_het.algorithms.fedgh import fedgh
from fedjax_het.algorithms.fediir import fediir
from fedjax_het.algorithms.fedld import fedld, fedld_released
from fedjax_het.algorithms.fedmgc import fedavg_dgc, fedmgc, fedprox_dgc
from fedjax_het.algorithms.fednova import fednova
from fedjax_het.algorithms.fedpac import fedpac
from fedjax_het.algorithms.fedprox import fedprox
from fedjax_het.algorithms.fedrd import fedrd
from fedjax_het.algorithms.fedsr import fedl2r, fedsr
from fedjax_het.algorithms.fedyogi import fedyogi
from fedjax_het.algorithms.harmofl import harmofl
from fedjax_het.algorithms.hierarchical import hierarchical
from fedjax_het.algorithms.moon import moon
from fedjax_het.algorithms.scaffold import scaffold

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "fedbn": fedbn,
    "fedld": fedld,
    "fedld_released": fedld_released,
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
