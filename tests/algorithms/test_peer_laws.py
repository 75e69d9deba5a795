"""Laws of FedAMP, FedCAC and FedFomo, which see models of other clients, and of pFedFDA and kNN-Per."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.client.gaussian_head import class_priors, discriminant_head, estimate_gaussian
from fedjax_het.client.peers import cosine_weights, first_order_gains, gaussian_weights, largest_entries, move_to
from fedjax_het.client.stored_features import StoredFeatures, rank_randomly
from fedjax_het.engine import Simulation
from fedjax_het.engine.round import participation
from fedjax_het.models._neighbours import vote_of_nearest
from tests.harness import algorithm, compose, difference, federation, is_equal, model, run

pytestmark = pytest.mark.extended
RNG = np.random.default_rng(0)


@functools.cache
def train(name: str, rounds: int = 2, cohort: int = 5, **options):
    """The state after some rounds with this number of clients each."""
    round = compose(name, norm="none", participation=participation.uniform(cohort), options=options)
    return run(round, rounds=rounds)[0]


def models_of(state):
    published = state.server.published
    return (published["models"] if "models" in published else published["critical"].clients).models


# ---- models of other clients -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fedamp", "heurfedamp", "fedcac", "fedfomo"])
def test_models_of_clients_that_nobody_asks_rest(name):
    state = train(name, 1, cohort=2)
    before = compose(name, norm="none").init(make_key(0), federation().data)
    for client in range(5):
        is_same = is_equal(*(tree.take(models_of(stage), client) for stage in (before, state)))
        assert is_same == (not state.clients.rounds[client])


@pytest.mark.parametrize(
    "weigh", [gaussian_weights(2.0, 1.0), gaussian_weights(2.0, 1.0, is_capped=False), cosine_weights()]
)
def test_only_other_clients_have_a_weight(weigh):
    models = jnp.asarray(RNG.normal(size=(4, 3)))
    weights = weigh(models[0], models, jnp.array([0, 1, 1, 0], bool))
    assert np.all(weights[1:3] > 0) and weights[0] == weights[3] == 0
    assert np.all(weigh(models[0], models, jnp.zeros(4, bool)) == 0)


def test_cosine_weights_sum_to_the_share_of_the_others():
    models = jnp.asarray(RNG.normal(size=(4, 3)))
    weights = cosine_weights(0.3, 5.0)(models[0], models, jnp.arange(4) != 0)
    np.testing.assert_allclose(weights.sum(), 0.7, rtol=1e-5)


def test_the_sum_of_capped_weights_is_at_most_1():
    models, is_other = jnp.zeros((4, 3)), jnp.arange(4) != 0
    assert gaussian_weights(2.0, 1.0, is_capped=False)(models[0], models, is_other).sum() > 1
    capped = gaussian_weights(2.0, 1.0)(models[0], models, is_other)
    np.testing.assert_allclose(capped, [0, 1 / 3, 1 / 3, 1 / 3], rtol=1e-6)


def test_fedamp_of_far_models_trains_alone():
    """With a small sigma no model has a weight for another once they differ, and the pull is to the own model."""
    far, others = (train("fedamp", 2, sigma=sigma, alpha=1e-3, lam=0.0) for sigma in (1e-6, 1e-5))
    assert is_equal(models_of(far), models_of(others))


def test_a_mixture_of_own_models_is_started_from_or_not():
    mixture, own = (train("fedamp", 2, start_from=start) for start in ("mixture", "own"))
    assert difference(models_of(mixture), models_of(own)) > 1e-4


def test_fedfomo_gains_do_not_change_with_a_constant_and_weights_not_with_a_factor():
    own = {"params": {"w": jnp.asarray(RNG.normal(size=3))}}
    others = {"params": {"w": jnp.asarray(RNG.normal(size=(4, 3)))}}
    losses = jnp.asarray(RNG.uniform(size=4))
    gains, shifted, scaled = (first_order_gains(*args, own, others) for args in
                              ((0.5, losses), (2.5, losses + 2), (1.5, 3 * losses)))  # fmt: skip
    np.testing.assert_allclose(gains, shifted, rtol=1e-4)
    assert difference(move_to(own, others, gains), move_to(own, others, scaled)) < 1e-6
    assert is_equal(move_to(own, others, -jnp.abs(gains)), own)
    assert np.all(first_order_gains(1.0, losses, own, {"params": {"w": own["params"]["w"][None]}})[:1] == 0)


@pytest.mark.slow
def test_fedfomo_offers_nothing_before_there_are_models():
    first = train("fedfomo", 1)
    assert np.all(first.server.published["affinity"] == 0)
    affinity = np.asarray(train("fedfomo", 3, num_models=2).server.published["affinity"])
    assert np.any(affinity != 0) and np.all(np.diagonal(affinity) == 0)


@pytest.mark.parametrize(
    ("values", "share", "number"),
    [([3.0, 1, 2, 0], 0.5, 2), ([3.0, 0, 0, 0], 0.5, 1), ([0.0, 0, 0, 0], 0.5, 4), ([3.0, 1], 0.2, 0)],
    ids=["largest", "nonzero", "resting", "small"],
)
def test_critical_entries_are_the_largest(values, share, number):
    assert largest_entries(jnp.array(values), share).sum() == number


def test_fedcac_without_critical_entries_is_fedavg():
    assert difference(train("fedavg", 3).server.shared, train("fedcac", 3, tau=0.0).server.shared) < 1e-5


def test_fedcac_after_round_beta_with_everything_critical_trains_alone():
    """Overlaps are 1 for all pairs, so the threshold is 1, and all collaborate; with beta below 1 it is not above."""
    state = train("fedcac", 2, tau=1.0)
    weights = np.asarray(state.server.published["critical"].weights)
    np.testing.assert_allclose(weights, 0.2, rtol=1e-6)


# ---- statistics and stores -------------------------------------------------------------------------------------------
def test_votes_are_probabilities_of_the_stored_alone():
    features, stored = jnp.asarray(RNG.normal(size=(3, 4))), jnp.asarray(RNG.normal(size=(6, 4)))
    labels, is_stored = jnp.array([0, 1, 0, 1, 2, 2]), jnp.array([1, 1, 1, 1, 0, 0], bool)
    votes = vote_of_nearest(features, stored, labels, is_stored, 3, 5)
    np.testing.assert_allclose(votes.sum(axis=1), 1, rtol=1e-6)
    assert np.all(votes[:, 2] == 0)
    far = vote_of_nearest(1e4 + features, stored, labels, is_stored, 3, 5)
    assert np.all(np.isfinite(far)) and np.allclose(far.sum(axis=1), 1)
    nothing = vote_of_nearest(features, stored, labels, jnp.zeros(6, bool), 3)
    np.testing.assert_allclose(nothing, 1 / 3, rtol=1e-6)


@pytest.mark.slow
def test_knnper_trains_as_fedavg_and_without_votes_predicts_as_fedavg():
    scores = {}
    clients = federation(test_fraction=0.2, client_test_fraction=0.2, valid_fraction=0.2)
    for name, options in (("fedavg", {}), ("knnper", {"mix": 0.0}), ("knnper", {"mix": 1.0, "num_neighbours": 1})):
        simulation = Simulation(algorithm(name, **options), model("none"), clients, rounds=2, evaluate_every=2)
        state, _ = simulation.advance(simulation.start(), 2)
        scores[name, options.get("mix")] = simulation.evaluate(state)
    plain, mixed = scores["fedavg", None], scores["knnper", 0.0]
    np.testing.assert_allclose(plain.clients.loss, mixed.clients.loss, rtol=1e-5)
    np.testing.assert_allclose(mixed.clients.loss, mixed.personal.loss, rtol=1e-4)
    assert not np.allclose(scores["knnper", 1.0].personal.accuracy, mixed.personal.accuracy)


def test_ranks_of_examples_do_not_depend_on_padding():
    is_example = jnp.array([1, 1, 1, 0], bool)
    ranks = [rank_randomly(make_key(1), jnp.pad(is_example, (0, pad)))[:3] for pad in (0, 3)]
    np.testing.assert_array_equal(*ranks)
    assert sorted(ranks[0].tolist()) == [0, 1, 2]


def test_discriminants_do_not_depend_on_the_scale_of_the_features():
    labels = jnp.array([0, 1, 0, 1, 0, 1, 1, 0])
    features, priors = jnp.asarray(RNG.normal(size=(8, 2))) + labels[:, None], class_priors(jnp.array([4, 4]))

    def logits(features):
        stored = StoredFeatures(features, labels, jnp.ones(8, bool))
        gaussian = estimate_gaussian(stored, jnp.zeros((2, 2)))
        head = discriminant_head(gaussian, priors)
        return jnp.diff(features @ head["kernel"] + head["bias"], axis=1)

    np.testing.assert_allclose(logits(features), logits(10 * features), rtol=0.05, atol=0.05)


def test_pfedfda_sends_statistics_between_the_received_and_its_own():
    before = compose("pfedfda", norm="none").init(make_key(0), federation().data)
    state = train("pfedfda", 1)
    assert difference(before.server.shared["gaussian"], state.server.shared["gaussian"]) > 1e-3
    values = np.linalg.eigvalsh(np.asarray(state.server.shared["gaussian"]["covariance"]))
    assert np.all(values > 0)
