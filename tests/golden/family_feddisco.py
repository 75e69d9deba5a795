"""FedDisco: the authors' weights, and rounds of their server."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithms import feddisco
from fedjax_het.engine.round.server_step import apply_server_optimizer
from fedjax_het.server.weightings._discrepancy import DISCREPANCIES, discrepancies, discrepancy_weights
from fedjax_het.types import ServerState
from tests.golden.cases import Case, covers
from tests.golden.replay import aggregate


@covers("feddisco", "w_*")
def weights(case: Case):
    settings, counts = case.meta, jnp.asarray(case["class_counts"][case["selected"]], float)
    target, everyone = jnp.asarray(case["target"]), jnp.ones(len(counts), bool)
    for name in settings["errors"]:
        settings["errors"][name]  # if the released function fails, its weights are NaN
    num_examples = jnp.sum(counts, axis=1)
    yield case.compare("n_samples", num_examples)

    @functools.partial(jax.jit, static_argnums=0)
    def weigh(name):
        metric, is_normalised = name.removesuffix("_raw"), not name.endswith("_raw")
        distances = discrepancies(counts, target, everyone, metric, normalise_kl=is_normalised)
        return distances, discrepancy_weights(num_examples, distances, everyone, settings["a"], settings["b"])

    for name in (*DISCREPANCIES, "kl_raw"):
        distances, ours = weigh(name)
        yield case.compare(f"d_{name}", distances, scale=1.0)
        if case.is_finite(f"w_{name}"):
            yield case.compare(f"w_{name}", ours)
        else:
            shares = np.asarray(num_examples) / float(num_examples.sum())
            yield case.contain(f"w_{name}", ours, shares, "no value is positive", "the shares of examples")
    case.excuse("?_only_iid", "a switch of the released code that drops clients, which is not reproduced")


@covers("feddisco", "rounds_*")
def rounds(case: Case):
    settings, names = case.meta, [name.removeprefix("server__") for name in case.matching("server__*")]
    algorithm = feddisco(
        settings["a"],
        settings["b"],
        settings["metric"],
        target=case["target"].tolist(),
        server_momentum=settings["server_momentum"],
    )
    shared = {"params": {name: jnp.asarray(case[f"server__{name}"][0]) for name in names}}
    models, state = [shared], algorithm.server_optimizer.init(shared["params"])
    weights = []
    for number, cohort in enumerate(case["selected"]):
        counts = jnp.asarray(case["class_counts"][cohort], float)
        stack = {"params": {name: case[f"update__{name}"][number] for name in names}}
        update, _ = aggregate(algorithm.aggregator, stack, counts.sum(axis=1), {"class_counts": counts})
        server = ServerState(jnp.asarray(number), shared, state, (), {})
        shared, state = apply_server_optimizer(algorithm.server_optimizer, server, update)
        models.append(shared)
        present = jnp.ones(len(cohort), bool)
        distances = discrepancies(counts, jnp.asarray(case["target"]), present, settings["metric"])
        weights.append(discrepancy_weights(counts.sum(axis=1), distances, present, settings["a"], settings["b"]))
    yield case.compare("weights", np.stack(weights))
    for name in names:
        ours = jax.tree.map(np.asarray, [model["params"][name] for model in models])
        yield case.compare(f"server__{name}", np.stack(ours))
