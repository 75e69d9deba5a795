"""Data sets, partitions of examples over clients, and the resulting federations."""

from fedjax_het.data._federate import federate
from fedjax_het.data._windows import windows
from fedjax_het.data.assembly import assemble
from fedjax_het.data.assignment import LabeledExamples, Partition, ResamplingPartition
from fedjax_het.data.augmentation import AUGMENTATIONS, Augmentation
from fedjax_het.data.concept import CONCEPTS, Concept
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.drift import DRIFTS
from fedjax_het.data.federation import Federation
from fedjax_het.data.grouping import (
    PARTITIONS,
    by_domain,
    by_quantile,
    domain_dirichlet,
    quantile_dirichlet,
    within_domains,
    within_quantiles,
)
from fedjax_het.data.partition import dirichlet, iid, quantity_skew, resampled_dirichlet, shards
from fedjax_het.data.poisoning import POISONINGS, Poisoning, backdoor, flip_labels
from fedjax_het.data.public import PUBLIC
from fedjax_het.data.shift import SHIFTS, relabeled, rotated
from fedjax_het.data.sources import SOURCES, convert, load
from fedjax_het.data.synthetic import toy

__all__ = [
    "AUGMENTATIONS",
    "CONCEPTS",
    "DRIFTS",
    "PARTITIONS",
    "POISONINGS",
    "PUBLIC",
    "SHIFTS",
    "SOURCES",
    "Augmentation",
    "Concept",
    "Dataset",
    "Federation",
    "LabeledExamples",
    "Partition",
    "Poisoning",
    "ResamplingPartition",
    "assemble",
    "backdoor",
    "by_domain",
    "by_quantile",
    "convert",
    "dirichlet",
    "domain_dirichlet",
    "federate",
    "flip_labels",
    "iid",
    "load",
    "quantile_dirichlet",
    "quantity_skew",
    "relabeled",
    "resampled_dirichlet",
    "rotated",
    "shards",
    "toy",
    "windows",
    "within_domains",
    "within_quantiles",
]
