"""Objectives: terms of a client's loss, created by factories."""

from fedjax_het.client.objectives._boundary import PairTerm, boundary_contrast
from fedjax_het.client.objectives._conditional import (
    class_angles,
    class_distance,
    decay,
    representation_discrepancy,
)
from fedjax_het.client.objectives._continual import learning_without_forgetting
from fedjax_het.client.objectives._contrastive import clustered_contrastive, contrastive, text_contrastive
from fedjax_het.client.objectives._debiased import Divergence, Divisor, LambdaTime, debiased_cross_entropy
from fedjax_het.client.objectives._distillation import (
    Gradients,
    OverClasses,
    adaptive_distillation,
    generated_features,
    logit_distillation,
    mutual_learning,
)
from fedjax_het.client.objectives._label_skew import (
    CalibrationForm,
    MissingClasses,
    RestrictionScale,
    balanced_cross_entropy,
    calibrated_cross_entropy,
    not_true_distillation,
    restricted_cross_entropy,
)
from fedjax_het.client.objectives._personal_parts import mean_consensus, personal_head
from fedjax_het.client.objectives._regularizers import (
    MarginForm,
    ProximalForm,
    alignment,
    invariance,
    margin,
    prototype_distance,
    proximal,
)
from fedjax_het.client.objectives._representation import (
    DecorrelationForm,
    conditional_information,
    decorrelation,
    l2_representation,
)
from fedjax_het.client.objectives._supervised import (
    TASK_LOSSES,
    LabelLoss,
    TaskLoss,
    cox,
    cross_entropy,
    dice,
    focal,
    supervised,
    weighted_bce,
    with_task_loss,
)

__all__ = [
    "TASK_LOSSES",
    "CalibrationForm",
    "DecorrelationForm",
    "Divergence",
    "Divisor",
    "Gradients",
    "LabelLoss",
    "LambdaTime",
    "MarginForm",
    "MissingClasses",
    "OverClasses",
    "PairTerm",
    "ProximalForm",
    "RestrictionScale",
    "TaskLoss",
    "adaptive_distillation",
    "alignment",
    "balanced_cross_entropy",
    "boundary_contrast",
    "calibrated_cross_entropy",
    "class_angles",
    "class_distance",
    "clustered_contrastive",
    "conditional_information",
    "contrastive",
    "cox",
    "cross_entropy",
    "debiased_cross_entropy",
    "decay",
    "decorrelation",
    "dice",
    "focal",
    "generated_features",
    "invariance",
    "l2_representation",
    "learning_without_forgetting",
    "logit_distillation",
    "margin",
    "mean_consensus",
    "mutual_learning",
    "not_true_distillation",
    "personal_head",
    "prototype_distance",
    "proximal",
    "representation_discrepancy",
    "restricted_cross_entropy",
    "supervised",
    "text_contrastive",
    "weighted_bce",
    "with_task_loss",
]
