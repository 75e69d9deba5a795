"""Summaries: one value computed from the reports of a cohort, and sent to all clients."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Problem, Summary, Weighting
from fedjax_het.errors import InputError
from fedjax_het.server.weightings import WeightingName, normalise, resolve_weighting
from fedjax_het.types import Array, Params, PyTree, ServerView, UpdateStack, Variables
from fedjax_het.validation import Fraction, NonNegative, validate_arguments


def accumulate_change() -> Summary:
    """A running total of reported changes, averaged over ALL clients, from zero.

        c <- c + 1/N sum_{i in S} change_i

    So c stays the mean of all clients' c_i, whichever of them take part (SCAFFOLD). One value per shared parameter.
    """

    def update(total: PyTree, changes: UpdateStack, view: ServerView) -> PyTree:
        return tree.add(total, tree.scale(1 / view.num_clients, _total(changes, view)))

    return Summary(lambda problem, shared, num_clients, cohort_size: tree.zeros_like(shared["params"]), update)


def _total(reports: UpdateStack, view: ServerView) -> PyTree:
    """The sum over the clients that are present."""
    return reports.weighted_sum(view.is_present.astype(float), lambda upload: jnp.ones(()))


@validate_arguments
def ema(decay: Fraction, like: Callable[[Variables], PyTree]) -> Summary:
    """A moving average, from zero, of what clients reported as sums and the weights of those sums.

        g = sum_i total_i / sum_i weight_i,   mean <- decay mean + (1 - decay) g,   mass <- decay mass + (1 - decay)

    Reports: {"total": as like(shared), "weight": []}; the published value is {"mean", "mass"}, and mean / mass has no
    trace left of the zero it started from. A round without weight changes nothing.

    Args:
        decay: FedIIR's ema, .95.
        like: From the shared variables to a tree of the total's shapes, `head` for FedIIR.

    Raises:
        InputError: A decay outside 0 to 1.
    """

    def update(old: PyTree, reports: UpdateStack, view: ServerView) -> PyTree:
        sums = _total(reports, view)
        is_some = sums["weight"] > 0
        now = {"mean": tree.scale(1.0 / jnp.where(is_some, sums["weight"], 1.0), sums["total"]), "mass": 1.0}
        new = jax.tree.map(lambda before, x: (decay * before + (1 - decay) * x).astype(before.dtype), old, now)
        return jax.tree.map(partial(jnp.where, is_some), new, old)

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> PyTree:
        return {"mean": tree.zeros_like(like(shared)), "mass": jnp.zeros((), float)}

    return Summary(init, update)


def head(shared: Variables) -> Params:
    """The head of a model, for a summary that has its shape. Raises InputError where every client has its own."""
    if "classifier" not in shared["params"]:
        raise InputError(
            "published: a summary is to have the shape of params/classifier, which the sharing rule keeps personal. "
            "Share the head, or take an algorithm that does not compare heads."
        )
    return shared["params"]["classifier"]


@validate_arguments
def mean_direction(
    weighting: WeightingName | Weighting = "uniform",
    normalisation: Literal["client", "cohort"] = "client",
    report: str = "momentum",
) -> Summary:
    """The mean gradient along the paths of this round's clients, from zero (FedCM's Delta).

        client:  Delta <- - sum_i p_i u_i / r_i            cohort:  Delta <- - sum_i p_i u_i / sum_i p_i r_i

    Args:
        weighting: "uniform" or "samples"; p_i are shares of those with r_i > 0.
        normalisation: "client" or "cohort", as above.
        report: The name under which clients report r_i = K_i lr, [] (see client.measures.effective_learning_rate), and
            under which this is published.

    Raises:
        InputError: An unknown weighting or normalisation.
    """
    weighting = resolve_weighting(weighting)

    def coefficient(weight: Array, reach: Array) -> Array:
        by_client = normalisation == "client"
        return jnp.where(reach > 0, weight / jnp.where((reach > 0) & by_client, reach, 1), 0)

    share = weighting.per_client
    per_client = share and (lambda upload: coefficient(share(upload), upload.reports[report]))

    def update(old: PyTree, reports: UpdateStack, view: ServerView) -> PyTree:
        reach = view.uploads.reports[report]
        weights = normalise(weighting.update((), view)[0], view.is_present & (reach > 0))
        mean_reach = jnp.sum(weights * reach) if normalisation == "cohort" else 1.0
        path = view.updates.select(tree.is_parameter)
        path = path.weighted_sum(coefficient(weights, reach), per_client)["params"]
        return tree.scale(-1 / tree.positive_or_one(mean_reach), path)

    return Summary(lambda problem, shared, num_clients, cohort_size: tree.zeros_like(shared["params"]), update)


@validate_arguments
def mean_of_length(length: NonNegative, epsilon: NonNegative = 1e-12) -> Summary:
    """The mean of what the clients of the round report, scaled to a given length, from zero (FedSMOO's s).

        v = 1/|S| sum_S v_i,   s <- length v / (||v|| + epsilon)

    Args:
        length: The norm of s; s is 0 where v is.
        epsilon: Added to the norm of v.

    Raises:
        InputError: A negative number.
    """

    def update(old: PyTree, reports: UpdateStack, view: ServerView) -> PyTree:
        mean = tree.scale(1 / jnp.maximum(jnp.sum(view.is_present), 1), _total(reports, view))
        return tree.scale(length / tree.positive_or_one(tree.norm(mean) + epsilon), mean)

    return Summary(lambda problem, shared, num_clients, cohort_size: tree.zeros_like(shared["params"]), update)


PROTOTYPE_WEIGHTINGS: dict[WeightingName, Callable[[Array], Array]] = {
    "samples": lambda counts: counts,
    "uniform": lambda counts: (counts > 0).astype(counts.dtype),
}


@validate_arguments
def class_weighted_mean(weighting: WeightingName = "samples") -> Summary:
    """Each class's mean over the clients of the round that have it; a class that no client has keeps its old one.

        c_k <- sum_i w_ik c_ik / sum_i w_ik,   w_ik = n_ik ("samples") or 1 for n_ik > 0 ("uniform")

    Reports: {"means" [class, feature], "counts" [class]}; published: {"means", "is_known" [class]}, at first unknown.

    Args:
        weighting: "samples" or "uniform", as above.

    Raises:
        InputError: An unknown weighting; a model without outline (see `models.with_feature_shape`).
    """

    def update(old: PyTree, reports: UpdateStack, view: ServerView) -> PyTree:
        reported = reports.tensors()
        counts = jnp.where(view.is_present[:, None], reported["counts"], 0)
        weights = PROTOTYPE_WEIGHTINGS[weighting](counts)
        total = jnp.sum(weights, axis=0)
        sums = jnp.einsum("mk,mkd->kd", weights, reported["means"], precision=jax.lax.Precision.HIGHEST)
        is_here = total > 0
        means = jnp.where(is_here[:, None], sums / jnp.where(is_here, total, 1)[:, None], old["means"])
        return {"means": means.astype(old["means"].dtype), "is_known": old["is_known"] | is_here}

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> PyTree:
        if "outline" not in shared:
            raise InputError("published: class means need adapt=models.with_feature_shape, which tells their shape.")
        _, num_classes, num_features = (outline := shared["outline"]["prototypes"]).shape
        return {
            "means": jnp.zeros((num_classes, num_features), outline.dtype),
            "is_known": jnp.zeros(num_classes, bool),
        }

    return Summary(init, update)


def latest_of_clients(like: Callable[[Variables], PyTree]) -> Summary:
    """What each client reported last: {"latest": leaves [clients, ...], "is_known" [clients]}; at first nobody's.

    Args:
        like: From the shared variables to a tree of one report's shapes.
    """

    def update(old: PyTree, reports: UpdateStack, view: ServerView) -> PyTree:
        before = tree.take(old, view.cohort)
        now = {"latest": reports.tensors(), "is_known": jnp.ones_like(view.is_present)}
        return tree.put(old, view.cohort, tree.where(view.is_present, now, before))

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> PyTree:
        latest = tree.broadcast(tree.zeros_like(like(shared)), num_clients)
        return {"latest": latest, "is_known": jnp.zeros(num_clients, bool)}

    return Summary(init, update)
