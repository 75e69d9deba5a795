"""The stages of an uplink: what happens to a client's finished update before the server combines it.

An algorithm takes them in the order in which they apply, `dataclasses.replace(fedavg(), uplink=(clip(1.0),))`; a
config names them, `config.uplink = ({"name": "clip", "norm": 1.0},)`.
"""

from fedjax_het.algorithm import Sent, Stage, StageView
from fedjax_het.uplink._attacks import (
    attack_gaussian,
    attack_inner_product,
    attack_little_is_enough,
    attack_mimic,
    attack_sign_flip,
)
from fedjax_het.uplink._clipping import clip
from fedjax_het.uplink._gaussian import gaussian_mechanism

_ATTACKS = (attack_sign_flip, attack_gaussian, attack_inner_product, attack_little_is_enough, attack_mimic)
STAGES = {stage.__name__: stage for stage in (clip, gaussian_mechanism, *_ATTACKS)}
"""The stages by name."""

__all__ = [
    "STAGES",
    "Sent",
    "Stage",
    "StageView",
    "attack_gaussian",
    "attack_inner_product",
    "attack_little_is_enough",
    "attack_mimic",
    "attack_sign_flip",
    "clip",
    "gaussian_mechanism",
]
