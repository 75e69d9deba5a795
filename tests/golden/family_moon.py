"""MOON: the contrastive loss, the authors' local training, and their server momentum."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import moon
from fedjax_het.client.objectives import contrastive, cross_entropy
from fedjax_het.client.objectives._contrastive import model_contrast
from fedjax_het.engine.round import participation
from fedjax_het.engine.round.program import make_round
from fedjax_het.engine.round.server_step import apply_server_optimizer
from fedjax_het.problem import Problem
from fedjax_het.types import Batch, Model, ServerState
from tests.golden import networks
from tests.golden.cases import Case, covers
from tests.golden.replay import aggregate, client_data, torch_optimizer
from tests.views import client_view

# The authors' layers, and the paths of their weights here.
LAYERS = {"f": ("f",), "l1": ("projection", "hidden"), "l2": ("projection", "output"), "l3": ("classifier",)}


@covers("moon", "ref_con_*")
def contrast(case: Case):
    received, previous = jnp.asarray(case["z_glob"]), jnp.asarray(case["z_prev"])

    def loss(features):
        is_kept = jnp.ones(len(previous), bool)
        return jnp.mean(model_contrast(features, received, previous, is_kept, case.meta["tau"]))

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.asarray(case["z"]))
    yield case.compare("loss", value)
    if "grad_z" in case:
        yield case.compare("grad_z", gradient)


def dense(layer: dict, inputs):
    return inputs @ layer["kernel"] + layer["bias"]


def network(case: Case) -> Model:
    """tanh features and a linear head, as wide as the case has them before the projection."""
    width, size = case["glob__f.weight"].shape
    shapes = {"f": (size, width), "classifier": (width, len(case["glob__l3.weight"]))}
    params = {name: {"kernel": jnp.zeros(shape), "bias": jnp.zeros(shape[1])} for name, shape in shapes.items()}
    return networks.network(
        {"params": params},
        lambda params, inputs: jnp.tanh(dense(params["f"], inputs)),
        lambda params, features: dense(params["classifier"], features),
    )


def weights(case: Case, prefix: str) -> dict:
    """The authors' weights [out, in] as ours."""
    params = {"projection": {}}
    for theirs, ours in LAYERS.items():
        layer = {
            "kernel": jnp.asarray(case[f"{prefix}__{theirs}.weight"].T),
            "bias": jnp.asarray(case[f"{prefix}__{theirs}.bias"]),
        }
        (params[ours[0]] if len(ours) > 1 else params)[ours[-1]] = layer
    return params


@covers("moon", "s*")
def training(case: Case):
    settings, num_earlier = case.meta, case.meta["n_prev"]
    rates = (settings["lr"], settings["reg"])
    optimizer = torch_optimizer(settings["optimizer"], *rates, momentum=settings.get("momentum"))
    algorithm = moon(
        mu=settings["mu"],
        temperature=settings["temperature"],
        buffer=max(num_earlier, 1),
        projection=len(case["glob__l2.weight"]),
        optimizer=optimizer,
        batch_size=case["X"].shape[1],
        epochs=settings["epochs"],
        shuffle=False,
    )
    start = weights(case, "glob")
    earlier = [weights(case, f"prev{i}") for i in range(num_earlier)] or [start]
    previous = {
        "models": jax.tree.map(lambda *x: jnp.stack(x), *({"params": params} for params in earlier)),
        "count": jnp.asarray(num_earlier, jnp.int32),
    }
    trained = _trained(case, algorithm, start, previous)
    for theirs, ours in LAYERS.items():
        layer = trained[ours[0]][ours[1]] if len(ours) > 1 else trained[ours[0]]
        yield case.compare(f"out__{theirs}.weight", layer["kernel"].T)
        yield case.compare(f"out__{theirs}.bias", layer["bias"])
    losses = np.array(list(_losses(case, algorithm, optimizer, start, previous)))
    # Theirs is a difference of logits of size 1 / tau, whose rounding is in a loss of 1e-7.
    yield case.compare("con_loss", losses[:, 0], scale=1e-5 / settings["temperature"])
    yield case.compare("ce_loss", losses[:, 1])
    yield case.compare("total_loss", losses[:, 2])


def _trained(case: Case, algorithm: Algorithm, start: dict, previous: dict) -> dict:
    """The parameters after a round of the single client."""
    inputs, labels = case["X"].reshape(-1, case["X"].shape[-1]), case["Y"].reshape(-1)
    data = client_data(inputs, labels, [len(labels)])
    round = make_round(algorithm, network(case), 1, participation=participation.full())
    state = round.init(make_key(0), data)
    # Without the term, mu = 0, there is no memory.
    memory = {name: jax.tree.map(lambda x: x[None], previous) for name in algorithm.memory}
    state = state._replace(
        server=state.server._replace(shared={"params": start}), clients=state.clients._replace(memory=memory)
    )
    return jax.jit(round.step)(state, data, make_key(0))[0].server.shared["params"]


def _losses(case: Case, algorithm: Algorithm, optimizer: optax.GradientTransformation, start: dict, previous: dict):
    """(contrastive, cross-entropy, total) of every step."""
    settings, key = case.meta, make_key(0)
    problem = Problem(algorithm.adapt(network(case)), algorithm.objective, lambda inputs: inputs)
    view = client_view({"params": start}, memory={"previous": previous})
    terms = contrastive(1.0, settings["temperature"]), cross_entropy()

    @jax.jit
    def step(params, state, batch):
        forward = problem.forward(params, {}, batch, view, key)
        (total, _), gradient = problem.value_and_grad(params, {}, batch, view, key)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, (*(term(forward) for term in terms), total)

    params, state = start, optimizer.init(start)
    for _ in range(settings["epochs"]):
        for inputs, labels in zip(case["X"], case["Y"], strict=True):
            batch = Batch(jnp.asarray(inputs), jnp.asarray(labels), jnp.ones(len(labels)))
            params, state, losses = step(params, state, batch)
            yield losses


@covers("moon", "server_*")
def server_momentum(case: Case):
    algorithm = moon(server_momentum=case.meta["server_momentum"])
    num_clients, names = case.meta["N"], [name.removeprefix("init_") for name in case.matching("init_*")]
    shared = {"params": {name: jnp.asarray(case[f"init_{name}"]) for name in names}}
    state = algorithm.server_optimizer.init(shared["params"])
    for number in range(case.meta["rounds"]):
        models = {name: np.stack([case[f"r{number}_c{i}_{name}"] for i in range(num_clients)]) for name in names}
        stack = {"params": jax.tree.map(lambda new, old: new - old, models, shared["params"])}
        update, _ = aggregate(algorithm.aggregator, stack, case.meta["num_examples"])
        shared, state = apply_server_optimizer(
            algorithm.server_optimizer, ServerState(number, shared, state, (), {}), update
        )
        for name in names:
            yield case.compare(f"r{number}_out_{name}", shared["params"][name])
