"""Uplink stages: transformations of a finished client update before the server aggregates it.

An algorithm lists them in the order in which they apply, `dataclasses.replace(fedavg(), uplink=(clip(1.0),))`; a
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
from fedjax_het.uplink._compression import Compressor, compression_stage
from fedjax_het.uplink._gaussian import gaussian_mechanism
from fedjax_het.uplink._matrix import matrix_mechanism
from fedjax_het.uplink._noise_strategies import NoiseStrategy, noise_strategy
from fedjax_het.uplink._quantization import drive, qsgd, quantize, terngrad
from fedjax_het.uplink._signs import majority_vote, sign
from fedjax_het.uplink._singular_values import singular_values
from fedjax_het.uplink._sparsification import random_k, top_k

_COMPRESSORS = (quantize, drive, terngrad, qsgd, top_k, random_k, sign, majority_vote, singular_values)
_ATTACKS = (attack_sign_flip, attack_gaussian, attack_inner_product, attack_little_is_enough, attack_mimic)
STAGES = {stage.__name__: stage for stage in (clip, *_COMPRESSORS, gaussian_mechanism, matrix_mechanism, *_ATTACKS)}
"""The stages by name."""

__all__ = [
    "STAGES",
    "Compressor",
    "NoiseStrategy",
    "Sent",
    "Stage",
    "StageView",
    "attack_gaussian",
    "attack_inner_product",
    "attack_little_is_enough",
    "attack_mimic",
    "attack_sign_flip",
    "clip",
    "compression_stage",
    "drive",
    "gaussian_mechanism",
    "majority_vote",
    "matrix_mechanism",
    "noise_strategy",
    "qsgd",
    "quantize",
    "random_k",
    "sign",
    "singular_values",
    "terngrad",
    "top_k",
]
