"""Algorithms: one factory per method.

ALGORITHMS maps names in configs to factories, FAMILIES groups the factories by topic.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms._afl import afl
from fedjax_het.algorithms._apfl import apfl
from fedjax_het.algorithms._choco import choco
from fedjax_het.algorithms._depthfl import depthfl
from fedjax_het.algorithms._ditto import ditto
from fedjax_het.algorithms._dpsgd import dfedavgm, dfedsam, dpsgd
from fedjax_het.algorithms._dsgt import dsgt
from fedjax_het.algorithms._fedacg import fedacg
from fedjax_het.algorithms._fedala import fedala
from fedjax_het.algorithms._fedamp import fedamp, heurfedamp
from fedjax_het.algorithms._fedas import fedas
from fedjax_het.algorithms._fedavg import fedavg
from fedjax_het.algorithms._fedbn import fedbn
from fedjax_het.algorithms._fedcac import fedcac
from fedjax_het.algorithms._fedcm import fedcm, mofedsam
from fedjax_het.algorithms._fedcp import fedcp
from fedjax_het.algorithms._feddbe import feddbe
from fedjax_het.algorithms._feddecorr import feddecorr
from fedjax_het.algorithms._feddf import feddf
from fedjax_het.algorithms._feddg import feddg
from fedjax_het.algorithms._feddisco import feddisco
from fedjax_het.algorithms._feddistill import feddistill
from fedjax_het.algorithms._feddrift import feddrift
from fedjax_het.algorithms._feddyn import feddyn
from fedjax_het.algorithms._fedem import fedem
from fedjax_het.algorithms._fedetf import fedetf
from fedjax_het.algorithms._fedexp import fedexp
from fedjax_het.algorithms._fedfomo import fedfomo
from fedjax_het.algorithms._fedfv import fedfv
from fedjax_het.algorithms._fedga import fedga
from fedjax_het.algorithms._fedgen import fedgen
from fedjax_het.algorithms._fedgh import fedgh
from fedjax_het.algorithms._fedheal import fedheal
from fedjax_het.algorithms._fediir import fediir
from fedjax_het.algorithms._fedkd import fedkd
from fedjax_het.algorithms._fedlc import fedlc
from fedjax_het.algorithms._fedld import fedld
from fedjax_het.algorithms._fedlwf import fedlwf
from fedjax_het.algorithms._fedmd import fedmd
from fedjax_het.algorithms._fedmgc import fedavg_dgc, fedmgc, fedprox_dgc
from fedjax_het.algorithms._fedmgda import fedmgda
from fedjax_het.algorithms._fednova import fednova
from fedjax_het.algorithms._fedntd import fedntd
from fedjax_het.algorithms._fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from fedjax_het.algorithms._fedpac import fedpac
from fedjax_het.algorithms._fedper import fedper, lgfedavg
from fedjax_het.algorithms._fedproto import fedproto
from fedjax_het.algorithms._fedprox import fedprox
from fedjax_het.algorithms._fedrd import fedrd
from fedjax_het.algorithms._fedrep import fedbabu, fedrep
from fedjax_het.algorithms._fedrod import fedrod
from fedjax_het.algorithms._fedrs import fedrs
from fedjax_het.algorithms._fedsam import fedasam, fedsam
from fedjax_het.algorithms._fedspeed import fedsmoo, fedspeed
from fedjax_het.algorithms._fedsr import fedl2r, fedsr
from fedjax_het.algorithms._fedtgp import fedtgp
from fedjax_het.algorithms._flash import ada_fedavg, flash
from fedjax_het.algorithms._flora import flexlora, flora, hetlora
from fedjax_het.algorithms._fml import fml
from fedjax_het.algorithms._fpl import fpl
from fedjax_het.algorithms._glfc import glfc
from fedjax_het.algorithms._gpfl import gpfl
from fedjax_het.algorithms._harmofl import harmofl
from fedjax_het.algorithms._heterofl import fedrolex, fjord, heterofl
from fedjax_het.algorithms._hierarchical import hierarchical
from fedjax_het.algorithms._ifca import cfl, fesem, ifca
from fedjax_het.algorithms._knnper import knnper
from fedjax_het.algorithms._lora import feddpa, fedexlora, fedit, fedsalora, ffalora, lorafair, rolora
from fedjax_het.algorithms._moon import moon
from fedjax_het.algorithms._perfedavg import perfedavg
from fedjax_het.algorithms._pfedfda import pfedfda
from fedjax_het.algorithms._pfedme import pfedme
from fedjax_het.algorithms._prompts import fedotp, fedpgp, promptfl
from fedjax_het.algorithms._propfair import propfair
from fedjax_het.algorithms._qffl import qffl
from fedjax_het.algorithms._scaffold import fedgamma, scaffold
from fedjax_het.algorithms._sgp import sgp
from fedjax_het.algorithms._term import term

FAMILIES: Mapping[str, tuple[Callable[..., Algorithm], ...]] = MappingProxyType(
    {
        "Averages and client drift": (fedavg, fedprox, scaffold, fednova, fedcm, feddyn, fedexp, fedacg),
        "Server optimizers": (fedavgm, fedadagrad, fedadam, fedyogi),
        "Flat optima": (fedsam, fedasam, mofedsam, fedgamma, fedspeed, fedsmoo),
        "Conflicting updates": (fedld, fedgh, hierarchical, fedmgc, fedavg_dgc, fedprox_dgc),
        "Label skew": (moon, fedlc, fedrs, fedntd, feddecorr, feddisco, fedetf),
        "Fairness": (qffl, afl, term, fedmgda, propfair, fedfv),
        "Personal models": (
            *(fedbn, fedper, lgfedavg, fedrep, fedbabu, fedpac, fedproto, ditto, pfedme, apfl),
            *(perfedavg, fedala, fedrod, feddbe, fedas, fedcp, gpfl, fedamp, heurfedamp, fedcac, fedfomo),
            *(pfedfda, knnper),
        ),
        "Distillation": (feddf, fedmd, feddistill, fml, fedkd, fedtgp, fedgen),
        "Clusters of clients": (ifca, fesem, cfl, fedem),
        "Low-rank adapters": (fedit, ffalora, fedsalora, rolora, fedexlora, lorafair, feddpa, flora, flexlora, hetlora),
        "Prompts of CLIP": (promptfl, fedotp, fedpgp),
        "Different capacities": (heterofl, fedrolex, fjord, depthfl),
        "No server": (dpsgd, dfedavgm, dfedsam, choco, dsgt, sgp),
        "Drift and new classes": (flash, ada_fedavg, feddrift, fedlwf, glfc),
        "Domain shift": (harmofl, fedsr, fedl2r, fediir, fedrd, fedga, feddg, fpl, fedheal),
    }
)
"""{family: its algorithms}, the order of the lists in the README and the documentation."""

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    algorithm.__name__: algorithm for family in FAMILIES.values() for algorithm in family
}

__all__ = ["ALGORITHMS", "FAMILIES", *ALGORITHMS]
