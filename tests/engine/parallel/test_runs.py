"""Equality of the runs of a sweep, trained as one program, with runs trained alone."""

import warnings
from dataclasses import replace
from functools import partial
from typing import Annotated, get_origin

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.float64 import in_double
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.client.optimizers import torch_sgd
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine import Simulation, Sweep, chunked, flatten_evaluation, sharded, vmapped
from fedjax_het.engine.execution.cost import temporary_bytes
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.engine.execution.trace import trace_round
from fedjax_het.engine.parallel.compilation import Program
from fedjax_het.engine.parallel.runs import map_over_runs
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from fedjax_het.validation import constraints
from tests.harness import algorithm, federation, federation_of, model, network_of, supply

RATES = (0.01, 0.07)
OF_ITS_OWN = [
    pytest.param("fedprox", "mu", (0.01, 0.3), marks=pytest.mark.slow),
    ("fedld", "lam", (0.03, 0.1)),
    pytest.param("fedmgc", "fraction", (0.3, 0.7), marks=pytest.mark.slow),
    pytest.param("harmofl", "alpha", (0.05, 0.5), marks=pytest.mark.slow),
    pytest.param("fedadam", "server_learning_rate", (0.01, 0.1), marks=pytest.mark.slow),
]
UNUSED = {  # options that these do not support
    **dict.fromkeys(("scaffold", "fedgamma", "dsgt"), ("momentum", "weight_decay")),
    **dict.fromkeys(("fedcm", "mofedsam"), ("momentum",)),
    "perfedavg": ("delta",),
}


def branching(mu):
    return algorithm("fedavg") if mu == 0 else algorithm("fedprox", mu=mu)


def with_momentum(momentum):
    return replace(algorithm("fedavg"), server_optimizer=torch_sgd(1.0, momentum))


def sweep(name, values, **options):
    return Sweep(partial(algorithm, name, **options), values)


def build(algorithm, num_clients=5, network=None, **options):
    options = {"rounds": 3, "evaluate_every": 3, "participation": participation.uniform(3)} | options
    chosen = algorithm.algorithms[0] if isinstance(algorithm, Sweep) else algorithm
    return Simulation(algorithm, network or model(), supply(chosen, federation(num_clients)), **options)


def train(simulation):
    state, metrics = simulation.advance(simulation.start(), 3)
    return {**flatten_evaluation(simulation.evaluate(state)), "loss": metrics.loss, "cohort": metrics.cohort}


def check(chosen, seed=0, num_seeds=1, **options):
    """All results of each run of a sweep, trained with the others and alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none about float64 hyperparameters
        together = train(build(chosen, seed=seed, num_seeds=num_seeds, **options))
    seeds = [seed] * len(chosen.algorithms) if isinstance(seed, int) else seed
    for i, (single, first) in enumerate(zip(chosen.algorithms, seeds, strict=True)):
        alone = train(build(single, seed=first, num_seeds=num_seeds, **options))
        part = slice(i * num_seeds, (i + 1) * num_seeds)
        for name, values in alone.items():
            np.testing.assert_allclose(together[name][part], values, rtol=2e-5, atol=2e-6, err_msg=name)
    assert len(np.unique(together["loss"][:, -1])) > 1


@pytest.mark.extended
@pytest.mark.parametrize(("name", "option", "values"), OF_ITS_OWN)
def test_a_sweep_over_an_option_equals_runs_alone(name, option, values):
    check(sweep(name, {option: values}))


def test_hyper_parameters_are_what_python_numbers_would_be():
    """0.7 * 10 is 7 in Python and 6.9999998 in float32; with bfloat16 the product is bfloat16."""
    rates = sweep("fedprox", {"mu": (0.7, 0.3)}).hyper_parameters()["mu"]
    tenths = jax.vmap(lambda rate: in_double(lambda ten: jnp.floor(rate * ten).astype(jnp.float32))(jnp.float32(10)))
    assert tenths(rates).tolist() == jax.jit(tenths)(rates).tolist() == [7, 3]
    assert jax.lax.map(lambda rate: rate * jnp.ones(2, jnp.bfloat16), rates).dtype == jnp.bfloat16


@pytest.mark.slow
def test_swept_options_keep_the_precision_of_float64():
    """.7 of 10 axes are 7, and float32's .7 of 10 are 6."""
    chosen = sweep("fedld", {"fraction": (0.7, 0.3, 1.0), "lam": (0.1, 0.03, 0)}, aggregation={"rounding": "truncate"})
    check(chosen, participation=participation.full(), num_clients=10)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [chunked(1), sharded(2, 1)], ids=str)
def test_a_sweep_with_seeds_equals_runs_alone_in_every_layout(layout):
    check(sweep("scaffold", {"learning_rate": RATES}), seed=(0, 5), num_seeds=2, layout=layout)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), [("fedprox", "mu"), ("fedld", "lam")])
def test_a_vmapped_sweep_as_on_accelerators_equals_runs_alone(monkeypatch, name, option):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    check(sweep(name, {option: (0.01, 0.3)}))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [vmapped, sharded(2, 1)], ids=str)
def test_on_cpus_several_seeds_have_the_bits_of_runs_of_one_seed(layout):
    together = train(build(algorithm("scaffold"), seed=(3, 8), layout=layout))
    for i, seed in enumerate((3, 8)):
        alone = train(build(algorithm("scaffold"), seed=seed, layout=layout))
        for name, values in alone.items():
            np.testing.assert_array_equal(together[name][i : i + 1], values, err_msg=name)


def test_a_loop_over_runs_is_a_vectorized_program():
    def scale(values, shared):
        return {"scaled": shared * values, "sum": values.sum()}

    arguments = jnp.arange(6.0).reshape(3, 2), jnp.arange(2.0)
    mapped = jax.jit(map_over_runs(scale, (0, None), 1))
    loop = Program("", mapped, arguments, (0, None), 3).begin_compilation().result()
    chex.assert_trees_all_equal(loop(*arguments), jax.vmap(scale, (0, None))(*arguments))
    one = Program("", mapped, (arguments[0][:1], arguments[1])).begin_compilation().result()
    assert temporary_bytes(loop) == (3 + 1) * temporary_bytes(one)  # the results, and those of one run


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_sweep_over_the_learning_rate_equals_runs_alone_for_every_algorithm(name):
    check(sweep(name, {"learning_rate": RATES}), network=network_of(name))


@pytest.mark.extended
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_number_of_every_algorithm_can_be_swept(name):
    """All at once, by tracing only. Options that also take other types (HarmoFL's band) may raise an error."""
    numbers = {
        option: [0.3, 0.6]
        for option, kind in constraints(ALGORITHMS[name]).items()
        if get_origin(kind) is Annotated and kind.__origin__ is float and option not in UNUSED.get(name, ())
    }
    job = RunSpec(sweep(name, numbers), network_of(name), federation_of(name), participation.uniform(3), 1, 1, (0, 0))
    assert "learning_rate" in numbers and trace_round(job, vmapped).shapes.metrics.cohort.shape == (3,)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (sweep("fedavg", {"learning_rate": RATES, "batch_size": (4, 8)}), r"^batch_size: cannot be swept, .*program"),
        (Sweep(branching, {"mu": (0, 0.1)}), r"^mu: cannot be swept, .*boolean conversion.* Run a simulation for each"),
        (
            Sweep(with_momentum, {"momentum": (0.5, 0)}),
            r"^momentum=0\.0: cannot be swept, .*same run outside a sweep.*server/optimizer/0/",
        ),
    ],
    ids=["size", "branch", "state"],
)
def test_sweeping_an_option_that_changes_the_program_is_refused(chosen, message):
    with pytest.raises(InputError, match=message):
        build(chosen)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mu": (0.1, -1.0)}, "^mu: must be a finite number of at least 0, not -1.0"),
        ({"mu": ("a", "b")}, "^mu: sweeps need numbers, got 'a'"),
        ({"mu": (True, False)}, "^mu: sweeps need numbers, got True"),
        ({"mu": (0.1, 0.2), "learning_rate": (0.1,)}, "^values: hyperparameters need the same number of values"),
        ({"mu": ()}, "^values: hyperparameters need .* at least one, got {'mu': 0}"),
    ],
)
def test_values_are_checked_before_anything_is_traced(values, message):
    with pytest.raises(InputError, match=message):
        sweep("fedprox", values)


def test_the_error_for_a_list_of_algorithms_says_how_to_write_a_sweep():
    with pytest.raises(InputError, match=r"^algorithm: expected an Algorithm, or a Sweep\(factory, .* got \[Al"):
        build([algorithm("fedavg"), algorithm("fedavg")])


@pytest.mark.slow
def test_the_cost_covers_all_runs():
    fewest, largest = build(sweep("fedavg", {"epochs": (1, 2)})).cost.steps_per_client
    assert fewest == build(algorithm("fedavg", epochs=1)).cost.steps_per_client[0]
    assert largest == build(algorithm("fedavg", epochs=2)).cost.steps_per_client[1]


@pytest.mark.slow
def test_diagnostics_of_a_sweep_equal_those_of_runs_alone():
    chosen = {name: DIAGNOSTICS[name] for name in ("norms", "spectrum", "decomposition")}
    swept = sweep("fedld", {"lam": (0.01, 0.5)})
    together = build(swept, diagnostics=chosen)
    found = together.diagnose(together.start())
    for i, single in enumerate(swept.algorithms):
        alone = build(single, diagnostics=chosen)
        expected = alone.diagnose(alone.start())
        jax.tree.map(lambda x, y, i=i: np.testing.assert_allclose(x[i], y[0], rtol=1e-4, atol=1e-5), found, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": (1, 2, 3)}, "seed: got 3 seeds for 2 values of a sweep"),
        ({"seed": ()}, "seed: got 0 seeds for 2 values of a sweep"),
    ],
)
def test_invalid_options_of_a_sweep_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        build(sweep("fedavg", {"learning_rate": RATES}), layout=vmapped, **options)
