"""Static batch norms: the statistics with which models are scored."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import data, models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import heterofl, ifca
from fedjax_het.engine import Simulation, predict, sharded
from fedjax_het.engine.evaluation.evaluate import evaluate_model
from fedjax_het.errors import InputError
from fedjax_het.problem import Problem
from fedjax_het.types import Context

TRAINING = {"learning_rate": 0.1, "batch_size": 8}


def federation(**options):
    sizes = {"examples_per_client": (20, 700), "client_test_fraction": 0.5, "test_fraction": 0.1}
    return data.toy(num_clients=5, image=(4, 4, 1), feature_shift=2.0, seed=3, **sizes, **options)


def network():
    return models.mlp(3, hidden=(6, 5), norm="static")


@functools.partial(jax.jit, static_argnums=0)
def moments_of(model, variables, inputs):
    """{path: mean or variance} of one batch."""
    shapes = jax.tree.map(jnp.zeros_like, {name: variables["params"][name]["bias"] for name in ("norm_0", "norm_1")})
    zeros = {name: {"mean": zero, "var": zero} for name, zero in shapes.items()}
    context = Context(jnp.ones(len(inputs)), jnp.int32(0), make_key(0), True)
    return model.encode(variables | {"batch_stats": zeros}, inputs, context)[1]["batch_stats"]


def with_statistics(model, variables, federation, clients):
    batches = []
    for client in clients:
        rows = tree.take(federation.data.train, client)
        parts = np.array_split(rows.index[: rows.count], -(-rows.count // 256))
        inputs = [federation.prepare(federation.examples.inputs[part]) for part in parts]
        batches += [moments_of(model, variables, batch) for batch in inputs]
    return variables | {"batch_stats": jax.tree.map(lambda *x: sum(x) / len(x), *batches)}


@pytest.mark.extended
@pytest.mark.parametrize(
    "options", [{"layout": sharded(2, 1)}, {"examples": "stream", "client_states": "host"}], ids=["sharded", "host"]
)
def test_the_servers_model_has_the_statistics_of_all_clients_and_a_clients_own_model_those_of_the_client(options):
    chosen, model, algorithm = federation(), network(), heterofl((1.0,), **TRAINING)
    simulation = Simulation(algorithm, model, chosen, rounds=2, cohort_size=2, **options)
    state, _ = simulation.advance(simulation.start(), 2)
    ours = simulation.evaluate(state)
    variables = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), state.server.shared)
    assert set(variables) == {"params"}
    problem = Problem(model, (), chosen.prepare)

    def scores(clients):
        return evaluate_model(problem, with_statistics(model, variables, chosen, clients), chosen)

    expected = scores(range(5))
    np.testing.assert_allclose(ours.test.loss[0], expected.test.loss, rtol=1e-5)
    np.testing.assert_allclose(ours.clients.loss[0], expected.clients.loss, rtol=1e-5)
    own = [scores([client]).clients.loss[client] for client in range(5)]
    np.testing.assert_allclose(ours.personal.loss[0], own, rtol=1e-5)
    predicted = predict(algorithm, model, chosen, state)
    assert np.mean(predicted.classes == predicted.labels) == pytest.approx(float(ours.test.accuracy[0]))


@pytest.mark.parametrize("algorithm", [ifca(2, **TRAINING)], ids=["ifca"])
def test_several_models_are_refused(algorithm):
    with pytest.raises(InputError, match="norm='static' needs a single network"):
        Simulation(algorithm, network(), federation(), rounds=1)
