"""Laws and refusals of the Gaussian mechanism."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import ReceiveView, Sent, Stage
from fedjax_het.engine import Simulation
from fedjax_het.engine.parallel.layout import chunked, sharded, vmapped
from fedjax_het.engine.round.participation import full, poisson
from fedjax_het.engine.round.uplink import count_bits
from fedjax_het.errors import InputError
from fedjax_het.types import Broadcast, ServerView, Upload
from fedjax_het.uplink import clip, gaussian_mechanism
from fedjax_het.uplink._gaussian import split_noise
from tests.golden.family_privacy import run_stage
from tests.harness import algorithm, compose, difference, federation, is_equal, model, run

UNIFORM = {"weighting": "uniform"}
NOBODY = full()._replace(draw=lambda key, num_clients, number: (jnp.arange(num_clients), jnp.zeros(num_clients, bool)))


def private(*arguments, name: str = "fedavg", options=UNIFORM, after=(), before=(), norm: str = "none", **changes):
    rest = {key: changes.pop(key) for key in ("layout", "participation") if key in changes}
    stage = gaussian_mechanism(*arguments, **changes)
    return compose(name, norm=norm, options=options, change={"uplink": (*before, stage, *after)}, **rest)


def receive(stage: Stage, like, key, expected: float = 4.0):
    """What the server makes of a round without reports."""
    nobody = ServerView(
        Broadcast(jnp.asarray(0), like, {}),
        Upload({}, {}, jnp.zeros(2), jnp.zeros(2)),
        None,
        jnp.zeros(2, bool),
        2,
        None,
    )
    return stage.receive(tree.zeros_like(like), ReceiveView(nobody, {}, (), key, 2, expected))[0]


# ---- the bound -------------------------------------------------------------------------------------------------------
@pytest.mark.extended
@pytest.mark.parametrize("per_layer", [False, True])
def test_no_client_moves_the_sum_by_more_than_the_bound(per_layer):
    """Removed or added: C; replaced by another: 2 C; whatever its update is."""
    rng = np.random.default_rng(0)
    others, bound = rng.normal(size=(4, 9)).astype(np.float32), 0.7
    stage = gaussian_mechanism(bound, 0.0, per_layer=per_layer)

    def total(*more) -> np.ndarray:
        return run_stage(stage, np.stack([*others, *more]).astype(np.float32), 1.0, sizes=[5, 4])[0]

    worst = [np.full(9, 1e30), -np.eye(9)[0] * 1e9, np.zeros(9), rng.normal(size=9), np.full(9, 1e-30)]
    sums = [total(update) for update in worst]
    for result in sums:
        assert np.linalg.norm(result - total()) <= bound * (1 + 1e-6)
        for other in sums:
            assert np.linalg.norm(result - other) <= 2 * bound * (1 + 1e-6)
    np.testing.assert_allclose(total(np.zeros(9)), total(), rtol=1e-6)


@pytest.mark.extended
def test_without_noise_and_clipping_the_result_is_the_plain_mean_bit_for_bit():
    expected, _ = run(compose("fedavg", norm="none", options=UNIFORM))
    state, _ = run(private(1e9, 0.0))
    assert is_equal(state.server.shared, expected.server.shared)


@pytest.mark.slow
def test_the_sum_is_divided_by_the_expected_number_whoever_came():
    """With a fraction of the clients the update is that fraction of their mean, not their mean."""
    participation = poisson(0.5)
    plain, (metrics,) = run(compose("fedavg", norm="none", options=UNIFORM, participation=participation), rounds=1)
    state, _ = run(private(1e9, 0.0, participation=participation), rounds=1)
    start = run(private(1e9, 0.0), rounds=0)[0].server.shared
    assert 0 < metrics.num_reporting != 2.5
    moved = tree.subtract(plain.server.shared, start)
    expected = tree.add(start, tree.scale(float(metrics.num_reporting) / 2.5, moved))
    assert difference(expected, state.server.shared) < 1e-6


# ---- the noise -------------------------------------------------------------------------------------------------------
def test_noise_is_gaussian_of_the_stated_deviation_and_differs_everywhere():
    like, stage = {"params": {"a": jnp.zeros(100_000), "b": jnp.zeros(100_000)}}, gaussian_mechanism(0.5, 3.0)
    noise = receive(stage, like, make_key(0))["params"]
    deviation = 3.0 * 0.5 / 4
    for values in noise.values():
        assert abs(float(values.mean())) < 5 * deviation / 1e5**0.5
        assert float(values.std()) == pytest.approx(deviation, rel=5 / (2e5) ** 0.5)
        assert float((values**4).mean()) == pytest.approx(3 * deviation**4, rel=0.06)
        assert len(np.unique(values)) > 99_000  # few float32 numbers come twice
    assert abs(np.corrcoef(noise["a"], noise["b"])[0, 1]) < 5 / 1e5**0.5
    for other in (
        receive(stage, like, make_key(1)),
        receive(gaussian_mechanism(0.5, 3.0, noise_seed=7), like, make_key(0)),
    ):
        assert abs(np.corrcoef(noise["a"], other["params"]["a"])[0, 1]) < 5 / 1e5**0.5
    doubled = receive(gaussian_mechanism(0.5, 6.0), like, make_key(0))["params"]
    np.testing.assert_allclose(doubled["a"], 2 * noise["a"], rtol=1e-6)


@pytest.mark.slow
def test_a_round_without_reports_steps_by_the_noise_which_no_layout_changes():
    start = run(private(1.0, 2.0), rounds=0)[0].server.shared["params"]
    noise = []
    for layout in (vmapped, sharded(2)):
        state, metrics = run(private(1.0, 2.0, participation=NOBODY, layout=layout), rounds=2)
        assert not sum(metric.num_reporting for metric in metrics)
        noise.append(tree.subtract(state.server.shared["params"], start))
    assert is_equal(*noise)
    values = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(noise[0])])
    assert values.std() == pytest.approx(2.0 / 5 * 2**0.5, rel=0.2)


@pytest.mark.slow
def test_the_noise_does_not_depend_on_who_came():
    silent, noisy = (run(private(1e-3, z), rounds=1)[0].server.shared for z in (0.0, 50.0))
    alone = run(private(1e-3, 50.0, participation=NOBODY), rounds=1)[0].server.shared
    start = run(private(1e-3, 50.0), rounds=0)[0].server.shared
    assert difference(tree.subtract(noisy, silent), tree.subtract(alone, start)) < 1e-3


@pytest.mark.slow
def test_noise_at_clients_serves_an_aggregator_of_another_kind():
    state, (metrics,) = run(private(0.5, 0.1, name="fedld", noise_at="clients", layout=chunked(2)), rounds=1)
    assert metrics.num_reporting == 5 and not metrics.is_nonfinite.any()
    plain, _ = run(private(0.5, 0.0, name="fedld", noise_at="clients"), rounds=1)
    assert difference(plain.server.shared, state.server.shared) > 1e-3


# ---- the adaptive bound ----------------------------------------------------------------------------------------------
def test_the_bound_converges_to_the_quantile_of_still_norms():
    norms = np.linspace(0.5, 4.0, 41)[:, None]
    for gamma in (0.2, 0.5, 0.9):
        stage = gaussian_mechanism(0.1, 0.0, target_quantile=gamma)
        step = jax.jit(lambda bound, stage=stage: run_stage_state(stage, norms, bound))
        bound = stage.init_server({"params": {}}, 0, 0)
        for _ in range(200):
            bound = step(bound)
        assert abs(np.log(float(bound) / np.quantile(norms, gamma))) < 0.2


def run_stage_state(stage: Stage, norms: np.ndarray, bound):
    """The bound after a round in which clients have these norms."""
    below = jnp.sum(jnp.where(norms <= bound, 0.5, -0.5))
    like = {"params": jnp.zeros(1)}
    present = jnp.ones(len(norms), bool)
    server = ServerView(
        Broadcast(jnp.asarray(0), like, {}), Upload({}, {}, None, None), None, present, len(norms), None
    )
    view = ReceiveView(server, {"count": below}, bound, make_key(0), len(norms), float(len(norms)))
    return stage.receive(like, view)[1]


@pytest.mark.slow
def test_the_bound_is_published_and_used_from_the_next_round_on():
    adaptive = private(1e-3, 0.0, target_quantile=0.5)
    state, _ = run(adaptive, rounds=1)
    still, _ = run(private(1e-3, 0.0), rounds=1)
    assert difference(still.server.shared, state.server.shared) < 1e-6
    assert float(state.server.uplink[0]) == pytest.approx(1e-3 * np.exp(0.2 * 0.5))  # all five are above
    assert difference(run(private(1e-3, 0.0), rounds=2)[0].server.shared, run(adaptive, rounds=2)[0].server.shared) > 0


def test_both_releases_together_cost_what_was_asked_for():
    for z, sigma in ((0.5, 3.0), (1.0, 0.6), (9.0, 50.0)):
        value = split_noise(z, sigma)
        # The Rényi divergence of a Gaussian of order alpha is alpha / (2 z^2), and adds up.
        assert value**-2 + (2 * sigma) ** -2 == pytest.approx(z**-2, rel=1e-12)
    with pytest.raises(InputError, match=r"count_noise: 0\.5 is too small"):
        split_noise(1.0, 0.5)


# ---- buffers, bits and refusals --------------------------------------------------------------------------------------
@pytest.mark.slow
def test_batch_statistics_stay_with_the_server_or_are_private_too():
    start = run(compose("fedavg"), rounds=0)[0].server.shared
    kept = run(private(1.0, 0.5, norm="batch", buffers="keep_server"), rounds=1)[0].server.shared
    assert is_equal(kept["batch_stats"], start["batch_stats"]) and not is_equal(kept["params"], start["params"])
    stage = gaussian_mechanism(1.0, 0.5, buffers="in_vector")
    noisy = receive(stage, start, make_key(0))
    assert all(np.all(leaf != 0) for leaf in jax.tree.leaves(noisy))


def test_bits_are_those_of_what_is_sent():
    update = {"params": {"w": jnp.zeros(10)}, "batch_stats": {"mean": jnp.zeros(5)}}
    upload = Upload(update, {}, jnp.zeros(()), jnp.zeros(()))
    plain = count_bits((), upload)
    for stage, difference_in_bits in (
        (gaussian_mechanism(1.0, buffers="in_vector"), 0),
        (gaussian_mechanism(1.0, buffers="keep_server"), -160),
        (gaussian_mechanism(1.0, buffers="in_vector", target_quantile=0.5), 1),
    ):
        assert count_bits((stage,), upload) - plain == difference_in_bits


SENDS, RECEIVES = Stage(send=lambda update, view: Sent(update)), Stage(receive=lambda update, view: (update, ()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {}}, "plain mean.*weights by examples.*weighting='uniform'"),
        ({"name": "fedld"}, "plain mean"),
        ({"name": "scaffold", "options": {}}, r"reports \(control.*without noise"),
        ({"name": "scaffold", "options": {}, "noise_at": "clients"}, r"reports \(control.*without noise"),
        ({"before": (Stage(corrupt=lambda stack, view: stack),)}, "attackers who know all updates"),
        ({"before": (RECEIVES,)}, "EF21"),
        ({"before": (RECEIVES,), "noise_at": "clients"}, "EF21"),
        ({"after": (SENDS,)}, "Put gaussian_mechanism last"),
        ({"target_quantile": 0.5, "per_layer": True}, "target_quantile: not supported"),
    ],
)
def test_what_would_void_the_guarantee_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        private(1.0, 1.0, **changes)


@pytest.mark.extended
def test_a_missing_multiplier_and_unprotected_statistics_are_refused():
    with pytest.raises(InputError, match="noise_multiplier: not set"):
        private(1.0)
    with pytest.raises(InputError, match="buffers: the model has batch_stats"):
        run(private(1.0, 1.0, norm="batch"), rounds=0)
    for name in ("fedavg", "fedld"):
        with pytest.raises(InputError, match=r"the aggregator reads clients' numbers of examples.*weighting='uniform'"):
            run(private(1.0, 1.0, name=name, options={}, noise_at="clients"), rounds=1)


@pytest.mark.extended
@pytest.mark.parametrize("noise_at", ["server", "clients"])
def test_moments_of_clients_are_refused_and_constants_are_not(noise_at):
    stage = gaussian_mechanism(1.0, 1.0, noise_at=noise_at)
    fedavg = replace(algorithm("fedavg", **UNIFORM), uplink=(stage,))
    with pytest.raises(InputError, match=r"standardise: the moments of all clients' examples .*Set known constants"):
        Simulation(fedavg, model("none"), federation(standardise=True), rounds=1)
    assert Simulation(fedavg, model("none"), federation(standardise=((0.5, 0.25),)), rounds=1).rounds == 1


def test_a_clip_before_the_mechanism_and_further_stages_after_local_noise_are_allowed():
    private(1.0, 1.0, before=(clip(2.0),), after=(RECEIVES,))
    private(1.0, 1.0, noise_at="clients", after=(SENDS,))
