"""Resumed and streamed runs with stages that have memory, a deadline, and a virtual clock."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het.algorithm import Sent, Stage
from fedjax_het.engine import Checkpoints, Simulation
from fedjax_het.engine.round.timing import log_normal
from tests.engine.storage.test_checkpoint import advance_in_blocks, with_all_client_states
from tests.harness import algorithm, federation, is_equal, model

pytestmark = pytest.mark.extended


def send(update, view):
    """Send three quarters of the sum of the update and the last remainder, and keep the remainder."""
    whole = tree.add(update, view.memory)
    sent = tree.scale(0.75, whole)
    return Sent(sent, tree.subtract(whole, sent), {"sent": tree.squared_norm(sent)})


STAGE = Stage(
    send=send,
    init=lambda shared: {"params": tree.zeros_like(shared["params"])},
    init_server=lambda shared, num_clients, cohort_size: jnp.zeros(()),
    publish=lambda state: state,
    receive=lambda update, view: (update, view.state + view.statistics["sent"]),
)


@pytest.mark.slow
@pytest.mark.parametrize("place", [{}, {"client_states": "host", "examples": "stream"}], ids=["device", "streamed"])
def test_a_run_with_stages_and_a_clock_resumes_with_the_same_bits(place, tmp_path):
    simulation = Simulation(
        replace(algorithm("fedavg"), uplink=(STAGE,)),
        model(),
        federation(),
        rounds=4,
        cohort_size=3,
        evaluate_every=4,
        timing=log_normal(deadline=2.5),
        **place,
    )
    whole = (lambda state: with_all_client_states(state)) if place else (lambda state: state)
    expected = whole(advance_in_blocks(simulation, 4))
    advance_in_blocks(simulation, 2, directory=tmp_path)
    restored = Checkpoints(tmp_path, "me").restore(simulation.start())
    resumed, metrics = simulation.advance(restored, 2)
    assert is_equal(expected, whole(resumed))
    (kept,) = expected.clients.memory["uplink"]
    assert all(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(kept))
    assert expected.server.uplink[0] > 0
    assert float(expected.counters.seconds[0]) > float(np.sum(metrics.seconds)) > 0
