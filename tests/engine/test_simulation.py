from dataclasses import replace
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_het import data, models, simulate
from fedjax_het._internal.keys import make_key
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.engine import Simulation, Sweep, chunked, flatten_evaluation, sharded, vmapped
from fedjax_het.engine.parallel import compilation
from fedjax_het.engine.parallel.compilation import jit_initializer, jit_program
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError, NonFiniteError
from tests.compilation import HAS_EMITTERS_FLAG
from tests.harness import algorithm, difference, federation, is_equal, model, without_padding


@pytest.fixture(scope="module")
def simulation():
    return Simulation(algorithm("fedbn"), model(), federation(), rounds=25, cohort_size=3, evaluate_every=10)


@pytest.mark.extended
def test_advancing_and_evaluating_compile_nothing(simulation, monkeypatch):
    """Rounds and evaluation are compiled when the simulation is made; 25 rounds in three blocks compile nothing."""
    compiled = []
    state = simulation.start()
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    try:
        for num_rounds in (10, 10, 5):
            state, metrics = simulation.advance(state, num_rounds)
            assert metrics.loss.shape == (1, num_rounds)
            simulation.evaluate(state)
    finally:
        jax.monitoring.clear_event_listeners()
    assert not compiled
    assert np.asarray(state.server.round).tolist() == [25]


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="only CPUs have the level")
def test_quick_compilation_of_the_first_state_gives_the_same_weights(monkeypatch):
    """Up to rounding (JAX 0.10 gives the same bits, 0.12 does not). A level that the user has set is kept."""
    draw, options = models.unet(2, width=0.125, levels=1).init, []
    jit = jax.jit
    monkeypatch.setattr(jax, "jit", lambda *args, **kwargs: options.append(kwargs) or jit(*args, **kwargs))
    starts = lambda key: draw(key, np.zeros((2, 8, 8, 1), "float32"))  # noqa: E731
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=2")
    jit_initializer(starts, vmapped, None, make_key(0))
    monkeypatch.setenv("XLA_FLAGS", "")
    quick, arguments = jit_initializer(starts, vmapped, None, make_key(0))
    optimized = vmapped.jit(starts, None, compiler_options={"xla_backend_optimization_level": 3})
    assert [bool(option.get("compiler_options")) for option in options] == [False, True, True]
    chex.assert_trees_all_close(quick(*arguments), optimized(make_key(0)), rtol=1e-6, atol=1e-7)


def test_rare_programs_are_compiled_with_less_effort(monkeypatch):
    jit, options = jax.jit, []
    monkeypatch.setattr(jax, "jit", lambda *args, **kwargs: options.append(kwargs) or jit(*args, **kwargs))
    jit_program(jnp.negative, vmapped, is_quick=True)  # the flags of tests are respected
    monkeypatch.setenv("XLA_FLAGS", "")
    jit_program(jnp.negative, vmapped)
    jit_program(jnp.negative, vmapped, is_quick=True)(jnp.ones(3))
    with tracing_for("tpu"):
        jit_program(jnp.negative, vmapped)
        jit_program(jnp.negative, vmapped, is_quick=True)
        jit_initializer(jnp.negative, vmapped, None, jnp.zeros(1))
    expected = [False, False, HAS_EMITTERS_FLAG, False, True, True]
    assert [bool(option.get("compiler_options")) for option in options] == expected


@pytest.mark.parametrize("effort", [0.5, None])
def test_an_effort_given_to_jax_is_kept_and_a_jax_without_the_setting_is_accepted(monkeypatch, effort):
    settings = SimpleNamespace() if effort is None else SimpleNamespace(jax_exec_time_optimization_effort=effort)
    monkeypatch.setattr(compilation, "jax", SimpleNamespace(config=settings))
    with tracing_for("tpu"):
        assert bool(compilation._quick_compiler_options()) == (effort is None)


@pytest.mark.every_case
@pytest.mark.extended
@pytest.mark.parametrize("is_swept", [False, True])
@pytest.mark.parametrize("layout", [vmapped, chunked(1), sharded(2, 1)], ids=str)
def test_rounds_and_initial_weights_are_traced_once(layout, is_swept):
    traces = []

    def count(forward):
        traces.append("round")
        return 0.0 * forward.outputs.logits.sum()

    def init(key, inputs):
        traces.append("weights")
        return network.init(key, inputs)

    def build(mu):
        fedprox = algorithm("fedprox", mu=mu)
        return replace(fedprox, objective=(*fedprox.objective, count))

    network, chosen = model(), Sweep(build, {"mu": (0.1, 0.2)}) if is_swept else build(0.1)
    counted = network._replace(init=init)
    built = Simulation(chosen, counted, federation(), rounds=25, evaluate_every=10, layout=layout)
    state = built.start()
    for num_rounds in (10, 10, 5):
        state, _ = built.advance(state, num_rounds)
    assert traces.count("round") == 1
    assert is_swept or traces.count("weights") == 1


@pytest.mark.extended
def test_a_round_calls_nothing_on_the_host(simulation):
    assert "callback" not in simulation.executor.program.as_text()


@pytest.mark.extended
def test_the_length_of_blocks_does_not_change_the_state(simulation):
    whole, parts = simulation.start(), simulation.start()
    whole, _ = simulation.advance(whole, 6)
    for num_rounds in (1, 3, 2):
        parts, _ = simulation.advance(parts, num_rounds)
    assert is_equal(whole, parts)


@pytest.mark.slow
def test_several_seeds_equal_simulations_of_one_seed():
    options = {"rounds": 4, "cohort_size": 3, "evaluate_every": 4}
    together = simulate(algorithm("fedld"), model("none"), federation(), num_seeds=2, seed=5, **options)
    for seed in (5, 6):
        alone = simulate(algorithm("fedld"), model("none"), federation(), seed=seed, **options)
        ours = jax.tree.map(lambda x, s=seed - 5: np.asarray(x)[s : s + 1], together.state.server.shared)
        assert difference(alone.state.server.shared, ours) < 1e-5
    assert together.train_loss.shape == (2, 4)
    mean, deviation = together.mean_and_std()["test/accuracy"]
    values = together.evaluation.test.accuracy[:, -1]
    assert (mean, deviation) == pytest.approx((values.mean(), values.std()))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [chunked(2), sharded(2)], ids=str)
def test_simulations_in_other_layouts_give_equal_results(layout):
    plain, other = (
        simulate(algorithm("scaffold"), model("none"), federation(), rounds=3, evaluate_every=3, layout=chosen)
        for chosen in (chunked(1), layout)
    )
    assert difference(without_padding(plain.state), without_padding(other.state)) < 1e-5
    assert difference(final_figures(plain), final_figures(other)) < 1e-4


def final_figures(history):
    return flatten_evaluation(jax.tree.map(lambda x: x[:, -1], history.evaluation))


@pytest.mark.extended
def test_the_cost_of_a_run_is_computed_from_its_shapes(simulation):
    facts = simulation.cost
    assert (facts.num_clients, facts.cohort_size) == (5, 3)
    counts = federation().data.train.count
    assert facts.steps_per_client == (-(-counts.min() // 8), -(-counts.max() // 8))
    num_shared, num_personal, num_statistics = (36 * 8 + 8 + 8 * 3 + 3), 2 * 8, 2 * 8
    assert facts.num_parameters == num_shared + num_personal
    assert facts.bytes_down == 4 * num_shared + 4  # and the round's number
    assert facts.bytes_up == 4 * num_shared + 8  # and the counts of examples and steps
    assert facts.bits_up == 8 * facts.bytes_up
    held = facts.held_bytes
    assert facts.peak_bytes > sum(held.values()) > 0 and facts.compile_seconds > 0
    assert held["examples"] == federation().examples.inputs.nbytes + federation().examples.labels.nbytes
    assert held["client states"] == 5 * (4 * num_personal + 4 * num_statistics + 4)


@pytest.mark.extended
def test_stops_are_the_evaluated_rounds_and_the_requested_multiples(simulation):
    assert list(simulation.stops()) == [10, 20, 25]
    assert list(simulation.stops(10, 7)) == [14, 20, 21, 25]
    assert [r for r in range(1, 26) if simulation.is_evaluated(r)] == [10, 20, 25]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"objective": (lambda forward: jnp.nan * jnp.sum(forward.outputs.logits),)},
            r"clients \[.*\] sent NaN or inf",
        ),
        ({"server_optimizer": optax.sgd(jnp.inf)}, r"the clients' updates are finite, but the server's result"),
    ],
)
def test_the_error_for_nonfinite_values_names_the_round_and_their_origin(change, message):
    exploding = replace(algorithm("fedavg"), **change)
    built = Simulation(exploding, model("none"), federation(), rounds=4, evaluate_every=4, on_nonfinite="raise")
    with pytest.raises(NonFiniteError, match=r"round 0: " + message):
        built.advance(built.start(), 4)


@pytest.mark.slow
def test_a_simulation_with_participation_evaluates_newcomers(capsys):
    held = data.toy(num_clients=4, image=(6, 6, 1), unseen_clients=2)
    history = simulate(
        algorithm("fedbn"),
        model(),
        held,
        rounds=12,
        evaluate_every=6,
        participation=participation.bernoulli(0.7, participation.uniform(3)),
        progress=True,
    )
    assert "12/12" in capsys.readouterr().out
    assert history.rounds == [6, 12]
    assert history.evaluation.newcomers.accuracy.shape == (1, 2, 2)
    assert history.evaluation.personal.accuracy.shape == (1, 2, 4)
    assert {"personal/accuracy_mean", "newcomers/accuracy_worst10", "test/loss"} <= history.mean_and_std().keys()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds"),
        ({"rounds": 1, "num_seeds": 0}, "num_seeds"),
        ({"rounds": 1, "evaluate_every": 0}, "evaluate_every"),
        ({"rounds": 1, "on_nonfinite": "ignore"}, r"on_nonfinite: unknown option 'ignore'\. Known: drop, raise\."),
        ({"rounds": 1, "cohort_size": 6}, "cohort_size"),
        ({"rounds": 1, "memory_budget": 0}, "memory_budget"),
        (
            {"rounds": 1, "client_states": "cloud"},
            r"client_states: unknown option 'cloud'\. Known: auto, device, disk, host\.",
        ),
        ({"rounds": 1, "examples": "disk"}, r"examples: unknown option 'disk'\. Known: auto, device, stream\."),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Simulation(algorithm("fedavg"), model(), federation(), **options)


def test_personal_on_test_without_a_test_set_is_refused():
    alone = replace(federation(), test=None)
    with pytest.raises(InputError, match="personal_on_test: there is no common test set"):
        Simulation(algorithm("fedbn"), model(), alone, rounds=1, personal_on_test=True)


@pytest.mark.extended
def test_full_participation_includes_every_client():
    built = Simulation(algorithm("fedavg"), model("none"), federation(), rounds=1, participation=participation.full())
    assert built.cost.cohort_size == 5


@pytest.mark.slow
def test_the_default_random_generator_of_jax_changes_nothing():
    """Keys name their generator, so a run under `JAX_DEFAULT_PRNG_IMPL=rbg` ends with the same bits."""

    def train():
        run = Simulation(algorithm("fedbn"), model(), federation(), rounds=2, cohort_size=3, evaluate_every=2)
        return run.advance(run.start(), 2)[0].server

    expected = train()
    with jax.default_prng_impl("rbg"):
        chex.assert_trees_all_equal(train(), expected)
