"""Objectives: the terms that a client minimises, each made by a factory."""

from fedjax_het.client.objectives._contrastive import contrastive
from fedjax_het.client.objectives._debiased import Divergence, Divisor, LambdaTime, debiased_cross_entropy
from fedjax_het.client.objectives._regularizers import MarginForm, ProximalForm, alignment, invariance, margin, proximal
from fedjax_het.client.objectives._representation import conditional_information, l2_representation
from fedjax_het.client.objectives._supervised import TASK_LOSSES, TaskLoss, cross_entropy, dice, focal, with_task_loss

__all__ = [
    "TASK_LOSSES",
    "Divergence",
    "Divisor",
    "LambdaTime",
    "MarginForm",
    "ProximalForm",
    "TaskLoss",
    "alignment",
    "conditional_information",
    "contrastive",
    "cross_entropy",
    "debiased_cross_entropy",
    "dice",
    "focal",
    "invariance",
    "l2_representation",
    "margin",
    "proximal",
    "with_task_loss",
]
