"""What a client minimises: one mechanism a file, each a factory of terms."""

from fedjax_het.client.objectives.alignment import alignment
from fedjax_het.client.objectives.contrastive import contrastive
from fedjax_het.client.objectives.cross_entropy import cross_entropy
from fedjax_het.client.objectives.debiased import debiased_cross_entropy
from fedjax_het.client.objectives.dice import dice
from fedjax_het.client.objectives.focal import focal
from fedjax_het.client.objectives.invariance import invariance
from fedjax_het.client.objectives.margin import margin
from fedjax_het.client.objectives.proximal import proximal
from fedjax_het.client.objectives.representation import conditional_information, l2_representation
from fedjax_het.client.objectives.task import TASK_LOSSES, with_task_loss

__all__ = [
    "TASK_LOSSES",
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
