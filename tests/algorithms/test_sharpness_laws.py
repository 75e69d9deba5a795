"""Laws of FedSAM, FedASAM, MoFedSAM, FedGAMMA, FedSpeed and FedSMOO with their main ideas switched off."""

from functools import partial

import numpy as np
import pytest

from fedjax_het.algorithms import (
    fedasam,
    fedavg,
    fedcm,
    feddyn,
    fedgamma,
    fedsam,
    fedsmoo,
    fedspeed,
    mofedsam,
    scaffold,
)
from fedjax_het.errors import InputError
from tests.golden.cases import Case
from tests.golden.replay import Replay, replay_case
from tests.golden.test_golden import HERE
from tests.harness import difference, is_equal

pytestmark = pytest.mark.extended

CASE = Case(HERE / "fedspeed" / "quad_0.npz")  # six rounds of three of five clients on quadratic losses
NUM_CLIENTS, SELECTED = int(CASE["n_clients"]), CASE["selected"]
fedavg_uniform, fedsam_uniform = partial(fedavg, weighting="uniform"), partial(fedsam, weighting="uniform")


def replay(algorithm, **options) -> Replay:
    return replay_case(CASE, partial(algorithm, learning_rate=0.1, **options))


def shared(replayed: Replay):
    return replayed.states[-1].server.shared


@pytest.mark.parametrize(
    ("algorithm", "plain"),
    [
        (partial(fedsam_uniform, 0.0), fedavg_uniform),
        (partial(fedasam, 0.0), fedavg),
        (partial(mofedsam, alpha=0.3, rho=0.0), partial(fedcm, alpha=0.3)),
        (partial(fedgamma, rho=0.0), scaffold),
        (partial(fedspeed, 0.3, 0.0), partial(feddyn, 0.3)),
        (partial(fedspeed, 0.3, mix=0.0), partial(feddyn, 0.3)),
        (partial(fedsmoo, 0.3, 0.0), partial(feddyn, 0.3)),
    ],
    ids=["fedsam", "fedasam", "mofedsam", "fedgamma", "fedspeed", "fedspeed-mix", "fedsmoo"],
)
def test_without_a_perturbation_it_is_the_method_that_it_builds_on(algorithm, plain):
    ours, theirs = replay(algorithm), replay(plain)
    assert is_equal(shared(ours), shared(theirs))
    assert is_equal(ours.trained, theirs.trained)


def test_mofedsam_with_alpha_one_is_fedsam_and_its_first_round_is_fedsam_at_a_smaller_rate():
    full, plain = replay(mofedsam, alpha=1.0), replay(fedsam_uniform)
    assert difference(shared(plain), shared(full)) < 1e-6
    first = replay_case(CASE, partial(fedsam_uniform, learning_rate=0.02)).states[0]
    assert difference(first.server.shared, replay(mofedsam, alpha=0.2).states[0].server.shared) < 1e-6


@pytest.mark.slow
def test_the_gradient_of_a_linear_loss_is_the_same_nearby():
    """With curvature the methods differ."""
    pairs = (fedsam_uniform, fedavg_uniform), (fedgamma, scaffold), (partial(fedsmoo, 0.3), partial(feddyn, 0.3))
    for ours, plain in pairs:
        assert difference(shared(replay(plain)), shared(replay(ours))) > 1e-4
        assert difference(shared(straight(plain)), shared(straight(ours))) < 1e-6
    duals = straight(partial(fedsmoo, 0.3)).states[-1].clients.memory["perturbation"]["w"]
    assert float(np.abs(duals).max()) > 0.1


def straight(algorithm) -> Replay:
    """The replay of a case whose losses are linear."""
    return replay_case(TAPE, partial(algorithm, learning_rate=0.1))


class Tape(Case):
    """The case without curvature."""

    def __contains__(self, name: str) -> bool:
        return name != "hessians" and super().__contains__(name)


TAPE = Tape(CASE.path)


def test_fedgammas_server_control_is_the_mean_of_the_clients_controls():
    state = replay(fedgamma, rho=0.5).states[-1]
    mean = np.mean(state.clients.memory["control"]["w"], axis=0)
    np.testing.assert_allclose(state.server.published["control"]["w"], mean, atol=1e-6)


def test_fedsmoo_publishes_a_perturbation_of_its_radius_and_leaves_other_clients_alone():
    states = replay(fedsmoo, rho=0.3).states
    for number, state in enumerate(states):
        assert np.linalg.norm(state.server.published["perturbation"]["w"]) == pytest.approx(0.3, rel=1e-5)
        others = np.setdiff1d(np.arange(NUM_CLIENTS), SELECTED[number])
        for name, now in state.clients.memory.items():
            before = states[number - 1].clients.memory[name]["w"] if number else np.zeros_like(now["w"])
            np.testing.assert_array_equal(now["w"][others], before[others])
            assert np.all(np.any(now["w"][SELECTED[number]] != before[SELECTED[number]], axis=-1))


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        (mofedsam, {"momentum": 0.9}, "momentum: MoFedSAM"),
        (fedgamma, {"weight_decay": 0.1}, "weight_decay: FedGAMMA"),
        (fedgamma, {"optimizer": "adam"}, "optimizer: FedGAMMA"),
        (fedspeed, {"lamb": 0.0}, "lamb: must be a finite number above 0"),
        (fedspeed, {"server": "paper"}, "server: unknown option 'paper'"),
        (fedsmoo, {"rho": -1.0}, "rho: must be a finite number of at least 0"),
        (fedasam, {"adaptive": "kernels"}, "adaptive: unknown option 'kernels'"),
        (fedsam, {"clip": 0.0}, "clip: must be a finite number above 0"),
    ],
)
def test_settings_out_of_range_are_refused(algorithm, options, message):
    with pytest.raises(InputError, match=message):
        algorithm(**options)
