"""Where the global loss comes from: local training, distribution shift, aggregation (FedLD, Eq. 2)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.diagnostics.seen import client_models, global_models, mean_loss
from fedjax_het.types import Array, Named, RoundSnapshot


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


def of_round(problem, look: RoundSnapshot) -> Named:
    """{"local", "shift", "aggregation", "total", "absolute_shift", "absolute_aggregation"}, [] each, and "losses".

    Of the round's cohort, weighted by its training examples; losses [data, model] as `decomposition` takes them. Where
    leaves are personal a client's model has its own, and the aggregated model, on a client's data, that client's.
    cohort (cohort + 1) evaluations on training data.
    """
    rows, counts = look.data.train, jnp.where(look.view.is_present, look.view.uploads.num_examples, 0)

    def on_everyone(model) -> Array:
        return jax.lax.map(lambda row: mean_loss(problem, model, look, row), rows)

    losses = jax.lax.map(on_everyone, client_models(look)).T
    after = jax.lax.map(lambda one: mean_loss(problem, one[0], look, one[1]), (global_models(look), rows))
    parts = decomposition(losses, after, counts)
    absolute = {"absolute_shift": jnp.abs(parts.shift), "absolute_aggregation": jnp.abs(parts.aggregation)}
    return parts._asdict() | absolute | {"losses": losses}
