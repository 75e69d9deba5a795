"""Features near everyone's prototype of their class (FedPAC)."""

import jax.numpy as jnp

from fedjax_het.algorithm import Term
from fedjax_het.client.objectives.cross_entropy import masked_mean
from fedjax_het.types import Array, ForwardPass
from fedjax_het.validation import NonNegative, validate_arguments


def prototype_distance(features: Array, labels: Array, prototypes: Array) -> Array:
    """1/d |f_b - c_{y_b}|^2 of every example: features [batch, feature], prototypes [class, feature] -> [batch]."""
    return jnp.mean(jnp.square(features - prototypes[labels]), axis=-1)


@validate_arguments
def alignment(lam: NonNegative = 1.0) -> Term:
    """Pull features towards everyone's prototype of their class, so that heads can be exchanged.

        lam 1/B sum_b 1/d |f_b - c_{y_b}|^2,   c_k: the global prototype, else the client's own from before training

    Off in round 0, when no global prototypes have been made.
    Shapes: features [batch, feature].   Reads: outputs.features, published["prototypes"], answers["classes"].
    lam: the paper's λ, 1; 0 leaves the cross-entropy alone.
    Xu, Tong and Huang, FedPAC, ICLR 2023, Eq. 6; code JianXu95/FedPAC, methods/fedpac.py.
    """

    def alignment(forward: ForwardPass) -> Array:
        everyones, own = forward.view.received.published["prototypes"], forward.view.answers["classes"]
        prototypes = jnp.where(everyones["is_known"][:, None], everyones["means"], own.means)
        distances = prototype_distance(forward.outputs.features, forward.batch.labels, prototypes)
        is_on = forward.view.received.round > 0
        return jnp.where(is_on, lam, 0) * masked_mean(distances, forward.batch.mask)

    return alignment
