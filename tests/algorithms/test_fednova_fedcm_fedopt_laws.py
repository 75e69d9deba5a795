"""Laws of FedNova, FedCM, the server optimizers and Adaptive-FedAvg with their main ideas switched off."""

import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het.algorithms import fedcm, fednova
from fedjax_het.errors import InputError
from tests.golden.replay import replay_gradients
from tests.harness import OWN, compose, difference, federation, is_equal, run, train


def train_one_client(name: str, **options):
    round = compose(name, norm="none", num_clients=1, options=options)
    return run(round, rounds=2, data=federation(num_clients=1).data)[0].server.shared


@pytest.fixture(scope="module")
def fedavg():
    return train("fedavg")


@pytest.mark.slow
@pytest.mark.parametrize("a_norm", ["impulse", "released"])
def test_fednova_with_equal_steps_is_fedavg(a_norm):
    local = {"steps": 3, "momentum": 0.5}
    assert difference(train("fedavg", **local), train("fednova", a_norm=a_norm, **local)) < 1e-6


@pytest.mark.extended
def test_fednova_with_unequal_steps_differs_from_fedavg(fedavg):
    assert difference(fedavg, train("fednova")) > 1e-4


@pytest.mark.slow
def test_fednova_with_one_client_is_local_training():
    local = {"momentum": 0.5, "mu": 0.1}
    assert difference(train_one_client("fedprox", **local), train_one_client("fednova", **local)) < 1e-6


@pytest.mark.slow
def test_fednovas_step_is_proportional_to_tau_eff():
    start = run(compose("fednova", norm="none"), rounds=0)[0].server.shared
    near, far = (train("fednova", rounds=1, tau_eff=tau) for tau in (1.0, 2.0))
    moved = tree.subtract(near, start)
    assert difference(tree.add(start, tree.scale(2.0, moved)), far) < 1e-6


@pytest.mark.extended
def test_fednovas_server_momentum_equals_fedavgm():
    ours, other = train("fednova", steps=3, gmf=0.9), train("fedavgm", steps=3, server_momentum=0.9)
    assert difference(other, ours) < 1e-6


def test_fednova_refuses_other_optimizers_than_sgd():
    with pytest.raises(InputError, match="optimizer: FedNova"):
        fednova(optimizer="adam")


@pytest.mark.extended
def test_fedcm_with_alpha_one_is_fedavg_with_uniform_weights():
    assert difference(train("fedavg", weighting="uniform"), train("fedcm", alpha=1.0)) < 1e-6


@pytest.mark.extended
def test_the_first_round_of_fedcm_is_fedavg_with_a_scaled_rate():
    ours = train("fedcm", rounds=1, alpha=0.2, learning_rate=0.05)
    assert difference(train("fedavg", rounds=1, weighting="uniform", learning_rate=0.01), ours) < 1e-6


@pytest.mark.slow
def test_fedcms_normalisations_agree_for_equal_steps_only():
    options = {"rounds": 3, "alpha": 0.5}
    equal = [train("fedcm", steps=2, normalisation=name, **options) for name in ("client", "cohort")]
    assert difference(*equal) < 1e-6
    ragged = [train("fedcm", normalisation=name, **options) for name in ("client", "cohort")]
    assert difference(*ragged) > 1e-6


@pytest.mark.extended
def test_fedcms_momentum_approaches_a_constant_gradient():
    gradient, alpha = np.array([1.0, -2.0]), 0.3
    tapes = np.broadcast_to(gradient, (6, 3, 4, 2))
    algorithm = fedcm(0.1, alpha, batch_size=1, shuffle=False)
    states = replay_gradients(algorithm, np.zeros(2), tapes, np.tile(np.arange(3), (6, 1)), 3)
    momenta = np.stack([state.server.published["momentum"]["w"] for state in states])
    shares = 1 - (1 - alpha) ** np.arange(1, 7)
    np.testing.assert_allclose(momenta, shares[:, None] * gradient, rtol=1e-5)


def test_fedcm_clips_the_mixed_direction():
    tapes = np.broadcast_to(np.array([30.0, -40.0]), (1, 1, 1, 2))
    state = replay_gradients(fedcm(1.0, 1.0, clip=5.0, batch_size=1), np.zeros(2), tapes, np.zeros((1, 1), int), 1)[-1]
    np.testing.assert_allclose(state.server.shared["params"]["w"], [-3.0, 4.0], rtol=1e-5)


@pytest.mark.parametrize(("setting", "value"), [("momentum", 0.9), ("optimizer", "adam")])
def test_fedcm_refuses_other_optimizers_than_plain_sgd(setting, value):
    with pytest.raises(InputError, match=f"{setting}: FedCM"):
        fedcm(**{setting: value})


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 1.5}, {"clip": 0.0}])
def test_fedcm_refuses_settings_out_of_range(options):
    with pytest.raises(InputError, match=next(iter(options))):
        fedcm(**options)


@pytest.mark.extended
def test_fedavgm_without_momentum_is_fedavg(fedavg):
    assert is_equal(train("fedavgm", server_momentum=0.0), fedavg)
    assert difference(fedavg, train("fedavgm")) > 1e-4


@pytest.mark.extended
def test_damped_momentum_equals_undamped_momentum_at_a_smaller_rate():
    damped = train("fedavgm", momentum_damping=True)
    assert difference(train("fedavgm", server_learning_rate=0.1), damped) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_fedadam_and_fedyogi_with_a_large_tau_are_fedavg(name, fedavg):
    options = {"server_learning_rate": 1e6, "tau": 1e6, "b1": 0.0}
    assert difference(fedavg, train(name, **options)) < 1e-5


@pytest.mark.extended
def test_fedadagrad_with_a_large_tau_is_fedavg(fedavg):
    assert difference(fedavg, train("fedadagrad", server_learning_rate=1e6, tau=1e6)) < 1e-5


@pytest.mark.slow
def test_fedadam_and_fedyogi_agree_in_the_first_round_only():
    assert difference(train("fedadam", rounds=1), train("fedyogi", rounds=1)) < 1e-5
    assert difference(train("fedadam", rounds=3), train("fedyogi", rounds=3)) > 1e-6


@pytest.mark.slow
def test_adaptive_fedavg_is_fedavg_with_the_published_rate():
    """The whole rate in the first two rounds, where the ratio of variances is 1, and the half at most in the third."""
    ours = run(compose("ada_fedavg", norm="none"), rounds=3)[0].server
    rate = OWN["ada_fedavg"]["learning_rate"]
    assert is_equal(train("ada_fedavg", rounds=2), train("fedavg", rounds=2, learning_rate=rate))
    assert difference(train("fedavg", rounds=3, learning_rate=rate), ours.shared) > 1e-5
    assert 0 < float(ours.published["rate"]["factor"]) < 1
