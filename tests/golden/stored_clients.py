"""Rounds of a small network on the clients whose examples a case stores: tanh(x W1 + b1) W2 + b2.

As a vector, weights come row by row, [outputs, inputs], before the bias, the body first. Batches are in order, and the
authors' codes leave out the last batch of an epoch if it is not full.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm, LocalUpdate
from fedjax_het.client.local_updates import wrap_training
from fedjax_het.engine.parallel.layout import vmapped
from fedjax_het.engine.round.client_step import Cohort, cohort_data
from fedjax_het.engine.round.program import Round, make_round, with_population
from fedjax_het.types import Array, ClientData, ClientView, Model, Params, State, Variables
from tests.golden.cases import Case
from tests.golden.networks import network
from tests.golden.replay import client_data, fixed_cohort


class History(NamedTuple):
    """The states after each round, and the shared leaves that the participants sent, [cohort, ...]."""

    states: list[State]
    sent: list[Variables]

    def stack(self, read: Callable[[State], Array]) -> np.ndarray:
        return np.stack([read(state) for state in self.states])

    def stack_sent(self, read: Callable[[Params], Array]) -> np.ndarray:
        return np.stack([read(variables["params"]) for variables in self.sent])


def flatten_layer(layer: Params) -> Array:
    """[..., outputs, inputs] row by row, and then the other leaves: bias, and scale and shift of a norm."""
    kernel = jnp.swapaxes(layer["kernel"], -1, -2)
    flat = [kernel.reshape(*kernel.shape[:-2], -1), layer["bias"]]
    return jnp.concatenate([*flat, *(layer[name] for name in ("scale", "shift") if name in layer)], axis=-1)


def read_layer(vector: np.ndarray, inputs: int, outputs: int, has_norm: bool = False) -> Params:
    """The inverse of `flatten_layer`."""
    names = ("bias", "scale", "shift") if has_norm else ("bias",)
    parts = jnp.split(jnp.asarray(vector), [outputs * (inputs + number) for number in range(len(names))], axis=-1)
    kernel = parts[0].reshape(*parts[0].shape[:-1], outputs, inputs)
    return {"kernel": jnp.swapaxes(kernel, -1, -2), **dict(zip(names, parts[1:], strict=True))}


class StoredClients:
    """The network and the clients of a case."""

    def __init__(self, case: Case):
        meta = case.meta
        self.case, self.width = case, meta["width"]
        self.shapes = {"body": (meta["features"], self.width), "classifier": (self.width, meta["classes"])}
        self.counts = np.asarray(case["n_samples"])
        is_real = np.arange(case["labels"].shape[1]) < self.counts[:, None]
        self.data = client_data(case["inputs"][is_real], case["labels"][is_real], self.counts)
        self.training = {"learning_rate": meta["learning_rate"], "batch_size": meta["batch_size"], "shuffle": False}

    def leaves(self, vector: np.ndarray) -> Params:
        """The parameters of a vector [..., d]."""
        size = (self.shapes["body"][0] + 1) * self.width
        body, head = vector[..., :size], vector[..., size:]
        return {
            "body": read_layer(body, *self.shapes["body"]),
            "classifier": read_layer(head, *self.shapes["classifier"]),
        }

    def vector(self, params: Params) -> Array:
        """The vector [..., d] of those layers of the network that there are."""
        return jnp.concatenate([flatten_layer(params[name]) for name in self.shapes if name in params], axis=-1)

    @property
    def model(self) -> Model:
        def encode(params: Params, inputs: Array) -> Array:
            return jnp.tanh(inputs @ params["body"]["kernel"] + params["body"]["bias"])

        def classify(params: Params, features: Array) -> Array:
            return features @ params["classifier"]["kernel"] + params["classifier"]["bias"]

        return network({"params": self.leaves(self.case["w0"])}, encode, classify)

    def round(self, algorithm: Algorithm, cohort_size: int | None = None, model: Model | None = None) -> Round:
        size = self.case["selected"].shape[1] if cohort_size is None else cohort_size
        cohort = fixed_cohort(range(size))
        return make_round(algorithm, model or self.model, len(self.counts), participation=cohort)

    def run(
        self,
        algorithm: Algorithm,
        change: Callable[[State], State] = lambda state: state,
        data: Sequence[ClientData] | None = None,
        model: Model | None = None,
    ) -> History:
        """The rounds of the case.

        Args:
            algorithm: The algorithm.
            change: Of the state before the first round.
            data: The clients' data in each round; None: those of the case.
            model: The network; None: that of the case.
        """
        round, cohorts, key = self.round(algorithm, model=model), self.case["selected"], make_key(0)
        train = with_population(round.train, False, vmapped)

        @jax.jit
        def step(state: State, cohort: Cohort, data: ClientData):
            state, _, said = train(state, cohort, cohort_data(data, cohort), key)
            return state, jax.tree.map(jnp.add, said.received.shared, said.uploads.update)

        state, states, sent = change(round.init(key, self.data)), [], []
        for number, ids in enumerate(cohorts):
            own = self.data if data is None else data[number]
            state, variables = step(state, Cohort(jnp.asarray(ids), jnp.ones(len(ids), bool)), own)
            states.append(state)
            sent.append(variables)
        return History(states, sent)


def full_batches(view: ClientView, size: int) -> ClientView:
    """The view without the examples of a last batch that is not full."""
    rows = view.data.train
    return view._replace(data=view.data._replace(train=rows._replace(count=rows.count // size * size)))


def without_partial_batches(local_update: LocalUpdate) -> LocalUpdate:
    """A local update that leaves out the last batch of an epoch if it is not full."""
    size = local_update.batch_size
    return wrap_training(local_update, lambda rule, problem, view, key: rule(problem, full_batches(view, size), key))
