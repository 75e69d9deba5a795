"""Points of the plane in two classes, under two concepts."""

from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from fedjax_het.data.assembly import assemble
from fedjax_het.data.dataset import Dataset
from fedjax_het.validation import Count, Seed, validate_arguments

PointKind = Literal["sine", "circle"]
_CIRCLES = (((0.2, 0.5), 0.15), ((0.6, 0.5), 0.25))  # centre and radius, of each concept


@validate_arguments
def points(kind: PointKind = "sine", num_examples: Count = 2000, seed: Seed = 0) -> Dataset:
    """Uniform points of the unit square whose classes depend on the concept, FedDrift's SINE and CIRCLE.

    The domains "concept_0" and "concept_1" have `num_examples` points each. "sine": class 1 is x2 <= sin x1 under
    concept 0, and x2 > sin x1 under concept 1. "circle": class 1 is outside a circle, another one for each concept.

    Args:
        kind: "sine" or "circle".
        num_examples: The number of points of each concept.
        seed: The seed of the points.

    References:
        Jothimurugesan et al., Federated Learning under Distributed Concept Drift, AISTATS 2023; code
        microsoft/FedDrift, data_preprocessing.
    """
    places = np.random.default_rng(seed).random((2, num_examples, 2))
    labels = [label_points(kind, number, places[number]) for number in range(2)]
    return assemble(
        kind,
        places.reshape(-1, 2),
        np.concatenate(labels),
        class_names=("0", "1"),
        domains=np.repeat([0, 1], num_examples),
        domain_names=("concept_0", "concept_1"),
    )


def label_points(kind: PointKind, concept: int, places: Float[np.ndarray, "points 2"]) -> Int[np.ndarray, "points"]:
    """The class of each point under concept 0 or 1."""
    if kind == "circle":
        centre, radius = _CIRCLES[concept]
        return (np.sum((places - np.array(centre)) ** 2, axis=1) > radius**2).astype(np.int32)
    return ((places[:, 1] <= np.sin(places[:, 0])) != concept).astype(np.int32)
