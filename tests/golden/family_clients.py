"""One client's round: the FedLD repository's six methods, and NIID-Bench's four.

The FedLD repository trains in evaluation mode, so that batch norms are frozen, and warms the learning rate up: its
numbers are held by a network that norms by stored statistics, and by the same rates.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm, LocalUpdate
from fedjax_het.algorithms import fedavg, fedbn, fedgh, fedld, fednova, fedpac, fedprox, scaffold
from fedjax_het.algorithms._fedpac import HEAD
from fedjax_het.client.local_updates import sequential, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.optimizers import torch_sgd
from fedjax_het.problem import Problem
from fedjax_het.types import ClientData, ClientView, Examples, Model, Named, Rows, Trained, Variables
from tests.golden.cases import Case, covers
from tests.golden.networks import dense, network
from tests.golden.replay import aggregate
from tests.views import client_view

WARM_UP = 5  # epochs
STATISTICS = {"running_mean", "running_var"}


class Client(NamedTuple):
    """A client with the case's examples, in their order, that has received a model."""

    problem: Problem
    view: ClientView

    def minimising(self, *objective) -> "Client":
        return self._replace(problem=self.problem._replace(objective=objective))

    def knowing(self, published: Named, round: int = 0, **known: Named) -> "Client":
        received = self.view.received._replace(published=published, round=jnp.asarray(round))
        return self._replace(view=self.view._replace(received=received, **known))

    def train(self, local_update: LocalUpdate) -> tuple[Trained, "Client"]:
        trained = jax.jit(lambda view: local_update.train(self.problem, view, make_key(0)))(self.view)
        after = self.view._replace(local=trained.variables, num_steps=trained.num_steps)
        return trained, self._replace(view=after)

    def loss_of_batch(self, number: int, size: int):
        """At the present variables, in a training pass."""
        rows, state = self.view.data.train, dict(self.view.local)
        batch = self.problem.batch(self.view.data, rows.index, rows.count, number * size, size)
        return self.problem.loss(state.pop("params"), state, batch, self.view, make_key(0))[0]


def _client(case: Case, model: Model, start: Variables) -> Client:
    labels = jnp.asarray(case["Y"], jnp.int32)
    rows = Rows(jnp.arange(len(labels)), jnp.asarray(len(labels)))
    data = ClientData(Examples(jnp.asarray(case["X"]), labels), rows, rows, rows)
    return Client(Problem(model, (), lambda inputs: inputs), client_view(start, data=data))


def _classify(params, features):
    return dense(params["classifier"], features)


# ---- the FedLD repository --------------------------------------------------------------------------------------------
def _network() -> Model:
    """fc(relu(bn1(l1 x))), or without the norm where there is none; PyTorch's shapes."""

    def encode(variables, inputs, context):
        state = dict(variables)
        params = state.pop("params")
        hidden = dense(params["l1"], inputs)
        if state:
            running, norm = state["batch_stats"]["bn1"], params["bn1"]
            hidden = (hidden - running["running_mean"]) / jnp.sqrt(running["running_var"] + 1e-5)
            hidden = hidden * norm["weight"] + norm["bias"]
        return (jax.nn.relu(hidden), {}), state

    return Model(None, encode, _classify, None)


def _path(name: str) -> str:
    layer, entry = name.split(".")
    layer = "classifier" if layer == "fc" else layer
    return f"{'batch_stats' if entry in STATISTICS else 'params'}/{layer}/{entry}"


def _warming(case: Case, rate: float, round: int) -> optax.GradientTransformation:
    begun = int(case["local_epoch"]) * round

    def now(step):
        return rate * jnp.minimum(1, (begun + step.astype(float)) / WARM_UP)

    return torch_sgd(now, float(case["momentum"]), float(case["weight_decay"]))


def _methods(case: Case, settings: dict) -> dict[str, Algorithm]:
    """Most warm up step by step; FedLD, by an oversight, takes the rate of the round's beginning throughout."""
    rate, round = float(case["lr"]), int(case["round"])
    settings = settings | {"optimizer": _warming(case, rate, round)}
    first_rate = rate * min(1, int(case["local_epoch"]) * round / WARM_UP)
    constant = settings | {"optimizer": torch_sgd(first_rate, float(case["momentum"]), float(case["weight_decay"]))}
    return {
        "fedavg": fedavg(**settings),
        "fedbn": fedbn(**settings),
        "fedgh": fedgh(**settings),
        "fedprox": fedprox(float(case["mu"]), "norm_per_tensor", **settings),
        "fedld": fedld(float(case["margin"]), margin_form="softmax_batch", **constant),
    }


@covers("clients", "fedld_repo_*")
def fedld_repository(case: Case):
    names = [name.removeprefix("in/") for name in case.matching("in/*") if not name.endswith("num_batches_tracked")]
    case.excuse("*num_batches_tracked", "we keep no batch counter")
    start = traverse_util.unflatten_dict({_path(name): jnp.asarray(case[f"in/{name}"]) for name in names}, sep="/")
    client = _client(case, _network(), start)
    size, epochs = int(case["batch_size"]), int(case["local_epoch"])
    num_batches = -(-len(case["Y"]) // size)
    last = epochs * num_batches - 1
    settings = {"batch_size": size, "shuffle": False}
    before_last = _methods(case, settings | {"steps": max(1, last)})
    for label, algorithm in _methods(case, settings | {"epochs": epochs}).items():
        client = client.minimising(*algorithm.objective)
        yield from _compare_weights(case, label, names, client.train(algorithm.local_update)[0])
        yield case.compare(f"{label}_first_loss", client.loss_of_batch(0, size))
        before = client.train(before_last[label].local_update)[1] if last else client
        yield case.compare(f"{label}_last_loss", before.loss_of_batch(last % num_batches, size))
    yield from _head_and_body(case, client, names, settings | {"epochs": epochs})


def _head_and_body(case: Case, client: Client, names: list[str], settings: dict):
    """FedPAC was run in round 0 where no prototypes are stored; only its head warms up. Its losses are means over the
    batches of the head's epoch, and of the body's last."""
    is_known, algorithm = "fedpac_global_protos" in case, fedpac(float(case["lam"]))
    round = int(case["round"]) if is_known else 0
    own = algorithm.survey["classes"](client.problem, client.view)
    # A class without examples is NaN there, and unknown here.
    means = jnp.asarray(case["fedpac_global_protos"]) if is_known else jnp.full_like(own.means, jnp.nan)
    prototypes = {"means": jnp.nan_to_num(means), "is_known": ~jnp.isnan(means).any(axis=1)}
    client = client.knowing({"prototypes": prototypes}, round, answers={"classes": own})
    epochs, size = settings["epochs"], settings["batch_size"]
    num_batches = -(-len(case["Y"]) // size)
    rates = [float(case[name]) for name in ("lr", "momentum", "weight_decay")]
    options = {"batch_size": size, "shuffle": False}
    rules = (
        lambda num_steps: sgd(**options, steps=num_steps, optimizer=_warming(case, 0.1, round), only=HEAD),
        lambda num_steps: sgd(*rates, **options, steps=num_steps, only=f"!{HEAD}"),
    )
    head, body = rules[0](num_batches), rules[1](epochs * num_batches)

    def mean_loss(client: Client, first: int, prepare: Callable[[int], list[LocalUpdate]]) -> np.ndarray:
        """The mean over the batches of an epoch, which begins after `first` steps, of the loss before each step."""
        losses = []
        for number in range(num_batches):
            before = client
            if phases := prepare(first + number):
                before = client.train(functools.reduce(sequential, phases))[1]
            losses.append(before.loss_of_batch(number, size))
        return np.mean(losses)

    first = mean_loss(client.minimising(cross_entropy()), 0, lambda steps: [rules[0](steps)] if steps else [])
    yield case.compare("fedpac_first_loss", first)
    client = client.minimising(*algorithm.objective)
    trained, _ = client.train(sequential(head, body))
    yield from _compare_weights(case, "fedpac", names, trained)
    last = mean_loss(client, (epochs - 1) * num_batches, lambda steps: [head, rules[1](steps)] if steps else [head])
    yield case.compare("fedpac_last_loss", last)


def _compare_weights(case: Case, label: str, names: list[str], trained: Trained):
    flat = traverse_util.flatten_dict(trained.variables, sep="/")
    for name in names:
        yield case.compare(f"{label}/{name}", flat[_path(name)])


# ---- NIID-Bench ------------------------------------------------------------------------------------------------------
@covers("clients", "niid_*")
def niid_bench(case: Case):
    """Softmax regression. Its FedNova trains as its FedAvg does."""
    start = {"params": _layer(case, "in")}
    client, rate, momentum = (
        _client(case, network(start, classify=_classify), start),
        float(case["lr"]),
        float(case["momentum"]),
    )
    settings = {"batch_size": int(case["batch_size"]), "epochs": int(case["epochs"]), "shuffle": False}
    settings |= {"learning_rate": rate, "weight_decay": float(case["weight_decay"])}
    methods = {
        "fedavg": fedavg(momentum=momentum, **settings),
        "fedprox": fedprox(float(case["mu"]), momentum=momentum, **settings),
        "fednova": fednova(momentum=momentum, tau_eff=1.0, **settings),
    }
    for label, algorithm in methods.items():
        trained, after = client.minimising(*algorithm.objective).train(algorithm.local_update)
        yield from _compare_layer(case, label, trained.variables["params"])
    yield from _per_unit(case, methods["fednova"], after)
    if momentum == 0 and settings.pop("weight_decay") == 0:
        yield from _controlled(case, scaffold(**settings), client)
    else:
        case.excuse("scaffold*", "it adds the correction behind the momentum; ours refuses momentum and decay")
        case.excuse("c_*", "of SCAFFOLD")


def _per_unit(case: Case, algorithm: Algorithm, after: Client):
    """With tau_eff 1, one client's aggregate is its update per unit of work; theirs is the negative of it."""
    norm = algorithm.reports["a_norm"](after.problem, after.view)
    yield case.compare("fednova_a", norm)
    moved = jax.tree.map(lambda y, x: (y - x)[None], after.view.local, after.view.start)
    update, _ = aggregate(algorithm.aggregator, moved, reports={"a_norm": norm[None]})
    yield from _compare_layer(case, "fednova_norm_grad", jax.tree.map(jnp.negative, update["params"]))


def _controlled(case: Case, algorithm: Algorithm, client: Client):
    everyone, own = {"control": _layer(case, "c_global")}, {"control": _layer(case, "c_local")}
    client = client.minimising(*algorithm.objective).knowing(everyone, memory=own)
    trained, after = client.train(algorithm.local_update)
    yield from _compare_layer(case, "scaffold", trained.variables["params"])
    kept = algorithm.memory["control"].update(after.problem, after.view)
    yield from _compare_layer(case, "scaffold_c_new", kept)
    yield from _compare_layer(case, "scaffold_c_delta", algorithm.reports["control"](after.problem, after.view))


def _layer(case: Case, label: str) -> dict:
    return {"classifier": {entry: jnp.asarray(case[f"{label}/a.{entry}"]) for entry in ("weight", "bias")}}


def _compare_layer(case: Case, label: str, params: dict):
    for entry, ours in params["classifier"].items():
        yield case.compare(f"{label}/a.{entry}", ours)
