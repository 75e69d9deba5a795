import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.client.measures import class_statistics, own_head, prototypes
from fedjax_het.client.measures._statistics import ClassStatistics, statistics_of, variance_and_means
from fedjax_het.errors import InputError
from fedjax_het.problem import Problem
from fedjax_het.types import Broadcast, ClientData, ClientView, Examples, Model, Rows

RNG = np.random.default_rng(0)
INPUTS, LABELS = RNG.normal(size=(20, 4)).astype(np.float32), RNG.integers(0, 3, 20)
START = {"params": {"scale": jnp.asarray(1.0), "classifier": {"kernel": jnp.ones((4, 5))}}}
LOCAL = {"params": {**START["params"], "scale": jnp.asarray(2.0)}}
MODEL = Model(
    init=lambda key, inputs: START,
    encode=lambda variables, inputs, context: ((variables["params"]["scale"] * inputs, {}), {}),
    classify=lambda params, features: features @ params["classifier"]["kernel"],
    layers=lambda inputs: {},
)
PROBLEM = Problem(MODEL, (), lambda inputs: inputs)


def view(count=13, labels=LABELS, received=START):
    rows = Rows(jnp.arange(20), jnp.asarray(count))
    data = ClientData(Examples(jnp.asarray(INPUTS), jnp.asarray(labels)), rows, rows, rows)
    return ClientView(Broadcast(jnp.zeros((), int), received, {}), {}, {}, data, START, LOCAL, (), {}, jnp.zeros(()))


def by_hand(count, scale=1.0):
    features, labels = scale * INPUTS[:count].astype(np.float64), LABELS[:count]
    means = np.stack([features[labels == k].mean(axis=0) if np.any(labels == k) else np.zeros(4) for k in range(5)])
    return np.bincount(labels, minlength=5), means, np.mean(np.sum(features**2, axis=1))


@pytest.mark.extended
@pytest.mark.parametrize("batch_size", [1, 5, 50])
def test_statistics_are_those_of_all_training_examples_before_training(batch_size):
    ours = jax.jit(lambda v: class_statistics(batch_size)(PROBLEM, v))(view())
    for mine, wanted in zip(ours, by_hand(13), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)


def test_prototypes_are_those_after_training():
    ours = jax.jit(lambda v: prototypes(5)(PROBLEM, v))(view())
    counts, means, _ = by_hand(13, scale=2.0)
    np.testing.assert_array_equal(ours["counts"], counts)
    np.testing.assert_allclose(ours["means"], means, rtol=1e-5, atol=1e-6)


def test_a_client_without_examples_gives_zeros():
    ours = class_statistics()(PROBLEM, view(0))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves((ours, variance_and_means(ours))))


def test_class_statistics_ignore_padding():
    features = np.concatenate([INPUTS, np.full((2, 4), np.nan)])
    ours = statistics_of(features, np.append(LABELS, [-1, -1]), np.arange(22) < 20, 3)
    assert all(np.all(np.isfinite(leaf)) for leaf in ours)
    np.testing.assert_array_equal(ours.counts, np.bincount(LABELS, minlength=3))


def test_labels_of_pixels_are_refused():
    with pytest.raises(InputError, match="one label per example"):
        class_statistics()(PROBLEM, view(labels=np.zeros((20, 6, 6), int)))


def test_the_variance_is_that_of_the_class_means_weighted_by_their_shares():
    """V = 1/n sum_k q_k E|f|^2 - q_k^2 |mu_k|^2, from the definition."""
    counts, means, _ = by_hand(13)
    features, labels = INPUTS[:13].astype(np.float64), LABELS[:13]
    shares = counts / 13
    within = [np.mean(np.sum(features[labels == k] ** 2, axis=1)) if counts[k] else 0 for k in range(5)]
    wanted = (shares @ within - shares**2 @ np.sum(means**2, axis=1)) / 13
    ours = variance_and_means(class_statistics(5)(PROBLEM, view()))
    np.testing.assert_allclose(ours["variance"], wanted, rtol=1e-5)
    np.testing.assert_allclose(ours["means"], shares[:, None] * means, rtol=1e-5, atol=1e-6)


def test_rounding_makes_no_variance_negative():
    alike = ClassStatistics(jnp.array([3.0, 0.0]), jnp.array([[1.0, 1.0], [0.0, 0.0]]), jnp.asarray(2.0 - 1e-6))
    assert float(variance_and_means(alike)["variance"]) == 0


def test_a_head_is_reported_only_where_it_is_personal():
    assert own_head(PROBLEM, view()) == {}
    told = own_head(PROBLEM, view(received={"params": {"scale": jnp.asarray(1.0)}}))
    assert told == {"params": {"classifier": LOCAL["params"]["classifier"]}}
