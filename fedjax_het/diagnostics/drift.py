"""How far clients wander from the model they received (HarmoFL, Eq. 9)."""

from collections.abc import Sequence

import jax.numpy as jnp

from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, Named, RoundSnapshot

INDICES = {"after": slice(1, None), "before": slice(0, -1)}


def drift(trajectories: Sequence[Array], index: str = "after") -> Array:
    """Gamma = 1/N sum_i 1/K_i sum_k ||w_i,k - w||^2, over all trainable parameters.

    trajectories: for each client [K_i + 1, parameters], its weights before the first step (w) and after each.
    index: "after" counts w_i,k after k = 1..K steps (Eq. 7), "before" as Algorithm 1 does, where the first is w itself.
    Clients with unequal steps average over their own first.   Jiang et al., HarmoFL, AAAI 2022.
    """
    if index not in INDICES:
        raise InputError(f"index: unknown option '{index}'. {nearest(index, INDICES)}")
    squared = [jnp.sum(jnp.square(path - path[0]), axis=1)[INDICES[index]] for path in trajectories]
    return jnp.mean(jnp.stack([jnp.mean(values) for values in squared]))


def of_round(problem, look: RoundSnapshot) -> Named:
    """{"gamma": [], "by_client": [cohort]}: Gamma as above, counted after each step, over the clients that reported.

    Raises InputError for an algorithm whose local update cannot be watched.
    """
    if "drift" not in look.view.uploads.reports:
        raise InputError("diagnostics: 'drift' needs a local update that can be watched. Give it `watched`.")
    drifts, is_present = look.view.uploads.reports["drift"], look.view.is_present
    return {"gamma": jnp.sum(drifts) / jnp.maximum(jnp.sum(is_present), 1), "by_client": drifts}
