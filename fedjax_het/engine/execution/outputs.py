"""Checks that the outputs of a model fit the labels, and the algorithm their kind."""

import jax
import jax.numpy as jnp

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.errors import InputError
from fedjax_het.labels import find_kind
from fedjax_het.problem import Problem
from fedjax_het.types import Array, Context


def check_kind(algorithm: Algorithm, problem: Problem, federation: Federation) -> None:
    """Raise InputError if a slot would read outputs as logits of classes without seeing that labels are none."""
    kind = find_kind(federation.examples.labels)
    if kind.has_classes:
        return
    if algorithm.reads_classes:
        raise InputError(
            f"the labels are {kind.title}, and this algorithm reads the model's outputs as logits of classes. Use "
            "another one, such as fedavg."
        )
    check_outputs(problem, federation)


def check_outputs(problem: Problem, federation: Federation) -> None:
    """Raise InputError unless the outputs of the model fit the kind of labels."""
    model, key = problem.model, make_key(0)

    def logits(inputs: Array) -> Array:
        inputs = federation.prepare(inputs[:1])
        variables = model.init(key, inputs)
        context = Context(jnp.ones(1), jnp.zeros((), jnp.int32), key, False)
        return model.classify(variables["params"], model.encode(variables, inputs, context)[0][0])

    outputs, labels = jax.eval_shape(logits, federation.examples.inputs), federation.examples.labels
    kind, num = find_kind(labels), federation.num_classes
    expected = {"tags": (num,), "numbers": (num,), "ranks": (num - 1,), "times": (2,)}.get(kind.name)
    if (outputs.ndim != labels.ndim + 1) if expected is None else (outputs.shape[1:] != expected):
        wanted = "" if expected is None else f", not {expected}"
        raise InputError(
            f"config.model: {federation.name} has {kind.description}, but the model's outputs are {outputs.shape[1:]} "
            f"per example{wanted}. Use {kind.model}."
        )
