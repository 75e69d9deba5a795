"""FedIIR: whole rounds, and the penalty alone."""

from collections.abc import Callable
from functools import reduce
from math import lcm

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fediir
from fedjax_het.client.objectives import cross_entropy, invariance
from fedjax_het.engine.round import participation
from fedjax_het.engine.round.program import make_round
from fedjax_het.problem import Problem
from fedjax_het.types import Array, ClientData, Model, Params, State
from tests.golden import networks
from tests.golden.cases import Case, covers
from tests.golden.replay import client_data
from tests.views import client_view, forward_pass


@covers("fediir", "ref_penalty_*")
def penalty(case: Case):
    """Of a linear head, with its gradients by the head and, second order, by the features."""
    head = {"classifier": {"0.weight": jnp.asarray(case["w"]), "0.bias": jnp.asarray(case["b"])}}
    everyones = {"0.weight": jnp.asarray(case["gbar_w"]), "0.bias": jnp.asarray(case["gbar_b"])}
    labels = jnp.asarray(case["y"])
    problem = Problem(network({"params": head}), (), lambda inputs: inputs)
    view = client_view({"params": head}, {"mean_gradient": {"mean": everyones}})

    def term(params, features):
        logits, key = problem.model.classify(params, features), make_key(0)
        forward = forward_pass(features, labels, logits, problem=problem, params=params, view=view, key=key)
        return invariance(1.0)(forward)

    value, (by_head, by_features) = jax.jit(jax.value_and_grad(term, (0, 1)))(head, jnp.asarray(case["f"]))
    yield case.compare("penalty", value)
    yield case.compare("grad_w", by_head["classifier"]["0.weight"])
    yield case.compare("grad_b", by_head["classifier"]["0.bias"])
    yield case.compare("grad_f", by_features)


def network(start: dict) -> Model:
    """tanh(linear), and a head of linear layers with ReLU between them; PyTorch's shapes."""

    def encode(params, inputs):
        return jnp.tanh(inputs @ params["lin.weight"].T + params["lin.bias"])

    def classify(params, features):
        head = params["classifier"]
        numbers = sorted({int(name.split(".")[0]) for name in head})
        for number in numbers:
            hidden = features if number == numbers[0] else jax.nn.relu(features)
            features = hidden @ head[f"{number}.weight"].T + head[f"{number}.bias"]
        return features

    return networks.network(start, encode, classify)


def read_params(case: Case, prefix: str) -> Params:
    body = {name.removeprefix(f"{prefix}__F."): jnp.asarray(case[name]) for name in case.matching(f"{prefix}__F.*")}
    head = {name.removeprefix(f"{prefix}__C."): jnp.asarray(case[name]) for name in case.matching(f"{prefix}__C.*")}
    return {**body, "classifier": head}


def batches_of(case: Case) -> tuple[ClientData, int]:
    """The stored batches, and how many examples each has here.

    The released loop takes batches of any size in any order. Examples are repeated until all batches have one size,
    which leaves every mean over a batch as it was.
    """
    counts = case.meta["n_batches"]
    names = [[f"c{client}_{{}}{number}" for number in range(count)] for client, count in enumerate(counts)]
    size = reduce(lcm, (len(case[name.format("y")]) for client in names for name in client))
    inputs, labels = (
        np.concatenate([_filled(case[name.format(part)], size) for client in names for name in client]) for part in "xy"
    )
    return client_data(inputs, labels, [size * count for count in counts]), size


def _filled(rows: np.ndarray, size: int) -> np.ndarray:
    return np.repeat(rows, size // len(rows), axis=0)


@covers("fediir", "*")
def rounds(case: Case):
    settings = case.meta
    settings.confirm(loss_columns=["last client last batch erm loss", "last penalty"])
    settings.confirm(nonlinear_classifier=len(case.matching("init__C.*.weight")) > 1)
    data, batch_size = batches_of(case)
    options = {
        "gamma": settings["penalty"],
        "decay": settings["ema"],
        "learning_rate": settings["lr"],
        "momentum": settings["momentum"],
        "weight_decay": settings["weight_decay"],
        "batch_size": batch_size,
        "shuffle": False,
    }
    model = network({"params": read_params(case, "init")})
    algorithm = fediir(epochs=settings["local_epochs"], **options)
    round = make_round(algorithm, model, settings["N"], participation=participation.full())
    state, step, last = round.init(make_key(0), data), jax.jit(round.step), []
    figures = _last_figures(case, model, options)
    for number in range(settings["rounds"]):
        before, (state, _) = state, step(state, data, make_key(0))
        params = state.server.shared["params"]
        for name in case.matching(f"r{number}__[FC].*"):
            ours = params["classifier"] if "__C." in name else params
            yield case.compare(name, ours[name.split(".", 1)[1]])
        average = state.server.published["mean_gradient"]["mean"]
        tensors = _tensors(average)
        for name in case.matching(f"r{number}__gradmean*"):  # not in every source
            yield case.compare(name, average[tensors[int(name.partition("gradmean")[2])]])
        last.append(figures(before, data))
    yield case.compare("last", last)


def _tensors(head: Params) -> list[str]:
    """In the order of PyTorch's parameters: layer by layer, weight before bias."""
    return sorted(head, key=lambda name: (int(name.split(".")[0]), name.endswith("bias")))


def _last_figures(case: Case, model: Model, options: dict) -> Callable[[State, ClientData], Array]:
    """Of a round from a state: loss and penalty of the last client's last batch, before the step on it."""
    num_clients, num_batches = len(case.meta["n_batches"]), case.meta["n_batches"][-1]
    size, steps = options["batch_size"], case.meta["local_epochs"] * num_batches - 1
    round = make_round(fediir(steps=steps or 1, **options), model, num_clients, participation=participation.full())

    @jax.jit
    def figures(state: State, data: ClientData) -> Array:
        _, _, said = round.step_with_messages(state, data, make_key(0))
        params = state.server.shared["params"]
        if steps:
            params = jax.tree.map(lambda x, moved: x + moved[-1], params, said.uploads.update["params"])
        last = data._replace(train=jax.tree.map(lambda x: x[-1], data.train))
        batch = round.problem.batch(last, *last.train, (num_batches - 1) * size, size)
        view = client_view(received=said.received, data=last)
        forward = round.problem.forward(params, {}, batch, view, make_key(0))
        return jnp.stack([cross_entropy()(forward), invariance(1.0)(forward)])

    return figures
