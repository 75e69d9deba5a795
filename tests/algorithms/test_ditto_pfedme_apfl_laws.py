"""Laws of Ditto, pFedMe and APFL."""

import functools

import jax
import numpy as np
import optax
import pytest

from fedjax_het import models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.engine import Simulation
from fedjax_het.engine.round import participation
from tests.harness import algorithm, compose, difference, federation, is_equal, run

pytestmark = pytest.mark.extended


@functools.cache
def train(name: str, rounds: int = 2, cohort: int = 5, **options):
    """The state after some rounds with this number of clients each."""
    round = compose(name, norm="none", participation=participation.uniform(cohort), options=options)
    return run(round, rounds=rounds)[0]


def start(name: str):
    return compose(name, norm="none").init(make_key(0), federation().data)


def own_params(state):
    """The parameters of the personal models, leaves [clients, ...]."""
    own = state.clients.memory["own"]
    return getattr(own, "model", own)["params"]


def moved(name: str, rounds: int = 1, **options):
    return tree.subtract(train(name, rounds, **options).server.shared, start(name).server.shared)


@pytest.mark.slow
# ---- Ditto -----------------------------------------------------------------------------------------------------------
def test_dittos_common_model_is_fedavgs_whatever_lam_is():
    shared = train("ditto").server.shared
    assert is_equal(shared, train("ditto", lam=0.0, personal_learning_rate=0.2).server.shared)
    assert difference(shared, train("fedavg").server.shared) < 1e-6


@pytest.mark.slow
def test_dittos_own_models_depend_on_others_through_lam_alone():
    alone, drawn = (
        [train("ditto", lam=lam, learning_rate=rate, personal_learning_rate=0.05) for rate in (0.05, 0.2)]
        for lam in (0.0, 1.0)
    )
    assert is_equal(*map(own_params, alone))
    assert difference(*map(own_params, drawn)) > 1e-4


@pytest.mark.parametrize("name", ["ditto", "pfedme", "apfl"])
def test_own_models_rest_where_nobody_asks_and_are_never_sent(name):
    round = compose(name, norm="none", participation=participation.uniform(2))
    key, data, before = make_key(0), federation().data, start(name)
    after, metrics, said = jax.jit(round.step_with_messages)(before, data, key)
    asked = set(metrics.cohort.tolist())
    for client in range(5):
        own = [tree.take(own_params(state), client) for state in (before, after)]
        assert is_equal(*own) == (client not in asked)
    assert tree.num_bytes(said.uploads.update) == 2 * tree.num_bytes(before.server.shared)
    assert not said.uploads.reports and not said.received.published


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ditto", {"lam": 45.0}, "lam: lam times the learning rate of personal models is 2.25"),
        ("pfedme", {"personal_learning_rate": 0.2}, "lam: lam times personal_learning_rate is 3. Keep it below 2"),
    ],
)
def test_steps_that_overshoot_are_warned_of(name, options, message):
    with pytest.warns(UserWarning, match=message):
        algorithm(name, **options)


# ---- pFedMe ----------------------------------------------------------------------------------------------------------
def test_pfedme_without_lam_moves_own_models_alone():
    state = train("pfedme", 1, lam=0.0)
    assert is_equal(state.server.shared, start("pfedme").server.shared)
    assert difference(own_params(start("pfedme")), own_params(state)) > 1e-3


def test_pfedme_with_single_steps_is_fedavg_at_the_product_of_its_rates():
    """w moves by -eta lam rho mean(g)."""
    single = {"steps": 1, "shuffle": False, "weighting": "uniform"}
    rates = {"learning_rate": 0.05, "lam": 2.0, "personal_learning_rate": 0.5, "personal_steps": 1}
    assert difference(moved("fedavg", learning_rate=0.05, **single), moved("pfedme", **rates, **single)) < 1e-4


def test_pfedmes_server_rate_scales_the_round():
    half, whole = (moved("pfedme", server_learning_rate=beta) for beta in (0.5, 1.0))
    assert difference(tree.scale(0.5, whole), half) < 1e-4


def test_pfedmes_own_model_may_be_the_local_one():
    personal, local = (train("pfedme", 1, cohort=1, evaluated=evaluated) for evaluated in ("personal", "local"))
    assert is_equal(personal.server.shared, local.server.shared)
    client = int(np.argmax(local.clients.rounds))
    assert difference(tree.take(own_params(local), client), local.server.shared["params"]) < 1e-5
    assert difference(own_params(local), own_params(personal)) > 1e-4


@pytest.mark.slow
# ---- APFL ------------------------------------------------------------------------------------------------------------
def test_apfls_common_model_is_fedavgs_whatever_alpha_is():
    plain = train("fedavg", weighting="uniform").server.shared
    for options in ({}, {"alpha": 0.9, "adaptive": False, "mix": "outputs", "order": "after"}):
        assert difference(plain, train("apfl", **options).server.shared) < 1e-6


@pytest.mark.slow
def test_apfl_with_alpha_0_keeps_own_models_and_with_1_trains_them_alone():
    fixed = {"adaptive": False, "alpha": 0.0}
    assert is_equal(own_params(start("apfl")), own_params(train("apfl", **fixed)))
    alone = train("apfl", 1, alpha=1.0, adaptive=False)
    average = tree.weighted_sum(own_params(alone), np.full(5, 0.2, np.float32))
    assert difference(average, alone.server.shared["params"]) < 1e-5


@pytest.mark.slow
def test_apfls_alpha_stays_until_the_models_differ_and_then_moves_within_0_and_1():
    alphas = [
        train("apfl", rounds, learning_rate=rate).clients.memory["own"].alpha for rounds, rate in ((1, 1.0), (3, 1.0))
    ]
    assert np.all(np.asarray(alphas[0]) == 0.5)
    assert np.all((np.asarray(alphas[1]) >= 0) & (np.asarray(alphas[1]) <= 1)) and np.ptp(alphas[1]) > 0.01


def test_the_released_step_of_apfls_alpha_reads_the_weight_decay_of_the_own_model():
    """With alpha = 1 the personal model trains alone, with the step lr (dL/dv + decay v)."""
    rate = 0.05
    options = {"alpha": 1.0, "preset": "released", "weight_decay": 0.1, "learning_rate": rate, "momentum": 0.0}
    round = compose("apfl", norm="none", num_clients=1, options=options | {"epochs": None, "steps": 1})
    data, key = federation(1).data, make_key(0)
    before = round.init(key, data)
    own = before.clients.memory["own"]
    own = own._replace(model=tree.scale(2.0, own.model))
    before = before._replace(clients=before.clients._replace(memory={"own": own}))
    after = jax.jit(round.step)(before, data, key)[0]
    v, v_after = own_params(before), own_params(after)
    apart = tree.subtract(tree.take(v_after, 0), after.server.shared["params"])
    product = optax.tree.vdot(apart, tree.take(tree.subtract(v, v_after), 0))
    (alpha,) = np.asarray(after.clients.memory["own"].alpha)
    np.testing.assert_allclose(alpha, 1 - product - 0.02 * rate, rtol=1e-5)
    assert 0.5 < alpha < 0.999


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "is_alike"), [((), True), pytest.param((8,), False, marks=pytest.mark.slow)], ids=["linear", "hidden"]
)
def test_apfl_mixes_outputs_and_parameters_alike_in_a_linear_model_alone(hidden, is_alike):
    """The personal models, and the scores of the mixtures."""
    states, scores = [], []
    for mix in ("parameters", "outputs"):
        built = algorithm("apfl", mix=mix, adaptive=False, shuffle=False)
        network = models.mlp(3, hidden=hidden, norm="none")
        simulation = Simulation(built, network, federation(), rounds=2, evaluate_every=2)
        state, _ = simulation.advance(simulation.start(), 2)
        states.append(own_params(state))
        scores.append(simulation.evaluate(state).personal)
    assert (difference(*states) < 1e-5) == is_alike
    assert np.allclose(scores[0].loss, scores[1].loss, rtol=1e-5) == is_alike
