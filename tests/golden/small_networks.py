"""Rounds of a small network: linear, tanh, linear, or linear alone; its parameters as one vector, layer by layer."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.round.program import Round, make_round
from fedjax_het.types import Array, ClientData, Model, Params
from tests.golden.cases import Case
from tests.golden.replay import client_data, fixed_cohort


class Network:
    """The network of a case. Weights [out, in] come row by row before the bias, the body before the head."""

    def __init__(self, case: Case):
        sizes = [case.meta[name] for name in ("features", "hidden", "classes")]
        widths = [size for size in sizes if size]
        names = ["body", "classifier"][-(len(widths) - 1) :]
        self.shapes = dict(zip(names, zip(widths[1:], widths[:-1], strict=True), strict=True))
        self.start = case["w0"]
        if "parts" in case:
            sizes = [size for outputs, inputs in self.shapes.values() for size in (outputs * inputs, outputs)]
            assert np.array_equal(case["parts"], np.repeat(np.arange(4), sizes))

    def leaves(self, vector: Array | np.ndarray) -> Params:
        """The parameters of a vector [..., d]."""
        params, rest = {}, jnp.asarray(vector)
        for name, (outputs, inputs) in self.shapes.items():
            weight, bias, rest = jnp.split(rest, [outputs * inputs, outputs * (inputs + 1)], axis=-1)
            params[name] = {"kernel": weight.reshape(*weight.shape[:-1], outputs, inputs), "bias": bias}
        return params

    def vector(self, params: Params) -> Array:
        """The vector [..., d] of those layers that there are."""
        layers = [params[name] for name in self.shapes if name in params]
        flat = [x for layer in layers for x in (layer["kernel"].reshape(*layer["bias"].shape[:-1], -1), layer["bias"])]
        return jnp.concatenate(flat, axis=-1)

    def round(self, algorithm: Algorithm, num_clients: int, cohort_size: int) -> Round:
        def dense(layer: Params, inputs: Array) -> Array:
            return inputs @ layer["kernel"].T + layer["bias"]

        def features(params: Params, inputs: Array) -> Array:
            return jnp.tanh(dense(params["body"], inputs)) if "body" in self.shapes else inputs

        model = Model(
            init=lambda key, inputs: {"params": self.leaves(self.start)},
            encode=lambda variables, inputs, context: ((features(variables["params"], inputs), {}), {}),
            classify=lambda params, features: dense(params["classifier"], features),
            layers=lambda inputs: {},
        )
        return make_round(algorithm, model, num_clients, participation=fixed_cohort(range(cohort_size)))


def batches_as_data(inputs: np.ndarray, labels: np.ndarray, num_clients: int, cohort: Sequence[int]) -> ClientData:
    """Client cohort[s] has the batches inputs[s] [steps, batch, ...], one after the other."""
    num_examples = labels.shape[1] * labels.shape[2]
    of_all = np.zeros((num_clients, num_examples, *inputs.shape[3:]))
    labels_of_all = np.zeros((num_clients, num_examples))
    of_all[cohort] = inputs.reshape(len(cohort), num_examples, *inputs.shape[3:])
    labels_of_all[cohort] = labels.reshape(len(cohort), num_examples)
    counts = [num_examples] * num_clients
    return client_data(of_all.reshape(-1, *inputs.shape[3:]), labels_of_all.reshape(-1), counts)


def stack(trees: Sequence[Params]) -> Params:
    """The trees one behind the other, leaves [trees, ...]."""
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)
