"""Laws of FedProx, FedBN, SCAFFOLD, HarmoFL and FedLD with their main ideas switched off."""

import jax
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.engine.parallel.layout import chunked, vmapped
from fedjax_het.engine.round import participation
from fedjax_het.sharing import share_all
from tests.harness import compose, difference, federation, is_equal, run, train

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def fedavg():
    return train("fedavg")


@pytest.fixture(scope="module")
def fedavg_uniform():
    return train("fedavg", weighting="uniform")


@pytest.mark.parametrize("form", ["squared", "norm_per_tensor"])
def test_fedprox_without_pull_is_fedavg(form, fedavg):
    assert is_equal(train("fedprox", mu=0.0, form=form), fedavg)


def test_fedprox_with_a_larger_mu_stays_closer_to_the_start(fedavg):
    start = compose("fedavg", norm="none").init(make_key(0), federation().data).server.shared
    far, near = (difference(train("fedprox", mu=mu, rounds=1), start) for mu in (0.0, 5.0))
    assert near < far


def test_fedbn_that_shares_its_norms_is_fedavg():
    shared = compose("fedbn", change={"sharing": share_all})
    assert is_equal(run(shared, rounds=2)[0].server.shared, train("fedavg", norm="batch"))


def test_fedbn_keeps_norms_personal():
    round = compose("fedbn")
    state, _ = run(round, rounds=2)
    assert sorted(jax.tree.leaves(jax.tree.map(lambda x: x.ndim, state.clients.personal))) == [2, 2, 2, 2]
    own = np.asarray(state.clients.personal["batch_stats"]["norm_0"]["mean"])
    assert np.ptp(own, axis=0).min() > 0


def test_scaffold_agrees_with_uniform_fedavg_in_the_first_round_only(fedavg_uniform):
    assert difference(train("scaffold", rounds=1), train("fedavg", rounds=1, weighting="uniform")) < 1e-6
    assert difference(train("scaffold", rounds=2), fedavg_uniform) > 1e-4


def test_scaffolds_server_control_is_the_mean_of_the_clients_controls():
    state, _ = run(compose("scaffold", norm="none"), rounds=3)
    mean = jax.tree.map(lambda x: x.mean(axis=0), state.clients.memory["control"])
    assert difference(mean, state.server.published["control"]) < 1e-5


def test_scaffold_with_one_client_is_local_training():
    alone = federation(num_clients=1).data
    ours, other = (
        run(compose(name, norm="none", num_clients=1), data=alone)[0].server.shared for name in ("scaffold", "fedavg")
    )
    assert difference(ours, other) < 1e-5


@pytest.mark.slow
def test_scaffold_options_one_and_two_agree_in_the_first_round_only():
    assert difference(train("scaffold", rounds=1), train("scaffold", rounds=1, control="start")) == 0
    assert difference(train("scaffold", rounds=3), train("scaffold", rounds=3, control="start")) > 1e-5


def test_harmofl_without_its_parts_is_fedavg_with_uniform_weights(fedavg_uniform):
    plain = train("harmofl", alpha=0.0, band=None, momentum=0.0, weight_decay=0.0, reset_optimizer=True)
    assert is_equal(plain, fedavg_uniform)


def test_harmofl_keeps_its_optimizer_state_between_rounds():
    options = {"alpha": 0.0, "band": None}
    assert difference(train("harmofl", **options), train("harmofl", reset_optimizer=True, **options)) > 1e-5


@pytest.mark.parametrize("layout", [vmapped, chunked(2)], ids=str)
def test_harmofl_averages_amplitudes_equally_and_models_by_weights(layout):
    """Algorithm 1, line 16, in NumPy, on clients of unequal sizes with one batch each."""
    options = {"weighting": "samples", "batch_size": 32, "shuffle": False}
    round, data = compose("harmofl", norm="none", options=options, layout=layout), federation().data
    state = round.init(make_key(0), data)
    after, _, said = jax.jit(round.step_with_messages)(state, data, make_key(0))
    sizes, images = np.asarray(data.train.count, float), np.asarray(federation().prepare(data.examples.inputs), float)
    spectra = np.abs(np.fft.fft2(images, axes=(1, 2)))
    own = [spectra[index[:count]].mean(axis=0) for index, count in zip(data.train.index, data.train.count, strict=True)]
    average = np.asarray(after.server.shared["amplitude"]["average"])
    np.testing.assert_allclose(average, np.mean(own, axis=0), rtol=1e-4, atol=1e-4)
    by_size = np.average(own, axis=0, weights=sizes)
    assert np.ptp(sizes) > 0 and np.abs(average - by_size).max() > 0.01 * by_size.max()
    for path, update in jax.tree.leaves_with_path(said.uploads.update["params"]):
        before, now = (dict(jax.tree.leaves_with_path(x.server.shared["params"]))[path] for x in (state, after))
        expected = before + np.average(np.asarray(update, float), axis=0, weights=sizes)
        np.testing.assert_allclose(now, expected, rtol=1e-4, atol=1e-5)


def test_fedld_without_its_parts_is_fedavg(fedavg):
    assert is_equal(train("fedld", lam=0.0, principal=False), fedavg)


def test_fedld_with_one_client_is_fedavg():
    alone = federation(num_clients=1).data
    ours, other = (
        run(compose(name, norm="none", num_clients=1, options=options), data=alone)[0].server.shared
        for name, options in (("fedld", {"lam": 0.0}), ("fedavg", {}))
    )
    assert difference(ours, other) < 1e-6


def test_the_first_round_of_released_fedld_is_the_uniform_mean():
    released, plain = (
        train(name, rounds=1, **options)
        for name, options in (("fedld", {"lam": 0.0, "preset": "released"}), ("fedavg", {"weighting": "uniform"}))
    )
    assert difference(released, plain) < 1e-6


def test_full_participation_is_the_default(fedavg):
    state, _ = run(compose("fedavg", norm="none", participation=participation.full()), rounds=2)
    assert is_equal(state.server.shared, fedavg)
