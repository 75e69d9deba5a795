"""Server optimizers: Flower's strategies, TensorFlow's optimizers, and the paper's equations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het.engine.server_side import server_step
from fedjax_het.server.aggregators import mean
from fedjax_het.server.optimizers import fedadagrad, fedadam, fedavgm, fedyogi
from fedjax_het.types import PyTree, ServerState
from tests.golden.cases import Case, covers
from tests.golden.stage import aggregate

TENSORFLOW = 1e-6  # its hyper-parameters are float32 inside
FLOWER = {"adagrad": fedadagrad, "adam": partial(fedadam, bias_correction="flower"), "avgm": fedavgm, "yogi": fedyogi}
FLOWER_TAU = {"adagrad": 1e-9, "adam": 1e-9, "yogi": 1e-3}
FLOWER_NAMES = {
    "eta": "learning_rate",
    "server_learning_rate": "learning_rate",
    "server_momentum": "momentum",
    "beta_1": "b1",
    "beta_2": "b2",
}
REFERENCE = {"adagrad": fedadagrad, "adam": fedadam, "avgm": fedavgm, "yogi": fedyogi}
REFERENCE_NAMES = {"eta": "learning_rate", "damp": "momentum_damping", "bias": "bias_correction"}


class Server:
    """The weights and the optimizer's state, round by round, through the server's own step."""

    def __init__(self, optimizer: optax.GradientTransformation, start: PyTree):
        shared = {"params": jax.tree.map(jnp.asarray, start)}
        self._state = ServerState(0, shared, optimizer.init(shared["params"]), (), {})
        self._step = jax.jit(partial(server_step, optimizer))
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
    return server_step(optimizer, state, aggregate(mean(), {"params": moved}, num_examples)[0])


@covers("fedopt", "flwr_*")
def flower(case: Case):
    kind, num_arrays, num_clients = case.name.split("_")[1], case.meta["n_arrays"], case.meta["N"]
    hyper = {FLOWER_NAMES.get(name, name): value for name, value in case.meta["hyper"].items()}
    if kind in FLOWER_TAU:
        hyper = {"tau": FLOWER_TAU[kind]} | hyper
    server = Server(FLOWER[kind](**hyper), [case[f"init{j}"] for j in range(num_arrays)])
    # Where nobody moved, Flower divides the rounding of its mean by tau and drifts; ours stays at an exact zero.
    is_still = "zero" in case.name
    tolerance = max(1e-9, hyper["learning_rate"] * 1e-15 / hyper["tau"]) if is_still else 1e-9
    for number in range(1, case.meta["rounds"] + 1):
        if is_still and number > 1:
            server.place([case[f"r{number - 1}_out{j}"] for j in range(num_arrays)])
        clients = [np.stack([case[f"r{number}_c{i}_p{j}"] for i in range(num_clients)]) for j in range(num_arrays)]
        out = server.average(clients, case.meta["num_examples"])
        for j in range(num_arrays):
            yield case.compare(f"r{number}_out{j}", out[j], tolerance, scale=1.0)
    for j in range(num_arrays):
        yield from _final(case, server.state, j)


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
    hyper = {REFERENCE_NAMES.get(name, name): value for name, value in case.meta["hyper"].items()}
    server = Server(REFERENCE[hyper.pop("kind")](**hyper), {"w": case["init"]})
    for number in range(case.meta["rounds"]):
        out = server.average({"w": case[f"r{number}_clients"]}, case["n"])
        yield case.compare(f"r{number}_out", out["w"])
        if "second" in server.state._fields:
            yield case.compare(f"r{number}_m", -server.state.first["w"])
            yield case.compare(f"r{number}_v", server.state.second["w"])
        else:
            yield case.compare(f"r{number}_m", -server.state.velocity["w"])
            case.excuse(f"r{number}_v", "FedAvgM has no second moment")


def _tensorflow(case: Case, optimizer: optax.GradientTransformation):
    server = Server(optimizer, {"w": case["x0"]})
    ours = np.stack([server.step({"w": jnp.asarray(delta)})["w"] for delta in case["deltas"]])
    yield case.compare("traj", ours, TENSORFLOW)


@covers("fedopt", "tf_adagrad_legacy_*")
def keras_adagrad(case: Case):
    hyper = case.meta["hyper"]
    yield from _tensorflow(case, fedadagrad(hyper["lr"], hyper["eps"]))


@covers("fedopt", "tf_adagrad_new_*")
def keras_adagrad_inside_the_root(case: Case):
    """sqrt(v + eps) is our root with eps as the first v."""
    hyper = case.meta["hyper"]
    yield from _tensorflow(case, fedadagrad(hyper["lr"], 1e-12, v0=hyper["eps"]))


@covers("fedopt", "tf_adam_*")
def keras_adam(case: Case):
    hyper = case.meta["hyper"]
    optimizer = fedadam(hyper["lr"], hyper["b1"], hyper["b2"], hyper["eps"], bias_correction="adam")
    yield from _tensorflow(case, optimizer)


@covers("fedopt", "tf_yogi_*")
def google_yogi(case: Case):
    hyper = case.meta["hyper"]
    optimizer = fedyogi(hyper["lr"], hyper["b1"], hyper["b2"], hyper["eps"], v0=hyper["v0"], bias_correction="adam")
    yield from _tensorflow(case, optimizer)


@covers("fedopt", "tf_sgdm_*")
def keras_momentum(case: Case):
    yield from _tensorflow(case, fedavgm(case.meta["hyper"]["lr"], case.meta["hyper"]["mom"]))
