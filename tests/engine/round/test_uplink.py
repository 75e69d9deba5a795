"""The uplink: stages between a client's finished update and the server."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het.algorithm import Sent, Stage
from fedjax_het.engine.parallel.layout import chunked, sharded, vmapped
from fedjax_het.engine.round.participation import bernoulli
from fedjax_het.engine.round.uplink import count_bits
from fedjax_het.errors import InputError
from fedjax_het.types import Upload
from tests.harness import ROUNDING, compose, difference, is_equal, reference_run, run

pytestmark = pytest.mark.extended

PLAIN = Stage(send=lambda update, view: Sent(update, view.memory))
COUNTED = Stage(
    send=lambda update, view: Sent(tree.scale(2.0, update), view.memory + 1, {"ids": view.client.astype(float)}),
    init=lambda shared: jnp.zeros(()),
    init_server=lambda shared, num_clients, cohort_size: {"ids": jnp.zeros(())},
    publish=lambda state: state["ids"],
    receive=lambda update, view: (tree.scale(0.5, update), {"ids": view.state["ids"] + view.statistics["ids"]}),
)


def uplink_round(*stages: Stage, name: str = "fedavg", **options):
    return compose(name, change={"uplink": stages}, **options)


@pytest.mark.parametrize("name", ["fedavg", "fedld"])
def test_a_stage_that_changes_nothing_gives_the_same_bits(name):
    state, _ = run(uplink_round(PLAIN, name=name))
    expected, _ = reference_run(name)
    assert is_equal(state.server.shared, expected.server.shared)
    assert is_equal(state.clients, expected.clients)


def test_without_stages_the_state_has_no_further_leaves():
    state, _ = reference_run("scaffold")
    assert state.server.uplink == ()
    assert set(state.clients.memory) == {"control"}


@pytest.mark.parametrize("layout", [vmapped, chunked(2), sharded(2)], ids=str)
def test_clients_keep_send_and_sum_in_every_layout(layout):
    state, metrics = run(uplink_round(COUNTED, layout=layout, participation=bernoulli(0.7)))
    reports = np.zeros(5)
    for metric in metrics:
        assert not metric.is_nonfinite.any()
    reports = np.asarray(state.clients.rounds)[:5]
    (kept,) = state.clients.memory["uplink"]
    np.testing.assert_array_equal(kept[:5], reports)  # absent clients keep their memory
    assert state.server.uplink[0]["ids"] == np.sum(reports * np.arange(5))
    assert 0 < reports.sum() < 15
    plain, _ = run(compose("fedavg", participation=bernoulli(0.7)))
    assert difference(plain.server.shared, state.server.shared) < ROUNDING  # doubled by clients, halved by the server


def test_batch_statistics_are_sent_as_they_are_unless_a_stage_takes_all_collections():
    zeros = lambda update, view: Sent(tree.zeros_like(update))  # noqa: E731
    start = run(compose("fedavg"), rounds=0)[0].server.shared
    params_only = run(uplink_round(Stage(send=zeros)), rounds=1)[0].server.shared
    everything = run(uplink_round(Stage(send=zeros, collections="all")), rounds=1)[0].server.shared
    assert is_equal(params_only["params"], start["params"])
    assert not is_equal(params_only["batch_stats"], start["batch_stats"])
    assert is_equal(everything, start)


def test_a_client_that_sends_infinity_is_dropped_and_keeps_its_memory():
    def send(update, view):
        return Sent(jax.tree.map(lambda x: jnp.where(view.client == 2, jnp.inf, x), update), view.memory + 1)

    state, (metrics,) = run(uplink_round(Stage(send=send, init=lambda shared: jnp.zeros(()))), rounds=1)
    assert metrics.num_nonfinite == 1
    np.testing.assert_array_equal(state.clients.memory["uplink"][0], [1, 1, 0, 1, 1])


@pytest.mark.slow
def test_keys_are_of_seed_round_client_and_stage_and_the_round_key_is_shared():
    def draws(update, view):
        own = jax.random.uniform(view.key, ())
        common = jax.random.uniform(view.round_key, ())
        return Sent(update, jnp.stack([own, common]))

    stage = Stage(send=draws, init=lambda shared: jnp.zeros(2))
    first = np.stack([np.asarray(x) for x in run(uplink_round(stage, stage), rounds=1)[0].clients.memory["uplink"]])
    second = np.stack([np.asarray(x) for x in run(uplink_round(stage, stage), rounds=2)[0].clients.memory["uplink"]])
    own = np.concatenate([first[..., 0].ravel(), second[..., 0].ravel()])
    assert len(np.unique(own)) == 20
    assert len(np.unique(np.concatenate([first[..., 1], second[..., 1]]))) == 4  # one for each round and stage
    chunks = run(uplink_round(stage, stage, layout=chunked(2)), rounds=1)[0].clients.memory["uplink"]
    np.testing.assert_array_equal(first, np.stack([np.asarray(x) for x in chunks]))


@pytest.mark.parametrize(
    ("name", "layout"), [("fedavg", vmapped), ("fedavg", sharded(2)), ("fedld", chunked(2))], ids=str
)
def test_attackers_who_know_all_updates_replace_their_own(name, layout):
    """One attacker sends minus the sum of the others, weighted like them: the mean of equal weights is then zero."""

    def corrupt(stack, view):
        is_attacker = view.cohort == 0
        honest = jax.tree.map(lambda x: jnp.sum(x.at[0].set(0), axis=0), stack)
        return jax.tree.map(lambda x, h: jnp.where(is_attacker.reshape(-1, *[1] * (x.ndim - 1)), -h, x), stack, honest)

    round = uplink_round(
        Stage(corrupt=corrupt), name=name, layout=layout, options={"weighting": "uniform"} if name == "fedavg" else {}
    )
    start = run(round, rounds=0)[0].server.shared["params"]
    state, (metrics,) = run(round, rounds=1)
    assert metrics.num_reporting == 5
    if name == "fedavg":
        assert difference(start, state.server.shared["params"]) < ROUNDING
    else:
        assert difference(start, state.server.shared["params"]) > ROUNDING


@pytest.mark.slow
def test_the_server_steps_without_reports_only_where_a_stage_says_so():
    increment = lambda update, view: (jax.tree.map(lambda x: x + 1, update), view.state)  # noqa: E731
    start = run(compose("fedavg"), rounds=0)[0].server.shared["params"]
    stays = Stage(receive=increment)
    steps = Stage(receive=increment, steps_without_reports=True)
    nobody = bernoulli(1e-9)
    assert is_equal(run(uplink_round(stays, participation=nobody), rounds=1)[0].server.shared["params"], start)
    moved = run(uplink_round(steps, participation=nobody), rounds=1)[0].server.shared["params"]
    for old, new in zip(jax.tree.leaves(start), jax.tree.leaves(moved), strict=True):
        np.testing.assert_allclose(new, old + 1, rtol=1e-6)


def test_a_stage_refuses_an_algorithm_before_anything_is_traced():
    def check(algorithm):
        if algorithm.reports:
            raise InputError("reports are sent in the clear")

    with pytest.raises(InputError, match="in the clear"):
        uplink_round(Stage(check=check), name="scaffold")
    uplink_round(Stage(check=check), name="fedavg")


def test_bits_are_counted_stage_by_stage():
    update = {"params": {"w": jnp.zeros((3, 5)), "b": jnp.zeros(5)}, "batch_stats": {"mean": jnp.zeros(5)}}
    upload = Upload(update, {"loss": jnp.zeros(())}, jnp.zeros(()), jnp.zeros(()))
    single_bit = Stage(bits=lambda bits, shapes: bits / 32)
    with_norm = Stage(bits=lambda bits, shapes: bits + 1)
    everything = Stage(collections="all", bits=lambda bits, shapes: bits / 2)
    rest = 3 * 32
    assert count_bits((), upload) == 32 * 25 + rest
    assert count_bits((single_bit,), upload) == 20 + 32 * 5 + rest
    assert count_bits((single_bit, with_norm), upload) == 21 + 32 * 5 + rest
    assert count_bits((single_bit, everything), upload) == (20 + 32 * 5) / 2 + rest
