"""Laws of FedPer, LG-FedAvg, FedRep and FedBABU."""

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from fedjax_het import sharing, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import ALGORITHMS, fedbabu, fedper, fedrep, lgfedavg
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from fedjax_het.sharing import HEAD
from tests.harness import TINY, compose, federation, is_equal, run

pytestmark = pytest.mark.extended

BODY = "params/dense_0/*"


def train(built, rounds: int = 2, **options):
    """The state after some rounds of two clients each."""
    return run(compose_built(built, **options), rounds=rounds)[0]


def compose_built(built, **options):
    slots = ("objective", "local_update", "aggregator", "sharing", "server_optimizer", "personalize")
    change = {name: getattr(built, name) for name in slots}
    return compose("fedavg", norm="none", participation=participation.uniform(2), change=change, **options)


def heads(state):
    return state.clients.personal["params"]["classifier"]


def test_fedper_that_shares_all_is_fedavg():
    shared = train(replace(fedper(**TINY), sharing=sharing.share_all)).server.shared
    plain = run(compose("fedavg", norm="none", participation=participation.uniform(2)), rounds=2)[0].server.shared
    assert is_equal(shared, plain)


def test_lgfedavg_with_head_and_body_exchanged_is_fedper():
    assert is_equal(train(fedper(**TINY)), train(lgfedavg(head=(BODY,), **TINY)))


@pytest.mark.parametrize(
    ("built", "sent"),
    [(fedper(**TINY), "dense_0"), (lgfedavg(**TINY), "classifier"), (fedrep(2, **TINY), "dense_0")],
    ids=["fedper", "lgfedavg", "fedrep"],
)
def test_personal_parts_stay_with_clients_and_rest_where_nobody_asks(built, sent):
    round = compose_built(built)
    key, data = make_key(0), federation().data
    before = round.init(key, data)
    after, metrics, said = jax.jit(round.step_with_messages)(before, data, key)
    assert {path.split("/")[1] for path in tree.paths(said.uploads.update)} == {sent}
    assert {path.split("/")[1] for path in tree.paths(said.received.shared)} == {sent}
    asked = set(metrics.cohort.tolist())
    for client in range(5):
        own = [tree.take(state.clients.personal, client) for state in (before, after)]
        assert is_equal(*own) == (client not in asked)


@pytest.mark.slow
def test_fedreps_body_rests_in_the_head_phase_and_its_head_in_the_body_phase():
    start = compose_built(fedrep(**TINY)).init(make_key(0), federation().data)
    head_alone = train(fedrep(2, 0.05, **TINY | {"learning_rate": 0.0}))
    assert is_equal(start.server.shared, head_alone.server.shared)
    assert not is_equal(heads(start), heads(head_alone))
    decay = {"momentum": 0.9, "weight_decay": 0.1}
    body_alone = train(fedrep(2, 0.0, **TINY, **decay))
    assert is_equal(heads(start), heads(body_alone))
    assert not is_equal(start.server.shared, body_alone.server.shared)


@pytest.mark.slow
def test_fedrep_without_head_epochs_is_fedbabu():
    assert is_equal(train(fedrep(0, **TINY)), train(fedbabu(fine_tune_epochs=0, **TINY)))


def test_fedbabu_never_changes_its_head():
    built = fedbabu(momentum=0.9, weight_decay=0.1, **TINY)
    start = compose_built(built).init(make_key(0), federation().data)
    after = train(built)
    assert is_equal(heads(start), heads(after))
    assert not is_equal(start.server.shared, after.server.shared)


def test_steps_of_head_and_body_are_counted():
    counts = np.array([0, 7, 24])
    assert fedrep(3, epochs=2, **TINY).local_update.num_steps(counts).tolist() == [0, 5, 15]
    assert fedrep(0, epochs=2, **TINY).local_update.num_steps(counts).tolist() == [0, 2, 6]


@pytest.mark.parametrize("name", ["fedrep", "fedbabu", "fedpac", "rolora", "feddpa"])
def test_methods_with_phases_refuse_the_option_only(name):
    with pytest.raises(InputError, match=r"only: \w+ trains the .*Leave `only` out"):
        ALGORITHMS[name](only=HEAD)


def test_fedrep_refuses_a_rate_of_the_head_beside_another_optimizer():

    with pytest.raises(InputError, match="head_learning_rate: the given optimizer"):
        fedrep(head_learning_rate=0.1, optimizer=optax.sgd(0.1))


def test_a_method_that_shares_no_parameter_is_refused():
    round = compose_built(fedper(head=("*",), **TINY))
    with pytest.raises(InputError, match="sharing: the rule keeps every parameter of the model personal"):
        round.init(make_key(0), federation().data)
