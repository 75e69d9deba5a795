"""Algorithms that differ in numbers alone, trained as one program, are what each is by itself."""

import jax
import numpy as np
import pytest

from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine import Simulation, chunked, flatten_evaluation, vmapped
from fedjax_het.engine.parallel import runs
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError, Unlike
from tests.harness import algorithm, federation, model

RATES = (0.01, 0.07)
OF_ITS_OWN = [
    pytest.param("fedprox", "mu", (0.01, 0.3), marks=pytest.mark.slow),
    ("fedld", "lam", (0.03, 0.1)),
    pytest.param("fedmgc", "fraction", (0.3, 0.7), marks=pytest.mark.slow),
    pytest.param("harmofl", "alpha", (0.05, 0.5), marks=pytest.mark.slow),
    pytest.param("fedadam", "server_learning_rate", (0.01, 0.1), marks=pytest.mark.slow),
]


def built(algorithms, **options):
    return Simulation(
        algorithms,
        model(),
        federation(),
        rounds=3,
        evaluate_every=3,
        **{"participation": participation.uniform(3)} | options,
    )


def trained(simulation):
    state, metrics = simulation.advance(simulation.start(), 3)
    return {**flatten_evaluation(simulation.evaluate(state)), "loss": metrics.loss, "cohort": metrics.cohort}


def check(algorithms, seed=0, num_seeds=1, **options):
    """Every figure of each, beside the others and alone."""
    together = trained(built(algorithms, seed=seed, num_seeds=num_seeds, **options))
    seeds = [seed] * len(algorithms) if isinstance(seed, int) else seed
    for i, (each, first) in enumerate(zip(algorithms, seeds, strict=True)):
        alone = trained(built(each, seed=first, num_seeds=num_seeds, **options))
        part = slice(i * num_seeds, (i + 1) * num_seeds)
        for name, values in alone.items():
            np.testing.assert_allclose(together[name][part], values, rtol=2e-5, atol=2e-6, err_msg=name)
    assert len(np.unique(together["loss"][:, -1])) > 1


@pytest.mark.parametrize(("name", "option", "values"), OF_ITS_OWN)
def test_options_of_an_algorithm(name, option, values):
    check([algorithm(name, **{option: value}) for value in values])


@pytest.mark.slow
def test_seeds_beside_options_in_chunks():
    algorithms = [algorithm("scaffold", learning_rate=rate) for rate in RATES]
    check(algorithms, seed=(0, 5), num_seeds=2, layout=chunked(1))


@pytest.mark.slow
def test_vmapped_as_on_accelerators(monkeypatch):
    monkeypatch.setattr(runs.jax, "default_backend", lambda: "gpu")
    check([algorithm("fedprox", mu=mu) for mu in (0.01, 0.3)])


def test_seeds_alone():
    check([algorithm("fedavg"), algorithm("fedavg")], seed=(3, 8))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm(name):
    check([algorithm(name, learning_rate=rate) for rate in RATES])


def test_what_cannot_be_one_program_is_told_apart():
    algorithms = [algorithm("fedavg"), algorithm("fedprox", mu=0.1), algorithm("fedprox", mu=0.2)]
    with pytest.raises(Unlike, match=r"by their places: 0; 1, 2\. Train each") as error:
        built(algorithms)
    assert error.value.groups == [[0], [1, 2]]


def test_each_has_its_own_facts():
    simulation = built([algorithm("fedavg", epochs=1), algorithm("fedavg", epochs=2)])
    fewest = [facts.steps_per_client[0] for facts in simulation.facts_of_each]
    assert fewest[1] == 2 * fewest[0]


@pytest.mark.slow
def test_diagnostics_are_of_each():
    chosen = {name: DIAGNOSTICS[name] for name in ("norms", "spectrum", "decomposition")}
    algorithms = [algorithm("fedld", lam=lam) for lam in (0.01, 0.5)]
    together = built(algorithms, diagnostics=chosen)
    found = together.diagnose(together.start())
    for i, each in enumerate(algorithms):
        alone = built(each, diagnostics=chosen)
        expected = alone.diagnose(alone.start())
        jax.tree.map(lambda x, y, i=i: np.testing.assert_allclose(x[i], y[0], rtol=1e-4, atol=1e-5), found, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client_states": "host"}, "client_states: 'host' is for a single algorithm"),
        ({"examples": "stream"}, "examples: 'stream' is for a single algorithm. Several algorithms keep everything"),
        ({"seed": (1, 2, 3)}, "seed: 3 for 2 algorithms"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(InputError, match=message):
        built([algorithm("fedavg", learning_rate=rate) for rate in RATES], layout=vmapped, **options)


def test_none_is_refused():
    with pytest.raises(InputError, match="seed: 0 for 0 algorithms"):
        built([])
