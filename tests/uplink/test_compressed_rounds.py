"""Rounds whose updates are compressed."""

import warnings

import jax
import numpy as np
import pytest

from fedjax_het.engine.parallel.layout import chunked, sharded
from fedjax_het.engine.round.participation import bernoulli
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import coordinate_median, krum, minimum_diameter_mean, multi_krum
from fedjax_het.uplink import drive, majority_vote, quantize, sign, top_k
from tests.harness import compose, difference, is_equal, reference_run, run

pytestmark = pytest.mark.extended

UNIFORM = {"weighting": "uniform"}


def test_a_compressor_that_sends_everything_gives_the_same_bits_and_keeps_no_error():
    state, _ = run(compose("fedavg", change={"uplink": (top_k(1.0, feedback="classic"),)}))
    expected, _ = reference_run("fedavg")
    assert is_equal(state.server.shared, expected.server.shared)
    for leaf in jax.tree.leaves(state.clients.memory["uplink"]):
        np.testing.assert_array_equal(leaf, 0)


def test_the_server_of_ef21_steps_by_the_mean_of_what_all_clients_keep():
    """Absent clients keep what they had, which stays in the mean."""
    round = compose(
        "fedavg",
        norm="none",
        options=UNIFORM,
        change={"uplink": (top_k(0.25, feedback="ef21"),)},
        participation=bernoulli(0.6),
    )
    before, kept_by_absent = run(round, rounds=0)[0], 0
    for number in (1, 2, 3):
        after, _ = run(round, rounds=number)
        (kept,), (mean,) = after.clients.memory["uplink"], after.server.uplink
        means = jax.tree.map(lambda x: np.mean(np.asarray(x, np.float64), axis=0), kept)
        assert difference(means, mean) < 1e-6
        moved = jax.tree.map(lambda new, old: new - old, after.server.shared, before.server.shared)
        assert difference(mean, moved) < 1e-4
        for client in np.flatnonzero(np.asarray(after.clients.rounds == before.clients.rounds)):
            kept_by_absent += 1
            own = [jax.tree.map(lambda x, i=client: x[i], state.clients.memory) for state in (before, after)]
            assert is_equal(*own)
        before = after
    assert 0 < kept_by_absent < 15


def test_every_parameter_moves_by_the_step_of_the_vote():
    round = compose("fedavg", norm="none", options=UNIFORM, change={"uplink": (majority_vote(2**-7),)})
    start, end = (run(round, rounds=number)[0].server.shared for number in (0, 1))
    moved = jax.tree.map(lambda new, old: new - old, end, start)
    for leaf in jax.tree.leaves(moved):
        np.testing.assert_allclose(np.abs(leaf), 2**-7, rtol=1e-4)


@pytest.mark.parametrize("stage", [majority_vote(0.1), top_k(feedback="ef21")])
def test_stages_that_need_the_plain_mean_refuse_other_servers(stage):
    for name in ("fedavg", "fedld"):
        with pytest.raises(InputError, match="plain mean"):
            compose(name, change={"uplink": (stage,)})


def test_feedback_warns_of_rules_that_leave_out_whole_updates():
    stages = {"uplink": (top_k(feedback="classic"),)}
    for rule in (krum(), multi_krum(), minimum_diameter_mean()):
        with pytest.warns(UserWarning, match="discards whole updates"):
            compose("fedavg", change={"aggregator": rule} | stages)
    with warnings.catch_warnings(action="error"):
        compose("fedavg", change={"aggregator": coordinate_median()} | stages)
        compose("fedavg", change={"aggregator": krum(), "uplink": (top_k(),)})


@pytest.mark.slow
@pytest.mark.parametrize("layout", [chunked(2), sharded(2)], ids=str)
@pytest.mark.parametrize(
    "stages",
    [
        (quantize(16, rotated=True, scope="model", feedback="classic"),),
        (drive("min_mse", feedback="ef21"),),
        (sign(feedback="classic"), top_k(0.5, feedback="ef21+")),
    ],
    ids=["rotated", "drive", "sign_then_top_k"],
)
def test_layouts_agree(stages, layout):
    plain, other = (
        run(
            compose(
                "fedavg",
                norm="group",
                options=UNIFORM,
                change={"uplink": stages},
                participation=bernoulli(0.6),
                **options,
            )
        )[0]
        for options in ({}, {"layout": layout})
    )
    assert difference(plain.server, other.server) < 1e-4
    rows = lambda state: jax.tree.map(lambda x: np.asarray(x)[:5], state.clients)  # noqa: E731
    assert difference(rows(plain), rows(other)) < 1e-4
