"""Diagnostics of the clients' updates: conflict, drift, norms, spectrum and implied weights."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from fedjax_het import geometry, tree
from fedjax_het._internal.decompositions import eigh, eigvalsh
from fedjax_het.diagnostics._toolkit import Diagnostic, Quantity, from_gram, over_rows, total_loss
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Batch, Named, Params, RoundSnapshot, Rows, Variables
from fedjax_het.validation import validate_arguments

_ROUNDING = 1e-12  # relative to |g_i||g_j|, since projected vectors are not exactly orthogonal


class Conflict(NamedTuple):
    cosines: Float[Array, "cohort cohort"]  # 0 for a zero vector
    mean_cosine: Float[Array, ""]  # over pairs i < j of present clients
    num_conflicts: Int[Array, ""]  # pairs i < j with g_i . g_j < 0
    projections: Float[Array, "cohort cohort"]  # p_ij
    agreement: Float[Array, "cohort"]  # p_i, in the unit of the updates; large if the others agree
    relative_agreement: Float[Array, "cohort"]  # p_i / mean |g|: comparable over rounds, although updates shrink
    dominance: Float[Array, "cohort"]  # z_i = p_i / l_i


@validate_arguments
def conflict(
    gram: Array, losses: Array | None = None, is_present: Array | None = None, mode: geometry.Agreement = "mean_excl"
) -> Conflict:
    """Conflict measures of a round's updates, from their Gram matrix K_ij = <g_i, g_j> [m, m], in its precision.

    The paper's Fig. 9 interprets small p as good, but its selection rule large p. `relative_agreement` is independent
    of the norm of the updates, with which p shrinks.

    Args:
        gram: [m, m].
        losses: [m], each client's l_i (default: all 1).
        is_present: [m]; absent clients have zero rows (default: all clients are present).
        mode: The mode of p_i, see `geometry.agreement`.

    Raises:
        InputError: The mode is unknown.

    References:
        FedMGC, Definitions 2 to 4.
    """
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
        relative_agreement=p / tree.positive_or_one(mean_length),
        dominance=geometry.dominance(p, losses),
    )


def num_conflicts(gram: Array, coefficients: Array | None = None) -> Array:
    """[]: the number of pairs i < j with K_ij < 0; with coefficients C [m, m], for edited updates sum_j C_ij g_j.

    After an edit, a pair counts only if its inner product is below -1e-12 |g_i||g_j|, with norms before the edit.
    """
    if coefficients is None:
        return jnp.sum(jnp.triu(geometry.is_conflict(gram)))
    sizes = geometry.lengths(gram)
    edited = geometry.combined_gram(gram, coefficients)
    return jnp.sum(jnp.triu(geometry.is_conflict(edited, _ROUNDING * sizes[:, None] * sizes)))


def conflict_of_round(problem, snapshot: RoundSnapshot) -> Named:
    """The fields of `Conflict` by name, for the updates as sent, with losses if clients report them.
    If the aggregator edits updates, also "num_conflicts_after", for the edited updates.
    """
    losses = snapshot.view.uploads.reports.get("loss")

    def measure(gram: Array) -> Named:
        values = conflict(gram, losses, snapshot.view.is_present)._asdict()
        if snapshot.gram_edit:
            values["num_conflicts_after"] = num_conflicts(gram, snapshot.gram_edit(gram, snapshot.view))
        return values

    return from_gram(measure, snapshot)


INDICES = {"after": slice(1, None), "before": slice(0, -1)}


@validate_arguments
def drift(trajectories: Sequence[Array], index: Literal["after", "before"] = "after") -> Array:
    """Gamma = 1/N sum_i 1/K_i sum_k ||w_i,k - w||^2, over all trainable parameters.

    If numbers of steps differ, each client averages over its own steps first.

    Args:
        trajectories: For each client, the weights [K_i + 1, parameters] before the first step (w) and after each step.
        index: "after" uses w_i,k after k = 1..K steps (Eq. 7), "before" starts with w itself, as in Algorithm 1.

    References:
        Jiang et al., HarmoFL, AAAI 2022.
    """
    squared = [jnp.sum(jnp.square(path - path[0]), axis=1)[INDICES[index]] for path in trajectories]
    return jnp.mean(jnp.stack([jnp.mean(values) for values in squared]))


def drift_of_round(problem, snapshot: RoundSnapshot) -> Named:
    """{"gamma": [], "by_client": [cohort]}: Gamma as above, with index "after", over the clients that reported.

    Raises:
        InputError: The local update of the algorithm cannot measure the drift.
    """
    if "drift" not in snapshot.view.uploads.reports:
        raise InputError("diagnostics: 'drift' needs a local update that measures it. Give it `train_with_drift`.")
    drifts, is_present = snapshot.view.uploads.reports["drift"], snapshot.view.is_present
    return {"gamma": jnp.sum(drifts) / jnp.maximum(jnp.sum(is_present), 1), "by_client": drifts}


def norms_of_round(problem, snapshot: RoundSnapshot) -> Named:
    """{"updates": [cohort] |w_i - w|, "gradients": [cohort] |grad L_i(w)|}, over parameters.

    L_i: mean cross-entropy of the received model on the client's training examples, in evaluation mode.
    """
    received = snapshot.view.received.shared

    def gradient_norm(row: Rows, personal: Variables) -> Array:
        model = tree.merge(received, personal)

        def batch_loss(params: Params, batch: Batch) -> Array:
            return total_loss(problem, {**model, "params": params}, snapshot, batch)

        def add(total: Params, batch: Batch, number: Array) -> Params:
            return tree.add(total, jax.grad(batch_loss)(model["params"], batch))

        total = over_rows(problem, snapshot, row, add, tree.zeros_like(model["params"]))
        return tree.norm(total) / jnp.maximum(row.count, 1)

    gradients = jax.lax.map(lambda pair: gradient_norm(*pair), (snapshot.data.train, snapshot.personal))
    return {"updates": jax.vmap(tree.norm)(snapshot.view.updates.tensors()["params"]), "gradients": gradients}


SHARES = (0.8, 0.9, 0.99)


def spectrum(gram: Array, is_present: Array) -> Named:
    """The spectrum of A = 1/m G G^T, from K = G G^T [m, m] in float64; m counts present clients.

    FedLD keeps floor(fraction m) axes, regardless of their eigenvalues.

    Returns:
        eigenvalues: [m], in descending order.
        num_axes: [3], the number of largest eigenvalues with 80, 90 and 99 % of the sum.
        entropy: [], the effective number of directions exp(-sum_l q_l log q_l) of the shares q, from 1 to m.

    References:
        Zeng et al., FedLD, Eq. 5.
    """
    values = jnp.maximum(eigvalsh(gram)[::-1], 0) / jnp.maximum(jnp.sum(is_present), 1)
    shares = values / jnp.where(values[0] > 0, jnp.sum(values), 1)
    reached = jnp.cumsum(shares)[:, None] < jnp.asarray(SHARES) - 1e-12
    logs = jnp.log(tree.positive_or_one(shares))
    return {
        "eigenvalues": values,
        "num_axes": jnp.where(values[0] > 0, jnp.sum(reached, axis=0) + 1, 0),
        "entropy": jnp.where(values[0] > 0, jnp.exp(-jnp.sum(shares * logs)), 0),
    }


def spectrum_of_round(problem, snapshot: RoundSnapshot) -> Named:
    """`spectrum` of the updates' parameters."""
    return from_gram(lambda gram: spectrum(gram, snapshot.view.is_present), snapshot)


_RANK = 1e-10  # relative to the largest eigenvalue; smaller eigenvalues are rounding errors


def implied_weights(gram: Array, products: Array, squared: Array) -> Named:
    """The least-squares weights w in u = sum_i w_i u_i, with K_ij = <u_i, u_j> [m, m], b_i = <u_i, u> [m], in float64.

        w = K^+ b,   residual = |u - sum_i w_i u_i| / |u|

    For linearly dependent updates, w has minimal norm. The weights of FedGA, FedRD and other means are recovered, with
    residual 0; for aggregators that edit updates, w are the effective weights, which may be negative.

    Args:
        gram: K.
        products: b.
        squared: |u|^2.
    """
    values, vectors = eigh(gram)
    is_kept = values > _RANK * jnp.maximum(values[-1], 0)
    weights = vectors @ (jnp.where(is_kept, 1 / jnp.where(is_kept, values, 1), 0) * (vectors.T @ products))
    left = squared - 2 * weights @ products + weights @ gram @ weights
    return {"weights": weights, "residual": jnp.sqrt(jnp.maximum(left, 0) / tree.positive_or_one(squared))}


def weights_of_round(problem, snapshot: RoundSnapshot) -> Named:
    """`implied_weights` of the change of the server's parameters, including the server optimizer.

    If an uplink stage is an attack, also "attackers": the total weight of attackers.
    """
    moved = tree.subtract(snapshot.shared["params"], snapshot.view.received.shared["params"])
    updates = snapshot.view.updates.tensors()["params"]

    def measure(gram: Array, updates, moved) -> Named:
        pairs = [
            (u.reshape(len(u), -1).astype(float), v.ravel().astype(float))
            for u, v in zip(jax.tree.leaves(updates), jax.tree.leaves(moved), strict=True)
        ]
        zero = jnp.zeros((), float)
        products = sum((u @ v for u, v in pairs), zero)
        values = implied_weights(gram, products, sum((v @ v for _, v in pairs), zero))
        if snapshot.is_attacker is not None:
            values["attackers"] = jnp.sum(values["weights"] * snapshot.is_attacker)
        return values

    return from_gram(measure, snapshot, updates, moved)


def consensus_of_round(problem, snapshot: RoundSnapshot) -> Named:
    """{"distance": root of the mean over the cohort of |x_i - mean x|^2, over parameters}, of clients without a server.

    Raises:
        InputError: All clients begin with the server's model.
    """
    _, own = tree.partition_like(snapshot.personal, snapshot.shared)
    if not own:
        raise InputError(
            "consensus: clients keep no model of their own that is averaged. Choose an algorithm without a server, "
            "such as dpsgd, or leave it out."
        )
    apart = jax.vmap(tree.subtract, (0, None))(own["params"], snapshot.shared["params"])
    return {"distance": jnp.sqrt(jnp.mean(jax.vmap(tree.squared_norm)(apart)))}


DIAGNOSTICS = {
    "conflict": Diagnostic(
        conflict_of_round,
        "How far updates contradict each other",
        "Cosines of the clients' updates; pairs with a negative one are in conflict. Agreement p: how much the others "
        "go the same way, relative: by the mean length of updates; dominance: agreement by the client's loss (FedMGC, "
        "Defs. 2 to 4).",
        {
            "cosines": Quantity("cosines of updates", scale="signed", unit="cosine"),
            "projections": Quantity("projections p_ij", scale="signed", unit="p"),
            "num_conflicts": Quantity("pairs in conflict"),
            "num_conflicts_after": Quantity("pairs in conflict after editing"),
        },
    ),
    "drift": Diagnostic(
        drift_of_round,
        "How far clients wander",
        "Γ: mean squared distance from the received model over a client's local steps (HarmoFL, Eq. 9).",
        {"gamma": Quantity("Γ")},
    ),
    "spectrum": Diagnostic(
        spectrum_of_round,
        "In how many directions clients pull",
        "Eigenvalues of the updates, falling; how many axes hold 80, 90 and 99 % of their sum; their entropy as a "
        "number of directions (FedLD, Eq. 5).",
        {
            "eigenvalues": Quantity("eigenvalues", "axis"),
            "num_axes": Quantity("axes", parts=tuple(f"axes for {100 * share:.0f} %" for share in SHARES)),
        },
    ),
    "weights": Diagnostic(
        weights_of_round,
        "Implied weights of clients",
        "The weights with which updates come nearest to what the server made of them, whatever the aggregator; "
        "residual: what they leave, 0 where the server took a mean (FedGA, FedRD).",
        {"attackers": Quantity("weight of those who lie")},
    ),
    "consensus": Diagnostic(
        consensus_of_round,
        "How far models of clients differ",
        "Root mean squared distance of the clients' models from their mean, over parameters.",
        {"distance": Quantity("consensus distance")},
    ),
    "norms": Diagnostic(
        norms_of_round,
        "Lengths of gradients and updates",
        "Of each client, over the model's parameters.",
    ),
}
