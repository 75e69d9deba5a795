"""Several models of the server: their laws, in every layout, and what they compose with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import data, models
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import cfl, dpsgd, fedavg, ifca
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine import Simulation, simulate
from fedjax_het.engine.parallel.layout import chunked, sharded
from fedjax_het.engine.round.asynchronous import fedbuff
from fedjax_het.engine.round.participation import Participation
from fedjax_het.engine.round.program import make_round
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import mean
from fedjax_het.uplink import gaussian_mechanism
from tests.harness import ROUNDING, compose, difference, federation, network_of, run

TRAINING = {"learning_rate": 0.1, "batch_size": 4, "epochs": 1}


def train(name: str, options: dict | None = None, rounds: int = 3, **given):
    return run(compose(name, options=options, **given), rounds=rounds)[0].server


def first(stack):
    return jax.tree.map(lambda leaf: leaf[0], stack)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ifca", "fesem", "fedem"])
def test_a_single_model_is_fedavg(name):
    number = "num_components" if name == "fedem" else "num_models"
    ours = train(name, {number: 1, "weighting": "samples"})
    assert difference(first(ours.shared), train("fedavg").shared) < ROUNDING


@pytest.mark.extended
def test_weights_of_a_mixture_sum_to_one_and_stay_uniform_at_absent_clients():
    few = Participation(lambda n: 3, lambda key, n, number: (jnp.array([0, 2, 3]), jnp.ones(3, bool)))
    state, _ = run(compose("fedem", participation=few))
    weights = np.asarray(state.clients.personal["params"]["mixture"]["weights"])
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(weights[[1, 4]], 1 / 3, rtol=1e-6)
    assert np.abs(weights[[0, 2, 3]] - 1 / 3).min(axis=1).max() > 1e-3


@pytest.mark.slow
def test_cfl_without_a_division_is_fedavg():
    ours = train("cfl", {"eps_1": 1e-6})
    assert ours.published["groups"]["number"] == 1
    assert difference(first(ours.shared), train("fedavg", {"weighting": "uniform"}).shared) < ROUNDING


@pytest.mark.slow
def test_a_model_that_no_client_chose_does_not_change():
    round = compose("ifca", options={"num_models": 6})
    start = jax.tree.leaves(round.init(make_key(0), federation().data).server.shared)
    ours = jax.tree.leaves(run(round)[0].server.shared)
    is_same = np.all([jax.vmap(jnp.array_equal)(*pair) for pair in zip(ours, start, strict=True)], axis=0)
    assert 1 <= np.sum(is_same) < 6


@pytest.mark.extended
@pytest.mark.parametrize("name", ["ifca", "cfl"])
@pytest.mark.parametrize("layout", [chunked(2), sharded(3)], ids=str)
def test_layouts_give_equal_results(name, layout):
    options = {"cfl": {"eps_1": 10.0, "eps_2": 1e-3, "first_round": 0}}.get(name, {"num_models": 3})
    server, other = train(name, options), train(name, options, layout=layout)
    assert difference(server.shared, other.shared) < ROUNDING
    if name == "cfl":
        assert server.published["groups"]["number"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedadam", "fedld", "fedpac", "scaffold", "fedbn", "fediir", "fedmgc", "ditto"])
def test_any_algorithm_with_one_of_one_models_is_itself(name):
    rule = ifca(1, **TRAINING).models
    ours, plain = train(name, rounds=2, change={"models": rule}), train(name, rounds=2)
    assert difference(first(ours.shared), plain.shared) < 10 * ROUNDING


@pytest.mark.extended
def test_ifca_finds_planted_groups():
    digits = data.relabeled(2)(data.load("digits"))
    grouped = data.federate(digits, data.by_domain(), 8, client_test_fraction=0.2, test_fraction=0)
    training, scores = {"learning_rate": 0.1, "batch_size": 16, "epochs": 2}, []
    for algorithm in (ifca(2, **training), fedavg(**training)):
        history = simulate(algorithm, models.mlp(10, hidden=(32,)), grouped, rounds=12, evaluate_every=12)
        scores.append({name: value for name, (value, _) in history.mean_and_std().items()})
    assert scores[0]["personal/rand_index"] == 1
    assert scores[0]["personal/accuracy_mean"] > scores[1]["clients/accuracy_mean"] + 0.1


@pytest.mark.slow
def test_traffic_counts_the_models_that_are_sent():
    def cost(algorithm):
        return Simulation(algorithm, network_of("fedavg"), federation(), rounds=1).cost

    plain, three = cost(fedavg(**TRAINING)), cost(ifca(3, **TRAINING))
    assert three.bytes_down == pytest.approx(3 * plain.bytes_down, rel=0.01)
    assert three.bytes_up == plain.bytes_up + 4
    assert cost(cfl(3, **TRAINING)).bytes_down < 1.2 * plain.bytes_down


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mixing": dpsgd(**TRAINING).mixing, "aggregator": mean("uniform")}, "mixing or models"),
        ({"uplink": (gaussian_mechanism(1.0, 1.0),), "aggregator": mean("uniform")}, "hides their data"),
    ],
)
def test_what_needs_one_model_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        compose("ifca", change=change)


def test_leaves_that_the_server_alone_changes_are_refused():
    round = compose("fedexlora", change={"models": ifca(2, **TRAINING).models})
    with pytest.raises(InputError, match="models: the algorithm adapts leaves that the server alone changes"):
        round.init(make_key(0), federation().data)


def test_asynchronous_rounds_are_refused():
    with pytest.raises(InputError, match="several models"):
        make_round(ifca(2, **TRAINING), network_of("fedavg"), 5, asynchronous=fedbuff(2, 1))


@pytest.mark.extended
def test_diagnostics_are_refused():
    chosen = {"drift": DIAGNOSTICS["drift"]}
    with pytest.raises(InputError, match="one model of the server"):
        Simulation(ifca(2, **TRAINING), network_of("fedavg"), federation(), rounds=1, diagnostics=chosen)


def test_gradient_averaging_takes_no_weighting():
    with pytest.raises(InputError, match="weighting"):
        ifca(2, "uniform", "gradient")
