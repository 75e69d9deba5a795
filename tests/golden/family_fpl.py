"""FPL: the authors' clusters of prototypes, and the two terms of their objective."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.client.objectives import clustered_contrastive, cross_entropy, prototype_distance
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.server.clustering import cluster_by_first_neighbours
from fedjax_het.server.summaries import clustered_prototypes
from tests.golden.cases import FLOAT64, Case, covers
from tests.views import client_view, forward_pass, server_view


def published_of(protos: np.ndarray, present: np.ndarray) -> dict:
    """The published clusters after the prototypes [clients, class, feature] of those that have the class."""
    num_clients = len(protos)
    summary, everyone = clustered_prototypes(), server_view(num_clients)
    shared = {"outline": {"prototypes": jnp.zeros((0, *protos.shape[1:]))}}
    old = summary.init(None, shared, num_clients, num_clients)
    reports = {"means": jnp.asarray(np.where(present[..., None], protos, 7.0)), "counts": jnp.asarray(present, float)}
    return jax.jit(lambda old, reports: summary.update(old, StackedUpdates(reports), everyone))(old, reports)


def by_first_members(assignment: np.ndarray) -> np.ndarray:
    """Clusters [client, class] renamed from numbers to their lowest client; -1 stays."""
    lowest = [[np.argmax(column == cluster) if cluster >= 0 else -1 for cluster in column] for column in assignment.T]
    return np.array(lowest).T


@covers("fpl", "agg_*")
def aggregation(case: Case):
    """Our clusters are in the order of their first members; theirs are sorted in this order."""
    protos, present = case["protos"], case["present"]
    published = published_of(protos, present)
    num_clusters = np.sum(published["is_cluster"], axis=1)
    yield case.compare("counts", num_clusters)
    order = [list(dict.fromkeys(column[column >= 0])) for column in case["assignment"].T]  # by first members
    max_clusters = case["clusters"].shape[1]

    def ordered(stored: np.ndarray) -> np.ndarray:
        rows = [np.pad(stored[k][chosen], ((0, max_clusters - len(chosen)), (0, 0))) for k, chosen in enumerate(order)]
        return np.stack(rows)

    if np.any(published["clusters"][:, max_clusters:]):
        raise ValueError("there are clusters behind the last one of the case")
    yield case.compare("clusters", published["clusters"][:, :max_clusters], part=ordered)
    points, members = jnp.asarray(np.nan_to_num(protos).swapaxes(0, 1)), jnp.asarray(present.T)
    labels = np.asarray(jax.jit(jax.vmap(cluster_by_first_neighbours))(points, members)).T
    yield case.compare("assignment", np.where(present, labels, -1), part=by_first_members)
    yield case.compare("unbiased", published["means"])
    gap = np.max(np.abs(case["plain_mean"] - case["unbiased"])) / np.max(np.abs(case["plain_mean"]))
    if gap <= FLOAT64:
        yield case.compare("plain_mean", published["means"], FLOAT64 + gap)
    else:
        yield case.refute("plain_mean", published["means"], gap / 2)


@covers("fpl", "loss_*")
def terms(case: Case):
    features, labels, head = (jnp.asarray(case[name]) for name in ("features", "labels", "W"))
    (batch, width), num_classes, settings = features.shape, head.shape[1], case.meta
    owners = case["cluster_labels"]
    clusters = np.zeros((num_classes, len(owners), width))
    is_cluster = np.zeros(clusters.shape[:2], bool)
    for place, (owner, prototype) in enumerate(zip(owners, case["cluster_protos"], strict=True)):
        clusters[owner, place], is_cluster[owner, place] = prototype, True
    means, is_known = np.zeros((num_classes, width)), np.zeros(num_classes, bool)
    means[case["unbiased_labels"]], is_known[case["unbiased_labels"]] = case["unbiased"], True
    published = {"clusters": clusters, "is_cluster": is_cluster, "means": means, "is_known": is_known}
    published = jax.tree.map(jnp.asarray, published)
    view = client_view(published={"prototypes": published}, round=1)
    objective = {"con": clustered_contrastive(settings["temperature"]), "cons": prototype_distance(1.0)}
    objective |= {"cons_sum": prototype_distance(1.0, "sum"), "ce": cross_entropy()}

    def losses(features, mask):
        forward = forward_pass(features, labels, features @ head, mask, view=view)
        return {name: term(forward) for name, term in objective.items()}

    everyone = jnp.ones(batch)
    total = jax.jit(losses)(features, everyone)
    example_losses = jax.jit(jax.vmap(losses, (None, 0)))(features, jnp.eye(batch))
    gradients = jax.jit(jax.jacrev(losses))(features, everyone)
    yield case.compare("info_nce", example_losses["con"])
    yield case.compare("mse", example_losses["cons"])
    yield case.compare("mse", example_losses["cons_sum"] / width)
    yield case.compare("ce", total["ce"])
    yield case.compare("loss", total["con"] + total["cons"])
    yield case.compare("grad_info_nce", gradients["con"])
    yield case.compare("grad_mse", gradients["cons"])
    if "official_terms" in case:
        has = np.asarray(is_known)[case["labels"]]
        yield case.compare("official_terms", (example_losses["con"] + example_losses["cons"])[has])
        yield case.compare("official_info_nce", example_losses["con"][has])
        gradient = gradients["con"] + gradients["cons"] + gradients["ce"]
        is_long = np.any(case["features"] != 0, axis=1)  # the released gradient at a zero feature is that of a floor
        yield case.compare("official_grad_total", gradient[is_long], part=lambda stored: stored[is_long])
