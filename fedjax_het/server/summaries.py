"""Summaries: a value computed from the reports of a cohort and sent to all clients."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Problem, Summary, Weighting
from fedjax_het.errors import InputError
from fedjax_het.server.clustering import cluster_by_first_neighbours, cluster_means
from fedjax_het.server.weightings import WeightingName, normalise, resolve_weighting
from fedjax_het.types import Array, Params, PyTree, ServerView, UpdateStack, Variables, WeightedSum
from fedjax_het.validation import Fraction, NonNegative, validate_arguments

_MAX_PAIRS = 1 << 24  # pairs of clients, over all classes clustered at a time


def accumulate_change() -> Summary:
    """A running total of reported changes, averaged over ALL clients, from zero.

        c <- c + 1/N sum_{i in S} change_i

    c is thus the mean of all clients' c_i, regardless of participation (SCAFFOLD). One value per shared parameter.
    """

    def update(total: PyTree, changes: UpdateStack, view: ServerView) -> PyTree:
        return tree.add(total, tree.scale(1 / view.num_clients, _total(changes, view)))

    return Summary(_zeros_like_params, update, sums=(_SUM_OF_REPORTS,))


_SUM_OF_REPORTS = WeightedSum(lambda upload: jnp.ones(()), source="reports")


def _total(reports: UpdateStack, view: ServerView) -> PyTree:
    """The sum over the present clients."""
    return reports.weighted_sum(view.is_present.astype(float), _SUM_OF_REPORTS)


def _zeros_like_params(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> PyTree:
    return tree.zeros_like(shared["params"])


def total_of_features() -> Summary:
    """The sums of reported features and of their weights over all rounds, from zero.

    Reports: {"total" [feature], "weight" []}; so is the published value.

    Raises:
        InputError: The model has no outline (see `models.with_feature_shape`).
    """

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> PyTree:
        return {"total": class_outline(shared)[0], "weight": jnp.zeros((), float)}

    def update(old: PyTree, reports: UpdateStack, view: ServerView) -> PyTree:
        return jax.tree.map(lambda before, x: before + x.astype(before.dtype), old, _total(reports, view))

    return Summary(init, update, sums=(_SUM_OF_REPORTS,))


@validate_arguments
def ema(decay: Fraction, like: Callable[[Variables], PyTree]) -> Summary:
    """A moving average, from zero, of reported sums and their weights.

        g = sum_i total_i / sum_i weight_i,   mean <- decay mean + (1 - decay) g,   mass <- decay mass + (1 - decay)

    Reports: {"total": as like(shared), "weight": []}; the published value is {"mean", "mass"}, and mean / mass is
    free of the bias from the zero start. A round without weight changes nothing.

    Args:
        decay: FedIIR's ema, .95.
        like: Maps the shared variables to a tree with the total's shapes, `head` for FedIIR.

    Raises:
        InputError: The decay is outside 0 to 1.
    """

    def update(old: PyTree, reports: UpdateStack, view: ServerView) -> PyTree:
        sums = _total(reports, view)
        is_some = sums["weight"] > 0
        now = {"mean": tree.scale(1.0 / jnp.where(is_some, sums["weight"], 1.0), sums["total"]), "mass": 1.0}
        new = jax.tree.map(lambda before, x: (decay * before + (1 - decay) * x).astype(before.dtype), old, now)
        return jax.tree.map(partial(jnp.where, is_some), new, old)

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> PyTree:
        return {"mean": tree.zeros_like(like(shared)), "mass": jnp.zeros((), float)}

    return Summary(init, update, sums=(_SUM_OF_REPORTS,))


def head(shared: Variables) -> Params:
    """The shared head of a model, for a summary of its shape. Raises InputError if heads are personal."""
    if "classifier" not in shared["params"]:
        raise InputError(
            "published: a summary has the shape of params/classifier, which is personal under the sharing rule. Share "
            "the head, or use an algorithm that does not compare heads."
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
        weighting: "uniform" or "samples"; p_i are normalized over clients with r_i > 0.
        normalisation: "client" or "cohort", as above.
        report: The name of the report r_i = K_i lr, [] (see client.measures.effective_learning_rate), and of the
            published value.

    Raises:
        InputError: The weighting or normalisation is unknown.
    """
    weighting = resolve_weighting(weighting)

    def coefficient(weight: Array, reach: Array) -> Array:
        by_client = normalisation == "client"
        return jnp.where(reach > 0, weight / jnp.where((reach > 0) & by_client, reach, 1), 0)

    share = weighting.per_client
    path = WeightedSum(share and (lambda upload: coefficient(share(upload), upload.reports[report])), tree.is_parameter)

    def update(old: PyTree, reports: UpdateStack, view: ServerView) -> PyTree:
        reach = view.uploads.reports[report]
        weights = normalise(weighting.update((), view)[0], view.is_present & (reach > 0))
        mean_reach = jnp.sum(weights * reach) if normalisation == "cohort" else 1.0
        direction = view.updates.weighted_sum(coefficient(weights, reach), path)["params"]
        return tree.scale(-1 / tree.positive_or_one(mean_reach), direction)

    return Summary(_zeros_like_params, update, weighting.reads, (path,))


@validate_arguments
def mean_of_length(length: NonNegative, epsilon: NonNegative = 1e-12) -> Summary:
    """The mean of the clients' reports, scaled to a given norm, from zero (FedSMOO's s).

        v = 1/|S| sum_S v_i,   s <- length v / (||v|| + epsilon)

    Args:
        length: The norm of s; s is 0 if v is 0.
        epsilon: Added to the norm of v.

    Raises:
        InputError: A number is negative.
    """

    def update(old: PyTree, reports: UpdateStack, view: ServerView) -> PyTree:
        mean = tree.scale(1 / jnp.maximum(jnp.sum(view.is_present), 1), _total(reports, view))
        return tree.scale(length / tree.positive_or_one(tree.norm(mean) + epsilon), mean)

    return Summary(_zeros_like_params, update, sums=(_SUM_OF_REPORTS,))


PROTOTYPE_WEIGHTINGS: dict[WeightingName, Callable[[Array], Array]] = {
    "samples": lambda counts: counts,
    "uniform": lambda counts: (counts > 0).astype(counts.dtype),
}


@validate_arguments
def class_weighted_mean(weighting: WeightingName = "samples", outline: str = "prototypes") -> Summary:
    """The mean of each class over the clients of the round that have it; other classes keep their value.

        c_k <- sum_i w_ik c_ik / sum_i w_ik,   w_ik = n_ik ("samples") or 1 for n_ik > 0 ("uniform")

    Reports: {"means" [class, feature], "counts" [class]}; published: {"means", "is_known" [class]}, initially unknown.

    Args:
        weighting: "samples" or "uniform", as above.
        outline: The shared leaf outline/... of this shape: "prototypes", or "logits", for means of logits.

    Raises:
        InputError: The weighting is unknown, or the model has no outline (see `models.with_feature_shape`).
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
        means = class_outline(shared, outline)
        return {"means": means, "is_known": jnp.zeros(len(means), bool)}

    return Summary(init, update)


def mean_logits(sample_size: int) -> Summary:
    """The mean over the clients of the round of their logits on public examples, [sample, class], from zero (FedMD).

    Args:
        sample_size: The number of examples.

    Raises:
        InputError: The model has no outline (see `models.with_logit_shape`).
    """

    def update(old: Array, reports: UpdateStack, view: ServerView) -> Array:
        mean = _total(reports, view) / jnp.maximum(jnp.sum(view.is_present), 1)
        return mean.astype(old.dtype)

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> Array:
        outline = class_outline(shared, "logits")
        return jnp.zeros((sample_size, len(outline)), outline.dtype)

    return Summary(init, update, sums=(_SUM_OF_REPORTS,))


def class_outline(shared: Variables, name: str = "prototypes") -> Array:
    """Zeros with the shape of class means."""
    if name not in shared.get("outline", {}):
        adaptation = {"prototypes": "with_feature_shape", "logits": "with_logit_shape"}[name]
        raise InputError(f"published: class means require adapt=models.{adaptation}, which provides their shape.")
    outline = shared["outline"][name]
    return jnp.zeros(outline.shape[1:], outline.dtype)


def clustered_prototypes() -> Summary:
    """Clusters of client prototypes per class, and the mean of each class's clusters (FPL).

        P^k_1, P^k_2, ...: the mean of each FINCH cluster of c_ik over the clients i of the round that have class k
        U^k = mean_j P^k_j over clusters, so domains count equally however many clients they have

    A class that no client of the round has keeps its clusters.
    Reports: {"means" [class, feature], "counts" [class]}; published: {"clusters" [class, cluster, feature],
    "is_cluster" [class, cluster], "means" [class, feature], the U^k, "is_known" [class]}, initially unknown. The
    number of clusters is at most half the cohort size, since each has at least two members.

    Raises:
        InputError: The model has no outline (see `models.with_feature_shape`).

    References:
        Huang et al., Rethinking Federated Learning with Domain Shift: A Prototype View, CVPR 2023; code
        WenkeHuang/RethinkFL, models/fpl.py, proto_aggregation.
    """

    def update(old: PyTree, reports: UpdateStack, view: ServerView) -> PyTree:
        order = jnp.argsort(view.cohort)  # makes the order of clusters and ties independent of the sampling order
        reported, is_present = tree.take((reports.tensors(), view.is_present), order)
        is_member = (is_present[:, None] & (reported["counts"] > 0)).T
        max_clusters = old["clusters"].shape[1]

        def cluster(class_points: tuple[Array, Array]) -> tuple[Array, Array]:
            points, is_point = class_points
            points = jnp.where(is_point[:, None], points, 0)
            return cluster_means(points, cluster_by_first_neighbours(points, is_point), is_point, max_clusters)

        size = max(1, _MAX_PAIRS // len(view.is_present) ** 2)
        points = jnp.swapaxes(reported["means"], 0, 1)
        clusters, is_cluster = jax.lax.map(cluster, (points, is_member), batch_size=min(size, len(points)))
        means = jnp.sum(clusters, axis=1) / jnp.maximum(jnp.sum(is_cluster, axis=1), 1)[:, None]
        is_here = jnp.any(is_cluster, axis=1)
        new = {"clusters": clusters, "is_cluster": is_cluster, "means": means, "is_known": is_here}
        return jax.tree.map(lambda x, before: x.astype(before.dtype), tree.where(is_here, new, old), old)

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> PyTree:
        outline = class_outline(shared)
        num_classes, max_clusters = len(outline), max(1, cohort_size // 2)
        return {
            "clusters": jnp.zeros((num_classes, max_clusters, outline.shape[1]), outline.dtype),
            "is_cluster": jnp.zeros((num_classes, max_clusters), bool),
            "means": outline,
            "is_known": jnp.zeros(num_classes, bool),
        }

    return Summary(init, update)


def latest_of_clients(like: Callable[[Variables], PyTree]) -> Summary:
    """Each client's latest report: {"latest": leaves [clients, ...], "is_known" [clients]}; initially none is known.

    Args:
        like: Maps the shared variables to a tree with the shapes of a report.
    """

    def update(old: PyTree, reports: UpdateStack, view: ServerView) -> PyTree:
        before = tree.take(old, view.cohort)
        now = {"latest": reports.tensors(), "is_known": jnp.ones_like(view.is_present)}
        return tree.put(old, view.cohort, tree.where(view.is_present, now, before))

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> PyTree:
        latest = tree.broadcast(tree.zeros_like(like(shared)), num_clients)
        return {"latest": latest, "is_known": jnp.zeros(num_clients, bool)}

    return Summary(init, update)
