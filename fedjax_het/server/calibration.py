"""Calibration of a trained model's head on virtual features, drawn from pooled client statistics (CCVR).

Clients report `client.measures.class_moments` of the trained model. The pooled moments are those of all clients'
features together, independent of the partition.

Luo et al., No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data, NeurIPS 2021.
arXiv:2106.05001
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_het._internal.decompositions import eigh
from fedjax_het.labels import cross_entropies
from fedjax_het.types import Array, Key, Named, Params

_EXACT = jax.lax.Precision.HIGHEST


class ClassMoments(NamedTuple):
    counts: Float[Array, "class"]  # N_c
    means: Float[Array, "class feature"]  # 0 for a class without examples
    covariances: Float[Array, "class feature feature"]  # unbiased; 0 for a class with fewer than two examples


def no_moments(num_classes: int, num_features: int, dtype: jnp.dtype | type = float) -> ClassMoments:
    """The moments of zero examples."""
    shapes = (num_classes,), (num_classes, num_features), (num_classes, num_features, num_features)
    return ClassMoments(*(jnp.zeros(shape, dtype) for shape in shapes))


def add_moments(total: ClassMoments, report: Named, *, biased: bool = False) -> ClassMoments:
    """Add the moments of one client to the total.

        N = N' + n,   mu = mu' + n/N (m - mu'),   (N - 1) S = (N' - 1) S' + (n - 1) s + N' n / N (m - mu')(m - mu')^T

    After all clients, the result equals the paper's Eqs. 3 and 4, without differences of large numbers and without
    the moments of all clients in memory.

    Args:
        total: N', mu' and S' of each class.
        report: n, m and s: {"counts" [class], "means" [class, feature], "covariances" [class, feature, feature]}.
        biased: Whether covariances have divisor n in the same formula, as in public code; the result is too small.
    """
    counts, deviations = report["counts"], report["means"] - total.means
    together = total.counts + counts
    share = counts / jnp.maximum(together, 1)
    degrees = jnp.maximum(counts - 1, 0)
    degrees = degrees * degrees / jnp.maximum(counts, 1) if biased else degrees
    between = jnp.einsum("c,cd,ce->cde", total.counts * share, deviations, deviations, precision=_EXACT)
    before = jnp.maximum(total.counts - 1, 0)[:, None, None] * total.covariances
    scatter = before + degrees[:, None, None] * report["covariances"] + between
    covariances = scatter / jnp.maximum(together - 1, 1)[:, None, None]
    return ClassMoments(together, total.means + share[:, None] * deviations, covariances)


def draw_features(moments: ClassMoments, noise: Array) -> Array:
    """mu_c + S_c^(1/2) e for standard normal e, by the symmetric root; both are [class, draws, feature]."""
    draws = jnp.einsum("cmd,cde->cme", noise, symmetric_root(moments.covariances), precision=_EXACT)
    return moments.means[:, None] + draws


def symmetric_root(covariances: Array) -> Array:
    """The symmetric square roots of matrices [..., d, d]; negative eigenvalues (rounding errors) count as 0."""
    values, vectors = jnp.vectorize(eigh, signature="(d,d)->(d),(d,d)")(covariances)
    scaled = vectors * jnp.sqrt(jnp.maximum(values, 0))[..., None, :]
    return jnp.matmul(scaled, jnp.swapaxes(vectors, -1, -2), precision=_EXACT)


def train_head(
    classify: Callable[[Params, Array], Array],
    params: Params,
    features: Array,
    labels: Array,
    mask: Array,
    learning_rate: float,
) -> Params:
    """Train only params/classifier on batches of features, by plain SGD on the mean cross-entropy of each batch.

    Args:
        classify: The model's function (parameters, features) -> logits.
        params: All parameters.
        features: [batches, batch, feature].
        labels: [batches, batch].
        mask: [batches, batch], 0 for padding.
        learning_rate: The learning rate of SGD.

    Returns:
        All parameters, with the new head.
    """

    def loss(head: Params, features: Array, labels: Array, mask: Array) -> Array:
        logits = classify({**params, "classifier": head}, features)
        losses = cross_entropies(logits, labels)
        return jnp.sum(mask * losses) / jnp.maximum(jnp.sum(mask), 1)

    def step(head: Params, batch: tuple[Array, Array, Array]) -> tuple[Params, None]:
        gradient = jax.grad(loss)(head, *batch)
        return jax.tree.map(lambda w, g: (w - learning_rate * g).astype(w.dtype), head, gradient), None

    head, _ = jax.lax.scan(step, params["classifier"], (features, labels, mask))
    return {**params, "classifier": head}


def calibrate_head(
    classify: Callable[[Params, Array], Array],
    params: Params,
    moments: ClassMoments,
    key: Key,
    *,
    num_draws: int = 200,
    learning_rate: float = 0.01,
    batch_size: int = 64,
    epochs: int = 1,
) -> Params:
    """Draw virtual features for every class that has examples, and train the head on them.

    Args:
        classify: The model's function (parameters, features) -> logits.
        params: All parameters; training starts from their head.
        moments: The pooled moments.
        key: The key of the features and of their order, which changes every epoch.
        num_draws: The number of virtual features per class, the paper's M.
        learning_rate: The learning rate of SGD.
        batch_size: Features per step.
        epochs: The number of passes over the virtual features.

    Returns:
        All parameters, with the new head.
    """
    num_classes, num_features = moments.means.shape
    drawing, *shuffling = jax.random.split(key, epochs + 1)
    noise = jax.random.normal(drawing, (num_classes, num_draws, num_features), moments.means.dtype)
    features = draw_features(moments, noise).reshape(-1, num_features)
    labels = jnp.repeat(jnp.arange(num_classes), num_draws)
    mask = jnp.repeat((moments.counts > 0).astype(features.dtype), num_draws)
    size = len(labels)
    for shuffle_key in shuffling:
        order = jnp.pad(jax.random.permutation(shuffle_key, size), (0, -size % batch_size)).reshape(-1, batch_size)
        is_draw = (jnp.arange(order.size) < size).reshape(order.shape)
        params = train_head(classify, params, features[order], labels[order], mask[order] * is_draw, learning_rate)
    return params
