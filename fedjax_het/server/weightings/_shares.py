"""Weights from the present clients and their numbers of examples."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Weighting
from fedjax_het.types import Array, ServerView, Upload
from fedjax_het.validation import validate_arguments

WeightingName = Literal["samples", "uniform"]
WeightingOrName = WeightingName | Weighting


def stateless(weights: Callable[[ServerView], Array]) -> Weighting:
    """Build a weighting without state.

    Args:
        weights: Maps a view to nonnegative numbers [cohort], which are normalized here.
    """
    return Weighting(
        lambda shared, num_clients: (), lambda state, view: (normalise(weights(view), view.is_present), state)
    )


def normalise(weights: Array, is_present: Array) -> Array:
    """Weights over the present clients, summing to one; all zero if none is present."""
    weights = jnp.where(is_present, weights, 0)
    return weights / tree.positive_or_one(jnp.sum(weights))


def weight_per_client(per_client: Callable[[Upload], Array]) -> Weighting:
    """A weighting that depends on each upload separately: p_i = per_client(upload i) / sum_j per_client(upload j)."""
    return stateless(lambda view: jax.vmap(per_client)(view.uploads))._replace(per_client=per_client)


def by_report(name: str) -> Weighting:
    """p_i proportional to a report, numbers >= 0; equal weights if all are 0.

    Args:
        name: The name of the report, [] per client.
    """

    def weights(view: ServerView) -> Array:
        reported = jnp.where(view.is_present, view.uploads.reports[name], 0)
        return jnp.where(jnp.any(reported > 0), reported, 1)

    return stateless(weights)


by_examples = weight_per_client(lambda upload: upload.num_examples)
"""p_i = n_i / sum n over the present clients of the round."""
uniform = weight_per_client(lambda upload: jnp.ones_like(upload.num_steps))
"""1/m over the m present clients."""
mean_over_cohort = Weighting(
    lambda shared, num_clients: (),
    lambda state, view: (view.is_present / len(view.cohort), state),
    per_client=uniform.per_client,
)
"""1/m over the m clients of the whole cohort, absent ones included: of several models, each takes its share of them."""

WEIGHTINGS: dict[WeightingName, Weighting] = {"samples": by_examples, "uniform": uniform}


@validate_arguments
def resolve_weighting(weighting: WeightingName | Weighting) -> Weighting:
    """Return the weighting of a name, "samples" or "uniform"; a Weighting is returned unchanged."""
    return weighting if isinstance(weighting, Weighting) else WEIGHTINGS[weighting]
