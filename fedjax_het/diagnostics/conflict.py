"""How much the clients' updates contradict each other (FedMGC's measures)."""

from typing import NamedTuple

import jax.numpy as jnp

from fedjax_het import geometry
from fedjax_het.diagnostics.seen import from_gram
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, Named, RoundSnapshot

_ROUNDING = 1e-12  # of |g_i||g_j|: a projected vector is not exactly orthogonal


class Conflict(NamedTuple):
    cosines: Array  # [m, m]; 0 for a zero vector
    mean_cosine: Array  # [] over pairs i < j of clients that are present
    num_conflicts: Array  # [] pairs i < j with g_i . g_j < 0
    projections: Array  # [m, m] p_ij
    agreement: Array  # [m] p_i, in the unit of the updates; the larger, the more the others go the same way
    relative_agreement: Array  # [m] p_i / mean |g|: comparable over rounds, in which all updates shrink
    dominance: Array  # [m] z_i = p_i / l_i


def conflict(gram: Array, losses: Array | None = None, is_present: Array | None = None, mode="mean_excl") -> Conflict:
    """The measures of one round's updates, from their Gram matrix K_ij = <g_i, g_j> [m, m], in float64 if it is.

    losses: [m], each client's l_i; all 1 without them.   is_present: [m]; the others have zero rows; default everyone.
    mode: of p_i, see `geometry.agreement`. Raises InputError for an unknown one.
    FedMGC, Definitions 2 to 4. The paper's Fig. 9 reads small p as good, its selection rule large p: p shrinks with
    the updates anyway, hence `relative_agreement`.
    """
    if mode not in geometry.AGREEMENTS:
        raise InputError(f"mode: unknown option '{mode}'. {nearest(mode, geometry.AGREEMENTS)}")
    is_present = jnp.ones(len(gram), bool) if is_present is None else is_present
    losses = jnp.ones(len(gram), gram.dtype) if losses is None else losses
    cosines, p = geometry.cosines(gram), geometry.agreement(gram, is_present, mode)
    num_present = jnp.sum(is_present)
    num_pairs = jnp.maximum(num_present * (num_present - 1) / 2, 1)
    mean_length = jnp.sum(geometry.lengths(gram)) / jnp.maximum(num_present, 1)
    return Conflict(
        cosines=cosines,
        mean_cosine=jnp.sum(jnp.triu(cosines, 1)) / num_pairs,
        num_conflicts=num_conflicts(gram),
        projections=geometry.projections(gram),
        agreement=p,
        relative_agreement=p / jnp.where(mean_length > 0, mean_length, 1),
        dominance=geometry.dominance(p, losses),
    )


def num_conflicts(gram: Array, coefficients: Array | None = None) -> Array:
    """[]: pairs i < j that point apart, K_ij < 0; with coefficients C [m, m], among the edited updates sum_j C_ij g_j.

    After an edit a pair counts only if its inner product is under -1e-12 |g_i||g_j|, lengths before the edit.
    """
    if coefficients is None:
        return jnp.sum(jnp.triu(geometry.is_conflict(gram)))
    sizes = geometry.lengths(gram)
    edited = geometry.combined(gram, coefficients)
    return jnp.sum(jnp.triu(geometry.is_conflict(edited, _ROUNDING * sizes[:, None] * sizes)))


def of_round(problem, look: RoundSnapshot) -> Named:
    """The fields of `Conflict` by name, of the updates that the clients sent; with their losses if they report them.
    Where the aggregator edits updates also "num_conflicts_after", among the edited.
    """
    losses = look.view.uploads.reports.get("loss")

    def measure(gram: Array) -> Named:
        found = conflict(gram, losses, look.view.is_present)._asdict()
        if look.gram_edit:
            found["num_conflicts_after"] = num_conflicts(gram, look.gram_edit(gram, look.view))
        return found

    return from_gram(measure, look)
