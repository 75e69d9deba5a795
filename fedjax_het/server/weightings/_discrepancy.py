"""Weights by the discrepancy between each client's label distribution and a target (FedDisco)."""

from collections.abc import Callable, Sequence
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import rel_entr

from fedjax_het import tree
from fedjax_het.algorithm import Weighting
from fedjax_het.errors import InputError
from fedjax_het.server.weightings._shares import normalise
from fedjax_het.types import Array, PyTree, ServerView
from fedjax_het.validation import NonNegative, Positive, validate_arguments


def _cosine_distance(own: Array, target: Array) -> Array:
    lengths = jnp.linalg.norm(own, axis=1) * jnp.linalg.norm(target)
    return 1 - own @ target / tree.positive_or_one(lengths)


Discrepancy = Literal["kl", "l2", "l1", "cosine"]
DISCREPANCIES: dict[Discrepancy, Callable[[Array, Array], Array]] = {
    "kl": lambda own, target: jnp.sum(rel_entr(own, target), axis=1),
    "l2": lambda own, target: jnp.linalg.norm(own - target, axis=1),
    "l1": lambda own, target: jnp.sum(jnp.abs(own - target), axis=1),
    "cosine": _cosine_distance,
}


@validate_arguments
def discrepancy_aware(
    a: NonNegative = 0.5,
    b: NonNegative = 0.1,
    metric: Discrepancy = "kl",
    *,
    normalise_kl: bool = True,
    target: Sequence[Positive] | None = None,
) -> Weighting:
    """Downweight clients whose label distribution is far from the target distribution.

        p_k = relu(n_k / sum_S n - a d_k + b) / sum over S of the same,   d_k = discrepancy(D_k, T)
        kl: sum_c D_kc log(D_kc / T_c);   l2, l1: norms of D_k - T;   cosine: 1 - cos(D_k, T)

    Shapes: [cohort]. If no value is positive, the weights are n_k / sum_S n.
    Reads: reports["class_counts"] [cohort, class] (`client.measures.class_counts`); D_k are the class fractions.

    Args:
        a: The paper's a (default .5).
        b: The paper's b (default .1).
        metric: The discrepancy, see above.
        normalise_kl: Whether "kl" is divided by its sum over the present clients, as in the released code.
        target: T, up to a factor (default None, uniform).

    Raises:
        InputError: An option is unknown, a number is out of range, or, when traced, the target has the wrong length.

    References:
        Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023. arXiv:2305.19229; code
        MediaBrain-SJTU/FedDisco.
    """

    def update(state: PyTree, view: ServerView) -> tuple[Array, PyTree]:
        counts, num_examples = view.uploads.reports["class_counts"], view.uploads.num_examples
        goal = _target(target, counts.shape[1])
        distances = discrepancies(counts, goal, view.is_present, metric, normalise_kl=normalise_kl)
        return discrepancy_weights(num_examples, distances, view.is_present, a, b), state

    return Weighting(lambda shared, num_clients: (), update)


def _target(target: Sequence[float] | None, num_classes: int) -> Array:
    values = np.ones(num_classes) if target is None else np.asarray(target, float)
    if len(values) != num_classes:
        raise InputError(f"target: expected one share for each of the {num_classes} classes, got {len(values)}.")
    return jnp.asarray(values / values.sum())


def discrepancies(
    counts: Array, target: Array, is_present: Array, metric: Discrepancy = "kl", *, normalise_kl: bool = True
) -> Array:
    """[cohort]: d_k from class counts [cohort, class]; 0 for absent clients."""
    own = counts / tree.positive_or_one(jnp.sum(counts, axis=1, keepdims=True))
    distances = jnp.where(is_present, DISCREPANCIES[metric](own, target.astype(own.dtype)), 0)
    return normalise(distances, is_present) if metric == "kl" and normalise_kl else distances


def discrepancy_weights(num_examples: Array, distances: Array, is_present: Array, a: float, b: float) -> Array:
    """[cohort]: the weights from n_k and d_k; see `discrepancy_aware`."""
    shares = normalise(num_examples, is_present)
    values = jnp.where(is_present, jnp.maximum(shares - a * distances + b, 0), 0)
    return jnp.where(jnp.any(values > 0), normalise(values, is_present), shares)
