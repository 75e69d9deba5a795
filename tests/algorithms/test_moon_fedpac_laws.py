"""Laws of MOON and FedPAC with their main ideas switched off."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedavg
from fedjax_het.engine.round import participation
from fedjax_het.models import projected
from fedjax_het.server.aggregators._collaboration import collaboration_weights, drop_small_weights
from tests.harness import TINY, algorithm, compose, difference, federation, is_equal, run

pytestmark = pytest.mark.extended


@functools.cache
def train_cached(name: str, rounds: int = 2, **options):
    return run(compose(name, norm="none", options=options), rounds=rounds)


def train_shared(name: str, rounds: int = 2, **options):
    return train_cached(name, rounds, **options)[0].server.shared


def test_moon_without_its_term_is_fedavg():
    assert is_equal(train_shared("moon", mu=0.0), train_shared("fedavg"))


@pytest.mark.slow
def test_moon_agrees_with_fedavg_in_the_first_round_only():
    assert difference(train_shared("moon", 1), train_shared("fedavg", 1)) < 1e-6
    assert difference(train_shared("moon", 2), train_shared("fedavg", 2)) > 1e-4


@pytest.mark.slow
def test_moon_against_the_initial_model_starts_at_a_loss_of_log_two():
    """The received and the earlier model are equal: the term is constant, and its gradient zero."""
    assert difference(train_shared("moon", 1, first="init"), train_shared("fedavg", 1)) < 1e-5
    losses = [float(train_cached("moon", 1, **options)[1][0].loss) for options in ({}, {"first": "init"})]
    assert losses[1] - losses[0] == pytest.approx(np.log(2), abs=1e-5)


def test_moon_keeps_each_clients_trained_models():
    state, _ = train_cached("moon", 2, buffer=3)
    kept = state.clients.memory["previous"]
    assert kept["count"].tolist() == [2] * 5
    newest = jax.tree.map(lambda x: x[:, 0], kept["models"])
    weights = federation().data.train.count / federation().data.train.count.sum()
    assert difference(tree.weighted_sum(newest, np.asarray(weights, np.float32)), state.server.shared) < 1e-5


@pytest.mark.slow
def test_moon_with_a_projection_and_without_its_term_is_fedavg_with_a_projection():
    theirs = replace(fedavg(**TINY), adapt=projected(4))
    change = {name: getattr(theirs, name) for name in ("adapt", "objective", "local_update")}
    state, _ = run(compose("fedavg", norm="none", change=change), rounds=1)
    assert is_equal(train_shared("moon", 1, mu=0.0, projection=4), state.server.shared)
    assert state.server.shared["params"]["classifier"]["kernel"].shape == (4, 3)


def test_moons_server_momentum_scales_the_first_update():
    start = compose("moon", norm="none").init(make_key(0), federation().data).server.shared
    full, part = (tree.subtract(train_shared("moon", 1, mu=0.0, server_momentum=m), start) for m in (0.0, 0.75))
    assert difference(tree.scale(0.25, full), part) < 1e-4


def heads(state):
    return state.clients.personal["params"]["classifier"]


@pytest.mark.slow
def test_fedpacs_alignment_starts_after_the_first_round():
    assert difference(train_shared("fedpac", 1), train_shared("fedpac", 1, lam=0.0)) < 1e-6
    assert difference(train_shared("fedpac", 2), train_shared("fedpac", 2, lam=0.0)) > 1e-4


@pytest.mark.slow
def test_fedpac_with_one_client_keeps_its_head():
    alone = federation(num_clients=1).data
    mixed, own = (
        run(compose("fedpac", norm="none", num_clients=1, options=options), rounds=2, data=alone)[0]
        for options in ({}, {"collaborate": False})
    )
    assert difference(mixed._replace(counters=()).clients, own.clients) < 1e-6
    assert difference(mixed.server.shared, own.server.shared) < 1e-6


@pytest.mark.slow
def test_fedpac_mixes_the_reported_heads():
    round = compose("fedpac", norm="none")
    key, data = make_key(0), federation().data
    state, _, said = jax.jit(round.step_with_messages)(round.init(key, data), data, key)
    reports = said.uploads.reports
    told = reports["statistics"]
    statistics = (told["variance"], told["means"], np.ones(5, bool))
    weights = drop_small_weights(collaboration_weights(*statistics))
    wanted = jax.tree.map(lambda leaf: np.tensordot(weights, leaf, axes=1), reports["head"])
    assert difference(wanted, said.replies) < 1e-5
    assert difference({"params": {"classifier": heads(state)}}, said.replies) == 0
    assert difference(reports["head"], said.replies) > 1e-4
    assert "classifier" not in state.server.shared["params"]


def test_fedpac_keeps_the_heads_of_clients_outside_the_cohort():
    round = compose("fedpac", norm="none", participation=participation.uniform(2))
    before = heads(round.init(make_key(0), federation().data))
    state, metrics = run(round, rounds=1)
    asked = set(metrics[0].cohort.tolist())
    for client in range(5):
        own = [jax.tree.map(lambda x, i=client: x[i], head) for head in (before, heads(state))]
        assert is_equal(*own) == (client not in asked)


@pytest.mark.slow
def test_fedpacs_head_steps_do_not_change_the_extractor():
    """With a learning rate of zero for the body, only heads change."""
    start = compose("fedpac", norm="none").init(make_key(0), federation().data)
    state, _ = train_cached("fedpac", 1, learning_rate=0.0)
    assert is_equal(start.server.shared, state.server.shared)
    assert difference(heads(start), heads(state)) > 1e-3


def test_fedpacs_number_of_steps_is_that_of_head_and_body():
    counts = np.array([0, 7, 24])
    assert algorithm("fedpac", epochs=2, head_epochs=3).local_update.num_steps(counts).tolist() == [0, 5, 15]
