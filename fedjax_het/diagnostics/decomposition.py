"""Where the global loss comes from: local training, distribution shift, aggregation (FedLD, Eq. 2)."""

from typing import NamedTuple

import jax.numpy as jnp

from fedjax_het.types import Array


class Decomposition(NamedTuple):
    """local + shift + aggregation = total. The paper speaks of the absolute values of shift and aggregation."""

    local: Array
    shift: Array
    aggregation: Array
    total: Array


def decomposition(losses: Array, global_losses: Array, num_examples: Array) -> Decomposition:
    """Split the loss of the aggregated model, weighted by examples, into what each stage of a round adds.

        local       = sum_i p_i L_i(w_i)
        shift       = sum_ij p_i p_j (L_j(w_i) - L_i(w_i))
        aggregation = sum_i p_i (L(w) - L(w_i)),   L(v) = sum_j p_j L_j(v)

    losses: [data, model], client i's model on client j's training data at [j, i]; global_losses: [data], the
    aggregated model; num_examples: [data]. Mean cross-entropies in evaluation mode, after one round from one w.
    Deviation: the printed Eq. 2 has L(w) - L_i(w_i) in its last term, which breaks the identity by exactly `shift`;
    the sentence below it has the form used here.   Zeng et al., FedLD.
    """
    p = num_examples / jnp.sum(num_examples)
    own, on_everyone = jnp.diag(losses), p @ losses
    total = p @ global_losses
    return Decomposition(p @ own, p @ (on_everyone - own), total - p @ on_everyone, total)
