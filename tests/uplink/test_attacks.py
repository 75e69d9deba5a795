"""Attacks as stages of a round; the numbers of what attackers send are in tests/golden/family_attacks.py."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import Simulation, aggregators, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import CorruptView, StageView
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine.parallel.layout import chunked
from fedjax_het.engine.round.participation import bernoulli
from fedjax_het.errors import InputError
from fedjax_het.types import Broadcast
from fedjax_het.uplink import STAGES, attack_gaussian, attack_inner_product, attack_little_is_enough, attack_mimic
from fedjax_het.uplink import attack_sign_flip as sign_flip
from fedjax_het.uplink._attacks import largest_z
from tests.harness import ROUNDING, algorithm, compose, difference, federation, is_equal, model, run

pytestmark = pytest.mark.extended

UNIFORM = {"weighting": "uniform"}
ATTACKS = {name: stage for name, stage in STAGES.items() if name.startswith("attack_")}


def moved(*stages, rounds=1, **options):
    """The update of the server after some rounds of FedAvg with uniform weights."""
    options = {"options": UNIFORM, "change": {"uplink": stages}, **options}
    state, metrics = run(compose("fedavg", **options), rounds=rounds)
    return state, metrics


@pytest.fixture(scope="module")
def start():
    return run(compose("fedavg", options=UNIFORM), rounds=0)[0].server.shared


@pytest.fixture(scope="module")
def honest():
    """The server's variables after a round in which nobody lies."""
    return moved()[0].server.shared


@pytest.mark.slow
def test_when_all_flip_signs_the_server_goes_backwards(start, honest):
    state, _ = moved(sign_flip(clients=range(5)))
    forward, backward = tree.subtract(honest, start), tree.subtract(state.server.shared, start)
    assert difference(forward, tree.scale(-1.0, backward)) < ROUNDING


@pytest.mark.slow
def test_attackers_who_send_the_mean_of_the_others_leave_their_mean(start):
    """-tau mu of two of five: the mean of all is (3 - 2 tau)/5 mu; with tau = 1.5 nothing moves, in any layout."""
    stage = attack_inner_product(1.5, clients=(1, 4))
    for layout in ({}, {"layout": chunked(2)}):
        state, metrics = moved(stage, **layout)
        assert difference(start, state.server.shared) < 1e-6
        assert metrics[0].num_reporting == 5


def test_a_robust_rule_undoes_what_breaks_the_mean(start, honest):
    """Two of five send 1,000 times the mean backwards."""
    stage = attack_inner_product(1000.0, clients=(1, 4))
    broken = moved(stage)[0].server.shared
    robust = moved(stage, change={"uplink": (stage,), "aggregator": aggregators.coordinate_median()})[0].server.shared
    sizes = [float(tree.norm(tree.subtract(state["params"], start["params"]))) for state in (honest, broken, robust)]
    assert sizes[1] > 100 * sizes[0] and 0 < sizes[2] < 3 * sizes[0]


def corrupt(stage, stack, is_present, state=()):
    size = len(stack)
    view = CorruptView(Broadcast(0, {}, {}), jnp.arange(size), jnp.asarray(is_present), size, state, make_key(0))
    return np.asarray(stage.corrupt({"params": {"w": jnp.asarray(stack)}}, view)["params"]["w"])


def test_what_all_know_is_of_the_honest_who_are_present():
    stack = np.arange(12.0).reshape(6, 2)
    is_present = np.array([True, False, True, True, True, True])
    expected = stack[[0, 2, 3]].mean(axis=0)
    sent = corrupt(attack_inner_product(1.0, clients=(4, 5)), stack, is_present)
    np.testing.assert_allclose(sent[4:], [-expected, -expected], rtol=1e-6)
    np.testing.assert_array_equal(sent[:4], stack[:4])
    spread = stack[[0, 2, 3]].std(axis=0)
    sent = corrupt(attack_little_is_enough(clients=(4, 5)), stack, is_present)
    np.testing.assert_allclose(sent[4], expected - 1.5 * spread, rtol=1e-6)
    nobody = corrupt(attack_inner_product(1.0, clients=(4, 5)), stack, np.arange(6) > 3)
    np.testing.assert_array_equal(nobody[4:], 0)


@pytest.mark.slow
def test_the_largest_z_is_that_of_the_clients_who_are_present():
    largest, _ = moved(attack_little_is_enough("largest", clients=(1, 4)))
    number, _ = moved(attack_little_is_enough(float(largest_z(5, 2)), clients=(1, 4)))
    assert difference(largest.server.shared, number.server.shared) < ROUNDING


@pytest.mark.slow
def test_a_largest_z_that_is_no_attack_is_refused_or_warned_of():
    """Two attackers of ten clients have z = 0; of a hundred, one in five may be more than two in a round of ten."""
    server = attack_little_is_enough("largest", fraction=0.2).init_server
    with pytest.raises(InputError, match="z: 'largest' has no effect with 2 attackers among 10 clients"):
        server({}, 10, 10)
    with pytest.warns(UserWarning, match="with 2 attackers among 10 clients"):
        server({}, 100, 10)
    attack_little_is_enough("largest", fraction=0.3).init_server({}, 100, 10)
    attack_little_is_enough(1.5, fraction=0.2).init_server({}, 10, 10)


@pytest.mark.slow
def test_mimics_send_what_one_honest_client_sends_and_stay_with_it():
    """In a run with absent clients: after the first round the target is an id, which the state holds."""
    stage = attack_mimic(clients=(3, 4))
    target = None
    for rounds in (1, 3):
        state, _ = moved(stage, rounds=rounds, participation=bernoulli(0.9))
        known = state.server.uplink[0]
        assert int(known.target) in (0, 1, 2) and int(known.num_rounds) == 1
        assert float(tree.norm(known.axis)) == pytest.approx(1, rel=1e-5)
        assert target in (None, int(known.target))
        target = int(known.target)


def test_normal_numbers_differ_between_clients_tensors_and_rounds():
    like = {"params": {"w": jnp.zeros((50, 40)), "b": jnp.zeros((2000,))}}

    def send(key):
        view = StageView(Broadcast(0, {}, {}), (), (), jnp.array(0), 1, make_key(key), make_key(9))
        return attack_gaussian(2.0, 0.5, clients=(0,)).send(like, view).update["params"]

    first, second = send(0), send(1)
    values = np.concatenate([np.ravel(first["w"]), np.ravel(first["b"])])
    assert abs(values.mean() - 0.5) < 5 * 2 / 4000**0.5 and abs(values.std() - 2) < 0.15
    assert not np.any(np.ravel(first["w"]) == np.ravel(first["b"])) and not np.any(first["w"] == second["w"])


def test_without_attackers_the_bits_stay(honest):
    state, _ = moved(sign_flip(fraction=0.0))
    assert is_equal(state.server.shared, honest)


@pytest.mark.parametrize("name", ATTACKS)
def test_who_attacks_has_to_be_said(name):
    with pytest.raises(InputError, match="fraction: give the fraction"):
        ATTACKS[name]()


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "weight"), [("mean", 0.4), ("multi_krum", 0.0)])
def test_the_weights_diagnostic_sums_those_of_attackers(rule, weight):
    options = {"mean": {"weighting": "uniform"}, "multi_krum": {"num_attackers": 2, "neighbours": "byzfl"}}[rule]
    aggregator = aggregators.AGGREGATORS[rule](**options)
    chosen = replace(algorithm("fedavg"), uplink=(attack_gaussian(fraction=0.4),), aggregator=aggregator)
    diagnostics = {"weights": DIAGNOSTICS["weights"]}
    built = Simulation(chosen, model("none"), federation(), rounds=1, diagnostics=diagnostics)
    found = built.diagnose(built.start())["weights"]
    np.testing.assert_allclose(found["attackers"], [weight], atol=1e-5)
    assert found["residual"][0] < 1e-5
