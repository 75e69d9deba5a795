"""Attend to the examples that are still wrong (FedMGC)."""

import jax
import jax.numpy as jnp

from fedjax_het.algorithm import Term
from fedjax_het.client.objectives.cross_entropy import masked_mean
from fedjax_het.types import Array, ForwardPass
from fedjax_het.validation import NonNegative, validate_arguments


def focal_losses(logits: Array, labels: Array, gamma: float, beta: float) -> Array:
    """-beta (1 - p_t)^gamma log p_t of each example, p_t the softmax probability of its class: [..., class] -> [...].

    With a = log sum_{c != y} exp z_c - z_y, both factors are smooth: -log p_t = softplus(a) and
    1 - p_t = exp(-softplus(-a)). So 1 - p_t keeps its digits where p_t rounds to 1, and the gradient is finite there
    for every gamma, where that of (1 - p_t)^gamma is infinity times 0.
    """
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    others = jax.nn.logsumexp(jnp.where(is_true, -jnp.inf, logits), axis=-1)
    deficit = others - jnp.sum(jnp.where(is_true, logits, 0), axis=-1)
    return beta * jax.nn.softplus(deficit) * jnp.exp(-gamma * jax.nn.softplus(-deficit))


@validate_arguments
def focal(gamma: NonNegative = 0.5, beta: NonNegative = 1.5, weight: NonNegative = 1.0) -> Term:
    """Focal loss, averaged over the examples of the batch (and the pixels of each).

        1/B sum_b -beta (1 - p_b)^gamma log p_b,   p_b = softmax(z_b)[y_b]

    Shapes: as `cross_entropy`, at least two classes.   Reads: outputs.logits.   gamma: .1 / .2 / .5 / 1, beta: 1 / 1.2
    / 1.5 / 2 are the paper's grids; what it used where is not said, so the defaults are their middle. gamma=0 with
    beta=1 is cross-entropy.   weight: factor of the term.
    Raises InputError for a negative gamma or beta.   FedMGC; no code was released.
    """

    def focal(forward: ForwardPass) -> Array:
        losses = focal_losses(forward.outputs.logits, forward.batch.labels, gamma, beta)
        return weight * masked_mean(losses, forward.batch.mask)

    return focal
