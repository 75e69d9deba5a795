"""Speeds of devices, deadlines, and the virtual clock."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.engine.parallel.layout import chunked
from fedjax_het.engine.round.program import make_round
from fedjax_het.engine.round.timing import from_file, log_normal
from fedjax_het.errors import InputError
from tests.harness import algorithm, federation, is_equal, model, run

pytestmark = pytest.mark.extended

STEPS = -(-np.asarray(federation().data.train.count) // 8)  # of batches of 8, in one epoch
SECONDS = np.array([1.0, 2.0, 3.0, 4.0, 5.0])  # of one step


def timed_round(timing, name: str = "fedavg", **options):
    return make_round(algorithm(name), model(), 5, timing=timing, prepare=federation().prepare, **options)


@pytest.fixture
def speeds(tmp_path):
    path = tmp_path / "speeds.csv"
    lines = [f"{client},{seconds},0.5" for client, seconds in enumerate(SECONDS)]
    path.write_text("\n".join(["client,step_seconds,message_seconds", *lines[::-1]]))
    return str(path)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "fednova")]


@pytest.mark.parametrize("name", [*SLOW, "scaffold"])
def test_where_everyone_is_in_time_the_run_keeps_its_bits(name):
    expected, _ = run(make_round(algorithm(name), model(), 5, prepare=federation().prepare), rounds=2)
    for timing in (log_normal(), log_normal(deadline=1e6), log_normal(deadline=1e6, late="drop")):
        state, metrics = run(timed_round(timing, name), rounds=2)
        assert is_equal(state.server.shared, expected.server.shared)
        assert is_equal(state.clients, expected.clients)
        assert metrics[0].num_late == 0
        assert state.counters.seconds == pytest.approx(sum(metric.seconds for metric in metrics))


def test_without_a_deadline_a_round_lasts_as_long_as_its_slowest_client(speeds):
    _, (metrics,) = run(timed_round(from_file(speeds)), rounds=1)
    assert metrics.seconds == pytest.approx(max(STEPS * SECONDS + 0.5))


@pytest.mark.parametrize("layout", [None, chunked(2)], ids=str)
def test_clients_do_the_steps_that_they_have_time_for(speeds, layout):
    """A step of the last client takes longer than the deadline; the others do as many whole steps as fit."""
    round = timed_round(from_file(speeds, deadline=5.4, late="partial"), **({"layout": layout} if layout else {}))
    state = round.init(make_key(0), federation().data)
    state, metrics, said = jax.jit(round.step_with_messages)(state, federation().data, make_key(0))
    expected = np.minimum(STEPS, np.floor((5.4 - 0.5) / SECONDS))
    np.testing.assert_array_equal(said.uploads.num_steps, expected)
    np.testing.assert_array_equal(state.clients.rounds, expected > 0)
    assert expected[-1] == 0 and metrics.num_late == 1 and metrics.num_reporting == 4
    assert metrics.seconds == pytest.approx(5.4)


@pytest.mark.slow
def test_partial_work_is_the_beginning_of_the_usual_work():
    """A deadline for two steps gives the same result as two steps per round, if the batches are the same."""
    round = timed_round(log_normal(sigma=0.0, deadline=2.5))
    two = make_round(algorithm("fedavg", steps=2), model(), 5, timing=log_normal(), prepare=federation().prepare)
    has_two = STEPS >= 2
    assert has_two.sum() >= 3
    key, data = make_key(0), federation().data
    said = [jax.jit(timed.step_with_messages)(timed.init(key, data), data, key)[2] for timed in (round, two)]
    for first, second in zip(*(jax.tree.leaves(messages.uploads.update) for messages in said), strict=True):
        np.testing.assert_array_equal(np.asarray(first)[has_two], np.asarray(second)[has_two])


def test_late_clients_are_dropped_and_keep_their_state(speeds):
    deadline = float(np.sort(STEPS * SECONDS + 0.5)[2] + 0.01)
    state, metrics = run(timed_round(from_file(speeds, deadline=deadline, late="drop"), "scaffold"), rounds=2)
    in_time = deadline >= STEPS * SECONDS + 0.5
    np.testing.assert_array_equal(state.clients.rounds, 2 * in_time)
    assert metrics[0].num_late == (~in_time).sum() and metrics[0].num_nonfinite == 0
    for leaf in jax.tree.leaves(state.clients.memory["control"]):
        assert not np.any(np.asarray(leaf)[~in_time])
    assert state.counters.seconds == pytest.approx(2 * deadline)


def test_a_client_is_as_fast_whoever_else_takes_part():
    timing = log_normal(sigma=1.0, speed_seed=3)
    few = jnp.stack([timing.seconds(jnp.int32(i), 10)[0] for i in range(3)])
    many = jax.vmap(lambda i: timing.seconds(i, 2000)[0])(jnp.arange(2000))
    np.testing.assert_array_equal(few, many[:3])
    logarithms = np.log(many)
    assert abs(logarithms.mean()) < 5 / 2000**0.5 and abs(logarithms.std() - 1) < 5 / 4000**0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,step_seconds\n0,1", "no column message_seconds. Its first line must be client,step_seconds,message"),
        ("client,step_seconds,message_seconds", "no line below"),
        ("client,step_seconds,message_seconds\n0,fast,1", "line 2: step_seconds must be a number, and is 'fast'"),
        (
            "client,step_seconds,message_seconds\n0,1,1\n1,0,1",
            r"line 3: step_seconds: must be a number in \[1e-09, 1000000000.0\], not 0.0",
        ),
        ("client,step_seconds,message_seconds\n0,1e39,1", "line 2: step_seconds: .* not 1e\\+39"),
        ("client,step_seconds,message_seconds\n0,1,1e-50", "line 2: message_seconds: .* which is 0 in float32"),
        ("client,step_seconds,message_seconds\n-1,1,1", "line 2: client: must be a whole number from 0"),
        ("client,step_seconds,message_seconds\n0,1,1\n2,1,1", "including client 1"),
        ("client,step_seconds,message_seconds\n0,1,1\n0,1,1", "including client 1"),
        ("client,step_seconds,message_seconds\n0,inf,1", "line 2: step_seconds must be finite"),
    ],
)
def test_a_wrong_file_of_speeds_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "speeds.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        from_file(str(path))


def test_a_file_without_lines_for_all_clients_is_refused_when_the_round_is_built(tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text("client,step_seconds,message_seconds\n0,1,1\n1,1,1")
    with pytest.raises(InputError, match="has the speeds of 2 clients, but there are 5"):
        timed_round(from_file(str(path)))
