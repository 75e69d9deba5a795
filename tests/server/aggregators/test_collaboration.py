import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round import server_step
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import collaborative_heads, mean
from fedjax_het.server.aggregators._collaboration import collaboration_weights, drop_small_weights, risk_matrices
from fedjax_het.server.summaries import class_weighted_mean
from fedjax_het.types import Broadcast, ServerView, Upload

RNG = np.random.default_rng(0)
SIZE = 4
VARIANCE, MEANS = RNG.uniform(0.1, 1, SIZE), RNG.normal(size=(SIZE, 3, 2))
HEADS = {"params": {"classifier": {"kernel": RNG.normal(size=(SIZE, 2, 3)), "bias": RNG.normal(size=(SIZE, 3))}}}
EVERYONE = jnp.ones(SIZE, bool)


weights_of = jax.jit(collaboration_weights)


def view(is_present=EVERYONE, **reports) -> ServerView:
    counts = jnp.where(is_present, 1.0, 0.0)
    uploads = Upload({}, reports, counts, counts)
    received = Broadcast(jnp.zeros((), int), {"params": {"w": jnp.zeros(2)}}, {})
    updates = StackedUpdates({"params": {"w": jnp.ones((SIZE, 2))}})
    return ServerView(received, uploads, jnp.arange(SIZE), is_present, SIZE, updates)


def reports_of(variance=VARIANCE, means=MEANS, heads=HEADS):
    return jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float32), {"statistics": {"variance": variance, "means": means}, "head": heads}
    )


@pytest.mark.extended
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.05, 1.0]))
def test_mixed_heads_have_no_larger_risk_than_own_or_averaged_heads(seed, spread):
    rng = np.random.default_rng(seed)
    variance, means = rng.uniform(0.1, 1, SIZE), spread * rng.normal(size=(SIZE, 3, 2))
    weights = np.asarray(weights_of(variance, means, EVERYONE), np.float64)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    assert np.all(weights >= 0)
    cost = lambda a: np.einsum("ij,ijk,ik->i", a, np.asarray(risk_matrices(variance, means, EVERYONE)), a)  # noqa: E731
    for other in (np.eye(SIZE), np.full((SIZE, SIZE), 1 / SIZE)):
        assert np.all(cost(weights) <= cost(other) * (1 + 1e-5))


def test_identical_clients_are_weighted_by_inverse_variance():
    weights = weights_of(VARIANCE, np.repeat(MEANS[:1], SIZE, axis=0), EVERYONE)
    wanted = (1 / VARIANCE) / np.sum(1 / VARIANCE)
    np.testing.assert_allclose(weights, np.tile(wanted, (SIZE, 1)), rtol=1e-5)


def test_without_variance_every_client_keeps_its_own_head():
    np.testing.assert_allclose(weights_of(np.zeros(SIZE), MEANS, EVERYONE), np.eye(SIZE), atol=1e-7)


def test_the_order_of_clients_does_not_matter():
    order = np.array([2, 0, 3, 1])
    mixed = weights_of(VARIANCE[order], MEANS[order], EVERYONE)
    np.testing.assert_allclose(mixed, np.asarray(weights_of(VARIANCE, MEANS, EVERYONE))[order][:, order], atol=1e-6)


def test_absent_clients_have_no_weight():
    is_present = jnp.array([True, False, True, True])
    rows = np.array([0, 2, 3])
    zeroed = [np.where(np.asarray(is_present).reshape(-1, *[1] * (x.ndim - 1)), x, 0) for x in (VARIANCE, MEANS)]
    weights = np.asarray(weights_of(*zeroed, is_present))
    np.testing.assert_array_equal(weights[1], [0, 1, 0, 0])
    assert not np.any(weights[rows, 1])
    size = len(rows)
    alone = weights_of(VARIANCE[rows], MEANS[rows], jnp.ones(size, bool))
    np.testing.assert_allclose(weights[np.ix_(rows, rows)], alone, atol=1e-6)


def test_small_weights_are_dropped_and_the_rest_sums_to_one():
    rows = jnp.array([[0.9, 0.0995, 0.0005, 0.0], [0.25, 0.25, 0.25, 0.25]])
    np.testing.assert_allclose(drop_small_weights(rows)[0], np.array([0.9, 0.0995, 0, 0]) / 0.9995, rtol=1e-6)
    np.testing.assert_array_equal(drop_small_weights(rows)[1], rows[1])
    np.testing.assert_array_equal(drop_small_weights(rows, 0.3)[1], rows[1])
    np.testing.assert_array_equal(drop_small_weights(rows, 0.0), rows)


@pytest.mark.slow
def test_heads_are_mixed_per_client_and_other_leaves_averaged():
    reports = reports_of()
    aggregate, _ = server_step.aggregate(collaborative_heads(mean()), None, (), view(**reports))
    weights = np.asarray(drop_small_weights(weights_of(VARIANCE, MEANS, EVERYONE)))
    wanted = jax.tree.map(lambda leaf: np.tensordot(weights, leaf, axes=1), HEADS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), aggregate.replies, wanted)
    np.testing.assert_allclose(aggregate.update["params"]["w"], np.ones(2))


@pytest.mark.extended
def test_a_shared_head_gets_no_reply():
    reports = reports_of(heads={})
    assert server_step.aggregate(collaborative_heads(mean()), None, (), view(**reports))[0].replies == {}


COUNTS = np.array([[3.0, 0, 1], [1, 0, 0], [0, 0, 3], [9, 9, 9]])
PROTOTYPES = {"means": jnp.asarray(RNG.normal(size=(SIZE, 3, 2))), "counts": jnp.asarray(COUNTS)}
OLD = {"means": jnp.full((3, 2), 7.0), "is_known": jnp.array([True, False, False])}


def test_prototypes_are_weighted_by_the_examples_of_present_clients():
    new = class_weighted_mean().update(OLD, StackedUpdates(PROTOTYPES), view(jnp.array([True, True, True, False])))
    means = np.asarray(PROTOTYPES["means"])
    np.testing.assert_allclose(new["means"][0], (3 * means[0, 0] + means[1, 0]) / 4, rtol=1e-6)
    np.testing.assert_allclose(new["means"][2], (means[0, 2] + 3 * means[2, 2]) / 4, rtol=1e-6)
    np.testing.assert_array_equal(new["means"][1], OLD["means"][1])
    assert new["is_known"].tolist() == [True, False, True]


def test_prototypes_can_weigh_clients_equally():
    new = class_weighted_mean("uniform").update(
        OLD, StackedUpdates(PROTOTYPES), view(jnp.array([True, True, True, False]))
    )
    np.testing.assert_allclose(new["means"][0], np.asarray(PROTOTYPES["means"])[:2, 0].mean(axis=0), rtol=1e-6)


def test_without_present_clients_prototypes_are_unchanged():
    new = class_weighted_mean().update(OLD, StackedUpdates(PROTOTYPES), view(jnp.zeros(SIZE, bool)))
    assert all(np.array_equal(new[name], OLD[name]) for name in OLD)


def test_prototypes_without_a_known_shape_are_refused():
    with pytest.raises(InputError, match=r"adapt=models\.with_feature_shape"):
        class_weighted_mean().init(None, {"params": {}}, 1, 1)
    with pytest.raises(InputError, match="weighting: unknown option 'sample'"):
        class_weighted_mean("sample")
