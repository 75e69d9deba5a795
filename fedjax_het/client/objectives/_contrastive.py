"""Contrastive losses: of the features of several models (MOON), of vectors with labels (FedDG), with clusters of
prototypes (FPL), and of texts (FedPGP).
"""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Term
from fedjax_het.client.objectives._supervised import masked_mean
from fedjax_het.errors import InputError
from fedjax_het.labels import check_classes
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Array, Variables
from fedjax_het.validation import NonNegative, Positive, validate_arguments

_SHORTEST = 1e-8  # vectors with a smaller norm have cosine 0 and gradient 0


def model_contrast(
    features: Array, received: Array, previous: Array, is_kept: Array, temperature: float = 0.5
) -> Array:
    """The model-contrastive loss of every example.

        -log( e^{cos(z, z_g)/tau} / (e^{cos(z, z_g)/tau} + sum_p e^{cos(z, z_p)/tau}) )

    Shapes: features and received [..., feature], previous [models, ..., feature], is_kept [models] -> [...]. Models
    that are not kept are excluded from the sum; without any, the loss and its gradient are exactly 0.
    """
    excess = (cosine(features, previous) - cosine(features, received)) / temperature
    never = jnp.finfo(excess.dtype).min / 2  # finite, so that no gradient is NaN
    excess = jnp.where(tree.add_axes(is_kept, excess.ndim), excess, never)
    return jax.nn.softplus(jax.nn.logsumexp(excess, axis=0))


def cosine(a: Array, b: Array) -> Array:
    """The cosine similarity of vectors [..., feature]; 0 if one of them is zero."""
    return jnp.sum(normalized(a) * normalized(b), axis=-1)


def supervised_contrast(vectors: Array, labels: Array, is_used: Array, temperature: float | Array = 0.05) -> Array:
    """The NT-Xent loss of labeled vectors, averaged over all ordered pairs (a, p) with the same label.

        -log( e^{s_ap} / (e^{s_ap} + sum_n e^{s_an}) ),   s = cosine / temperature,   n: all vectors of another label

    Shapes: vectors [n, feature], labels [n], is_used [n] -> []. Unused vectors are excluded; without a pair, the loss
    and its gradient are exactly 0.
    """
    unit = normalized(vectors)
    similarity = jnp.matmul(unit, unit.T, precision=jax.lax.Precision.HIGHEST) / temperature
    is_pair = is_used[:, None] & is_used
    is_alike = labels[:, None] == labels
    never = jnp.finfo(similarity.dtype).min / 2  # finite, so that no gradient is NaN
    others = jax.nn.logsumexp(jnp.where(is_pair & ~is_alike, similarity, never), axis=1, keepdims=True)
    is_positive = is_pair & is_alike & ~jnp.eye(len(labels), dtype=bool)
    losses = jnp.where(is_positive, jax.nn.softplus(others - similarity), 0)
    return jnp.sum(losses) / jnp.maximum(jnp.sum(is_positive), 1)


@validate_arguments
def text_contrastive(mu: NonNegative = 1.0, temperature: Positive = 0.5) -> Term:
    """Attract the texts of the shared context to the reference texts, and repel them from those of the whole context.

        mu 1/C sum_c model_contrast(t_shared,c, t_reference,c, t_whole,c)

    Reads: outputs.extras["shared"], ["reference"] and ["whole"] [class, feature] (see `models.low_rank_context`).

    Args:
        mu: The paper's μ (default 1). 0 is cross-entropy alone.
        temperature: The paper's τ (default .5).

    Raises:
        InputError: A number is out of range; or, when traced, the model has no such outputs.

    References:
        Cui, Li, Wang and Shi, Harmonizing Generalization and Personalization in Federated Prompt Learning, ICML 2024.
        arXiv:2405.09771; code TianyuCuiOvO/FedPGP.
    """

    def text_contrastive(forward: ForwardPass) -> Array:
        extras = forward.outputs.extras
        if not {"shared", "reference", "whole"} <= extras.keys():
            raise InputError(
                "text_contrastive: the model has no texts of a shared context. Use fh.models.low_rank_context."
            )
        is_kept = jnp.ones(1, bool)
        losses = model_contrast(extras["shared"], extras["reference"], extras["whole"][None], is_kept, temperature)
        return mu * jnp.mean(losses)

    return text_contrastive


@validate_arguments
def contrastive(mu: NonNegative = 1.0, temperature: Positive = 0.5) -> Term:
    """Attract features to those of the received model, and repel them from those of the client's earlier models.

        mu 1/B sum_b model_contrast(z_b, z_g,b, z_p,b),   z_g = features under view.start, z_p under memory["previous"]

    Both are constants, computed in evaluation mode. A client without an earlier model has no term.
    Reads: outputs.features, view.start, memory["previous"] (see `memories.previous_models`). Cost: two more forward
    passes per step, and one for every further earlier model.

    Args:
        mu: The paper's μ, tuned in .001, .01, .1, 1, 5, 10. 0 is FedAvg.
        temperature: The paper's τ (.5).

    Raises:
        InputError: A negative mu, or a temperature that is not above 0.

    References:
        Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021. arXiv:2103.16257; code QinbinLi/MOON.
    """

    def contrastive(forward: ForwardPass) -> Array:
        kept = forward.view.memory["previous"]
        num_models = jax.tree.leaves(kept["models"])[0].shape[0]
        received = _features(forward, forward.view.start)
        previous = jnp.stack([_features(forward, tree.take(kept["models"], i)) for i in range(num_models)])
        is_kept = jnp.arange(num_models) < kept["count"]
        losses = model_contrast(forward.outputs.features, received, previous, is_kept, temperature)
        return mu * masked_mean(losses, forward.batch.mask)

    return contrastive


def cluster_contrast(
    features: Array, labels: Array, clusters: Array, is_cluster: Array, temperature: float = 0.02
) -> Array:
    """Contrast of every example between all clusters of its class and those of the other classes.

        -log( sum_j e^{cos(z, P^y_j)/tau} / sum_{k, j} e^{cos(z, P^k_j)/tau} )

    Shapes: features [batch, feature], labels [batch], clusters [class, cluster, feature], is_cluster [class, cluster]
    -> [batch]. 0 for classes without a cluster, and if no other class has one.

    Raises:
        InputError: The labels are survival times.
    """
    check_classes(labels)
    cosines = jnp.einsum("bd,kjd->bkj", normalized(features), normalized(clusters), precision=jax.lax.Precision.HIGHEST)
    scores = jnp.where(is_cluster, cosines / temperature, jnp.finfo(cosines.dtype).min / 2)  # finite, for gradients
    is_own = labels[:, None] == jnp.arange(len(clusters))
    is_known, is_rival = jnp.any(is_cluster, axis=1), jnp.any(is_cluster, axis=1) & ~is_own
    class_scores = jax.nn.logsumexp(scores, axis=2)  # [batch, class]
    own = jnp.sum(jnp.where(is_own, class_scores, 0), axis=1, keepdims=True)
    excess = jnp.where(is_rival & is_known[labels][:, None], class_scores - own, jnp.finfo(class_scores.dtype).min / 2)
    return jax.nn.softplus(jax.nn.logsumexp(excess, axis=1))


@validate_arguments
def clustered_contrastive(temperature: Positive = 0.02) -> Term:
    """Attract features to the published clusters of their class, and repel them from the others (FPL).

        1/B sum_b cluster_contrast(f_b, y_b, P)

    Examples whose class has no cluster contribute 0; prototypes are constants.
    Shapes: features [batch, feature].
    Reads: outputs.features, published["prototypes"] (`server.summaries.clustered_prototypes`).

    Args:
        temperature: The paper's τ (.02).

    Raises:
        InputError: A temperature that is not above 0.

    References:
        Huang et al., FPL, CVPR 2023; code WenkeHuang/RethinkFL, models/fpl.py.
    """

    def clustered_contrastive(forward: ForwardPass) -> Array:
        published = forward.view.received.published["prototypes"]
        clusters = published["clusters"], published["is_cluster"]
        losses = cluster_contrast(forward.outputs.features, forward.batch.labels, *clusters, temperature)
        return masked_mean(losses, forward.batch.mask)

    return clustered_contrastive


def _features(forward: ForwardPass, variables: Variables) -> Array:
    params, state = tree.split_params(variables)
    again = forward.problem.forward(params, state, forward.batch, forward.view, forward.key, is_training=False)
    return jax.lax.stop_gradient(again.outputs.features)


def normalized(vectors: Array) -> Array:
    """Vectors [..., feature] of length 1; 0 where they are shorter than 1e-8."""
    squared = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    is_long = squared > _SHORTEST**2
    return jnp.where(is_long, vectors * jax.lax.rsqrt(jnp.where(is_long, squared, 1)), 0)
