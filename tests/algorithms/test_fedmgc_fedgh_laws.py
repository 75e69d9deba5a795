"""Laws of FedMGC, its ablations, FedGH and the hierarchical method with their main idea switched off."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.engine import Simulation
from fedjax_het.errors import InputError
from tests.harness import compose, difference, federation, is_equal, model, run, train

pytestmark = pytest.mark.extended

CORRECTED = ("fedmgc", "fedavg_dgc", "fedprox_dgc")
EDITED = (*CORRECTED, "fedgh", "hierarchical")


@pytest.fixture(scope="module")
def fedavg_uniform():
    return train("fedavg", weighting="uniform")


def test_fedmgc_without_its_parts_is_fedavg_with_uniform_weights(fedavg_uniform):
    assert difference(train("fedmgc", gamma=0.0, beta=1.0, dominant=False), fedavg_uniform) < 1e-6


@pytest.mark.slow
def test_fedmgc_with_cross_entropy_is_the_correction_alone():
    assert difference(train("fedmgc", gamma=0.0, beta=1.0), train("fedavg_dgc")) < 1e-5


def test_fedprox_dgc_without_pull_is_fedavg_dgc():
    assert difference(train("fedprox_dgc", mu=0.0), train("fedavg_dgc")) < 1e-6


def test_beta_scales_the_learning_rate_where_losses_only_rank():
    doubled = train("fedmgc", beta=2.0, learning_rate=0.05)
    assert difference(train("fedmgc", beta=1.0, learning_rate=0.1), doubled) < 1e-5


@pytest.mark.slow
def test_the_first_round_of_the_hierarchical_method_is_the_uniform_mean(fedavg_uniform):
    first = train("fedavg", rounds=1, weighting="uniform")
    assert difference(train("hierarchical", rounds=1), first) < 1e-6


@pytest.mark.parametrize("name", EDITED)
def test_with_one_client_every_editing_method_is_fedavg(name):
    alone = federation(num_clients=1).data
    change = {"objective": (cross_entropy(),)}
    ours, other = (
        run(compose(algorithm, norm="none", num_clients=1, change=change), data=alone)[0].server.shared
        for algorithm in (name, "fedavg")
    )
    assert difference(ours, other) < 1e-6


@pytest.mark.parametrize("moment", ["last_epoch_mean", "round_mean", "pre_eval", "post_eval"])
def test_a_correction_reports_one_loss_per_client(moment):
    round = compose("fedmgc", options={"client_loss": moment})
    state = round.init(make_key(0), federation().data)
    *_, said = jax.jit(round.step_with_messages)(state, federation().data, make_key(0))
    assert said.uploads.reports["loss"].shape == (5,)
    assert np.all(np.asarray(said.uploads.reports["loss"]) > 0)


def test_fedmgc_without_the_correction_reports_nothing():
    assert not ALGORITHMS["fedmgc"](dominant=False).reports


def test_fedgh_with_random_pairs_is_reproducible():
    options = {"aggregation": {"conflict_test": "sequential", "pair_order": "random"}}
    assert is_equal(train("fedgh", **options), train("fedgh", **options))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedmgc", {"client_loss": "mean"}, "client_loss: unknown option 'mean'"),
        ("fedmgc", {"gamma": -1.0}, "gamma: must be a finite number of at least 0"),
        ("fedavg_dgc", {"fraction": 2.0}, "fraction"),
        ("fedgh", {"aggregation": {"conflict_test": "none"}}, "conflict_test: unknown option"),
        ("hierarchical", {"decay": 2.0}, "decay"),
    ],
)
def test_options_out_of_range_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        ALGORITHMS[name](**options)


def test_a_correction_without_reported_losses_is_refused():
    silent = replace(ALGORITHMS["fedmgc"](batch_size=8), reports={})
    with pytest.raises(InputError, match="loss"):
        Simulation(silent, model("none"), federation(), rounds=1)
