"""Terms of the parts of a network that belong to one client: a second head, and a shift of the features."""

import jax
import jax.numpy as jnp

from fedjax_het.algorithm import Term
from fedjax_het.errors import InputError
from fedjax_het.labels import cross_entropies, mean_over_labels
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Array
from fedjax_het.validation import NonNegative, validate_arguments


def personal_head() -> Term:
    """Cross-entropy of the logits of both heads, whose gradient reaches the personal head alone (Fed-RoD).

        1/B sum_b CE(z_b + h(f_b), y_b),   h: params/personal_head, constant features f and logits z

    Reads: outputs.features, outputs.logits, params/personal_head (`models.with_personal_head`).

    References:
        Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022.
    """

    def personal_head(forward: ForwardPass) -> Array:
        if "personal_head" not in forward.params:
            raise InputError("personal_head: the model has no such head. Use fh.models.with_personal_head.")
        features, generic = jax.lax.stop_gradient((forward.outputs.features, forward.outputs.logits))
        params = forward.params | {"classifier": forward.params["personal_head"]}
        logits = generic + forward.problem.model.classify(params, features)
        losses = cross_entropies(logits, forward.batch.labels)
        return mean_over_labels(losses, forward.batch.labels, forward.batch.mask)

    return personal_head


@validate_arguments
def mean_consensus(weight: NonNegative = 1.0) -> Term:
    """Attract the running mean of a client's features to the mean over all clients (FedDBE).

        weight 1/(2 d) |mu_i - mu|^2,   mu = published total / weight, the term is 0 without any

    Reads: running/mean (`models.with_feature_shift`), published["consensus"] (`summaries.total_of_features`).

    Args:
        weight: The paper's κ.

    References:
        Zhang et al., Eliminating Domain Bias for Federated Learning in Representation Space, NeurIPS 2023.
        arXiv:2311.14975; code TsingZ0/DBE.
    """

    def mean_consensus(forward: ForwardPass) -> Array:
        if "running" not in forward.state:
            raise InputError("mean_consensus: the model keeps no mean of features. Use fh.models.with_feature_shift.")
        consensus = forward.view.received.published["consensus"]
        is_known = consensus["weight"] > 0
        mean = consensus["total"] / jnp.where(is_known, consensus["weight"], 1)
        distance = jnp.mean(jnp.square(forward.state["running"]["mean"] - mean))
        return weight * jnp.where(is_known, distance, 0) / 2

    return mean_consensus
