"""Server optimizers: Flower's strategies, TensorFlow's optimizers, and the paper's equations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.engine.round.server_step import apply_server_optimizer
from fedjax_het.server import optimizers
from fedjax_het.server.aggregators import mean
from fedjax_het.types import PyTree, ServerState
from tests.golden.cases import Case, covers
from tests.golden.metadata import Metadata
from tests.golden.replay import aggregate

TENSORFLOW = 1e-6  # its hyperparameters are float32
OPTIMIZERS = {"adagrad": optimizers.adagrad, "adam": optimizers.adam, "avgm": optimizers.sgd, "yogi": optimizers.yogi}
# Defaults of Flower's strategies; its FedAdam has its own bias correction.
FLOWER_DEFAULTS = {
    "adagrad": {"eta": 0.1, "tau": 1e-9},
    "adam": {"eta": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-9},
    "avgm": {"server_learning_rate": 1.0, "server_momentum": 0.0},
    "yogi": {"eta": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
}
FLOWER_NAMES = {
    "eta": "learning_rate",
    "server_learning_rate": "learning_rate",
    "server_momentum": "momentum",
    "beta_1": "b1",
    "beta_2": "b2",
}
REFERENCE_NAMES = {"eta": "learning_rate", "damp": "momentum_damping", "bias": "bias_correction"}
MOMENTS = {"avgm": {"beta1": "momentum"}}  # by kind, the names of beta1 and beta2 in the reference


class Server:
    """The weights and the optimizer's state, round by round, through the server's own step."""

    def __init__(self, optimizer: optax.GradientTransformation, start: PyTree):
        shared = {"params": jax.tree.map(jnp.asarray, start)}
        self._state = ServerState(0, shared, optimizer.init(shared["params"]), (), {})
        self._step = jax.jit(partial(apply_server_optimizer, optimizer))
        self._average = jax.jit(partial(_average, optimizer))

    def step(self, update: PyTree) -> PyTree:
        return self._arrive(*self._step(self._state, {"params": update}))

    def average(self, clients: PyTree, num_examples) -> PyTree:
        """A round in which the clients trained to `clients`, leaves [client, ...]."""
        return self._arrive(*self._average(self._state, clients, jnp.asarray(num_examples)))

    def place(self, weights: PyTree) -> None:
        self._state = self._state._replace(shared={"params": weights})

    def _arrive(self, shared: PyTree, optimizer: PyTree) -> PyTree:
        self._state = self._state._replace(shared=shared, optimizer=optimizer)
        return shared["params"]

    @property
    def state(self) -> PyTree:
        return self._state.optimizer


def _average(optimizer: optax.GradientTransformation, state: ServerState, clients: PyTree, num_examples):
    moved = jax.tree.map(lambda x, start: x - start, clients, state.shared["params"])
    return apply_server_optimizer(optimizer, state, aggregate(mean(), {"params": moved}, num_examples)[0])


@covers("fedopt", "flwr_*")
def flower(case: Case):
    num_arrays, num_clients = case.meta["n_arrays"], case.meta["N"]
    kind, hyper = _flower_settings(case)
    start = [case[f"init{j}"] for j in range(num_arrays)]
    server = Server(OPTIMIZERS[kind](**hyper), start)
    for number in range(1, case.meta["rounds"] + 1):
        clients = [np.stack([case[f"r{number}_c{i}_p{j}"] for i in range(num_clients)]) for j in range(num_arrays)]
        tolerance = 1e-9
        if all(np.all(models == models[:1]) for models in clients) and "tau" in hyper:
            # Where all clients send one model, Flower's mean of them is off by its rounding, which a move of nothing
            # divides by tau, so that it drifts; ours stays, and goes on from where Flower is.
            tolerance = max(tolerance, hyper["learning_rate"] * 1e-15 / hyper["tau"])
            server.place(start)
        out = server.average(clients, case.meta["num_examples"])
        start = [case[f"r{number}_out{j}"] for j in range(num_arrays)]
        for j in range(num_arrays):
            yield case.compare(f"r{number}_out{j}", out[j], tolerance, scale=1.0)
    for j in range(num_arrays):
        yield from _final(case, server.state, j)


def _flower_settings(case: Case) -> tuple[str, dict]:
    """(which optimizer, its arguments here). What the file says of the reference that it was checked by says both."""
    said = case.meta.get("ref", {})
    kind = said["kind"] if said else case.name.split("_")[1]
    hyper = FLOWER_DEFAULTS[kind] | dict(case.meta["hyper"])
    hyper.pop("eta_l", None)  # the clients' learning rate, which no strategy reads
    hyper = {FLOWER_NAMES.get(name, name): value for name, value in hyper.items()}
    if kind == "adam":
        hyper["bias_correction"] = "flower"
    _, settled = _reference_settings(said) if said else (kind, {})
    if not settled.items() <= hyper.items():
        raise ValueError(f"meta.ref asks for {settled}, and meta.hyper with Flower's defaults for {hyper}")
    return kind, hyper


def _reference_settings(said: Metadata) -> tuple[str, dict]:
    """(which optimizer, its arguments here) from the transcription's names."""
    kind = said["kind"]
    names = {"beta1": "b1", "beta2": "b2"} | REFERENCE_NAMES | MOMENTS.get(kind, {})
    return kind, {names.get(name, name): value for name, value in said.items() if name != "kind"}


def _final(case: Case, state: PyTree, j: int):
    """Flower's moments are of the update, ours of its negative; where it is zero they hold rounding of size 1e-16."""
    theirs = {
        "final_m_t": lambda: -state.first[j],
        "final_v_t": lambda: state.second[j],
        "final_momentum_vector": lambda: state.velocity[j],
    }
    for name, ours in theirs.items():
        if f"{name}{j}" in case:
            yield case.compare(f"{name}{j}", ours(), scale=1e-6)


@covers("fedopt", "ref_*")
def reference(case: Case):
    kind, hyper = _reference_settings(case.meta["hyper"])
    server = Server(OPTIMIZERS[kind](**hyper), {"w": case["init"]})
    for number in range(case.meta["rounds"]):
        out = server.average({"w": case[f"r{number}_clients"]}, case["n"])
        yield case.compare(f"r{number}_out", out["w"])
        if "second" in server.state._fields:
            yield case.compare(f"r{number}_m", -server.state.first["w"])
            yield case.compare(f"r{number}_v", server.state.second["w"])
        else:
            yield case.compare(f"r{number}_m", -server.state.velocity["w"])
            case.excuse(f"r{number}_v", "FedAvgM has no second moment")


def _keras_adagrad(hyper: Metadata) -> optax.GradientTransformation:
    return optimizers.adagrad(hyper["lr"], hyper["eps"], v0=hyper.get("v0", 0.0))


def _keras_adagrad_inside_the_root(hyper: Metadata) -> optax.GradientTransformation:
    """sqrt(v + eps) is our root with eps in the first v."""
    return optimizers.adagrad(hyper["lr"], 1e-12, v0=hyper.get("v0", 0.0) + hyper["eps"])


def _keras_adam(hyper: Metadata) -> optax.GradientTransformation:
    return optimizers.adam(
        hyper["lr"], hyper["b1"], hyper["b2"], hyper["eps"], **ALGORITHMS["fedadam"].presets["released"]
    )


def _google_yogi(hyper: Metadata) -> optax.GradientTransformation:
    released = ALGORITHMS["fedyogi"].presets["released"]
    return optimizers.yogi(hyper["lr"], hyper["b1"], hyper["b2"], hyper["eps"], v0=hyper["v0"], **released)


def _keras_momentum(hyper: Metadata) -> optax.GradientTransformation:
    hyper.confirm(eps=0.0)
    return optimizers.sgd(hyper["lr"], hyper["mom"])


RULES = {
    "adagrad_legacy": _keras_adagrad,
    "adagrad_new": _keras_adagrad_inside_the_root,
    "adam": _keras_adam,
    "yogi": _google_yogi,
    "sgd": _keras_momentum,
}


@covers("fedopt", "tf_*")
def tensorflow(case: Case):
    server = Server(RULES[case.meta["rule"]](case.meta["hyper"]), {"w": case["x0"]})
    ours = np.stack([server.step({"w": jnp.asarray(delta)})["w"] for delta in case["deltas"]])
    yield case.compare("traj", ours, TENSORFLOW)
