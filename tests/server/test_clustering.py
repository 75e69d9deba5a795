import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.server.clustering import cluster_by_first_neighbours, cluster_means
from fedjax_het.server.summaries import clustered_prototypes
from fedjax_het.types import Broadcast, ServerView, Upload

RNG = np.random.default_rng(0)
SIZE, WIDTH = 11, 3
cluster = jax.jit(jax.vmap(cluster_by_first_neighbours))


def cluster_in_numpy(points: np.ndarray) -> np.ndarray:
    """FINCH as its authors describe it; [m], the lowest index of each point's cluster."""
    partition = np.arange(len(points))
    while True:
        means = np.stack([points[partition == cluster].mean(axis=0) for cluster in range(partition.max() + 1)])
        directions = means / np.linalg.norm(means, axis=1, keepdims=True)
        distances = 1 - directions @ directions.T
        np.fill_diagonal(distances, np.inf)
        nearest = np.argmin(distances, axis=1)
        index = np.arange(len(means))
        linked = (nearest[:, None] == index) | (nearest == index[:, None]) | (nearest[:, None] == nearest)
        count, components = connected_components(linked, directed=False) if len(means) > 1 else (1, np.zeros(1, int))
        if count == 1 and len(means) < len(points):
            break
        partition = components[partition]
        if count == 1:
            break
    return np.array([np.argmax(partition == cluster) for cluster in partition])


def test_clusters_of_first_neighbours_agree_with_a_transcription_and_ignore_order_and_scale():
    points = RNG.normal(size=(40, SIZE, WIDTH)).astype(np.float32)
    sizes = np.arange(40) % SIZE + 1
    is_member = RNG.permuted(np.arange(SIZE) < sizes[:, None], axis=1)
    labels = np.asarray(cluster(points, is_member))
    order = RNG.permutation(SIZE)
    again = np.asarray(cluster(3 * points[:, order], is_member[:, order]))
    counts = []
    for index, (chosen, ours) in enumerate(zip(is_member, labels, strict=True)):
        where = np.flatnonzero(chosen)
        np.testing.assert_array_equal(ours[where], where[cluster_in_numpy(points[index, where])])
        np.testing.assert_array_equal(ours[~chosen], np.flatnonzero(~chosen))
        members = np.bincount(ours[where], minlength=SIZE)
        assert np.all(members[members > 0] >= 2) or len(where) == 1
        assert len(where) > 2 or np.count_nonzero(members) == 1
        in_order = ours[order]
        np.testing.assert_array_equal(again[index][:, None] == again[index], in_order[:, None] == in_order)
        counts.append(np.count_nonzero(members))
    assert len(set(counts)) > 2


def test_identical_and_zero_points_form_one_cluster():
    points = np.stack([np.tile(RNG.normal(size=(1, WIDTH)), (SIZE, 1)), np.zeros((SIZE, WIDTH))])
    assert not np.any(cluster(points.astype(np.float32), np.ones((2, SIZE), bool)))


@pytest.mark.extended
def test_means_of_clusters_come_in_the_order_of_their_lowest_members():
    points, is_member = jnp.arange(12.0).reshape(6, 2), np.array([True, True, False, True, True, True])
    means, is_cluster = cluster_means(points, jnp.array([0, 1, 2, 1, 0, 1]), is_member, 3)
    assert list(is_cluster) == [True, True, False]
    np.testing.assert_allclose(means, [(points[0] + points[4]) / 2, (points[1] + points[3] + points[5]) / 3, [0, 0]])


@pytest.mark.extended
def test_published_clusters_count_alike_and_stay_for_classes_that_nobody_has():
    """Domains of four and of two clients in class 0; class 1 has one client; nobody present has class 2."""
    means = np.zeros((8, 3, 2), np.float32)
    means[:4, 0], means[4:6, 0] = [[1, 0], [1, 0.1], [1, 0.2], [1, 0.3]], [[-1, 3], [-1, 3.1]]
    means[3, 1], means[7] = [5, 6], 9
    counts = np.zeros((8, 3))
    counts[:6, 0], counts[3, 1], counts[7] = 1, 20, 4
    summary = clustered_prototypes()
    old = summary.init(None, {"outline": {"prototypes": jnp.zeros((0, 3, 2))}}, 30, 8)
    assert old["clusters"].shape == (3, 4, 2) and not np.any(old["is_known"])
    old = {**old, "clusters": old["clusters"].at[2, 0].set(3.0), "is_cluster": old["is_cluster"].at[2, 0].set(True)}
    old |= {"means": old["means"].at[2].set(3.0), "is_known": old["is_known"].at[2].set(True)}
    view = ServerView(
        Broadcast(jnp.zeros((), int), {}, {}),
        Upload({}, {}, jnp.ones(8), jnp.ones(8)),
        jnp.arange(8),
        jnp.arange(8) < 7,
        30,
        StackedUpdates({}),
    )
    new = summary.update(old, StackedUpdates({"means": jnp.asarray(means), "counts": jnp.asarray(counts)}), view)
    np.testing.assert_array_equal(new["is_cluster"], [[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
    np.testing.assert_allclose(new["clusters"][0, :2], [[1, 0.15], [-1, 3.05]], rtol=1e-6)
    np.testing.assert_allclose(new["means"], [[0, 1.6], [5, 6], [3, 3]], atol=1e-6)  # and not the mean of six clients
    np.testing.assert_array_equal(new["is_known"], [True, True, True])
