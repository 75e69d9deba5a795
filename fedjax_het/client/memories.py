"""Memories: values that a client stores between the rounds in which it participates."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_het import tree
from fedjax_het.algorithm import Measure, Memory, Problem
from fedjax_het.types import ClientView, Params, PyTree, Variables
from fedjax_het.validation import Count, validate_arguments


def control_variate(change: Measure) -> Memory:
    """SCAFFOLD's c_i, initially zero, then updated by the reported change."""

    def update(problem: Problem, view: ClientView) -> Params:
        control = view.memory["control"]
        moved = tree.merge(tree.zeros_like(control), change(problem, view))
        return tree.add(control, moved)

    return Memory(lambda variables: tree.zeros_like(variables["params"]), update)


def total_displacement() -> Memory:
    """FedDyn's h_i: the sum of the client's displacements w_i - w over its rounds, from zero; 0 for personal leaves."""

    def update(problem: Problem, view: ClientView) -> Params:
        moved = tree.subtract(view.local["params"], view.start["params"])
        _, shared = tree.partition_like(moved, view.received.shared["params"])
        return tree.add(view.memory["displacement"], tree.merge(tree.zeros_like(moved), shared))

    return Memory(lambda variables: tree.zeros_like(variables["params"]), update)


def result(name: str, init: Callable[[Variables], PyTree] = lambda variables: variables) -> Memory:
    """A result of the client's last training other than the sent model, view.results[name].

    Args:
        name: Name of the result, "own" or "gradient".
        init: Initial variables -> value before the client's first round; by default unchanged, for a personal model.
    """
    return Memory(init, lambda problem, view: view.results[name])


def optimizer_state(optimizer: optax.GradientTransformation) -> Memory:
    """The local optimizer's state (momentum, moments), which continues from the client's last round."""
    return Memory(lambda variables: optimizer.init(variables["params"]), lambda problem, view: view.optimizer)


def gradient_state() -> Memory:
    """The last state of a stateful gradient rule, a tree like the parameters, initially zero."""
    return result("gradient", lambda variables: tree.zeros_like(variables["params"]))


def exchanged(name: str, init: Callable[[Variables], PyTree]) -> Memory:
    """A value that changes only when clients exchange models without a server, see `fedjax_het.mixing`.

    Args:
        name: Name of the memory.
        init: Initial variables -> initial value.
    """
    return Memory(init, lambda problem, view: view.memory[name])


def last(measure: Measure, empty: Callable[[Variables], PyTree] = lambda variables: jnp.zeros((), float)) -> Memory:
    """The last value of a measure, and whether there is one: {"value", "is_known"}, initially zeros and False.

    Args:
        empty: Initial variables -> a tree with the value's shapes; by default one number.
    """
    return Memory(
        lambda variables: {"value": tree.zeros_like(empty(variables)), "is_known": jnp.zeros((), bool)},
        lambda problem, view: {"value": measure(problem, view), "is_known": jnp.ones((), bool)},
    )


def last_model() -> Memory:
    """The client's last trained model, {"value": all variables, "is_known"}; at first the initial model, not known."""
    return Memory(
        lambda variables: {"value": variables, "is_known": jnp.zeros((), bool)},
        lambda problem, view: {"value": view.local, "is_known": jnp.ones((), bool)},
    )


def has_trained() -> Memory:
    """Whether the client has trained before, []."""
    return Memory(lambda variables: jnp.zeros((), bool), lambda problem, view: jnp.ones((), bool))


def last_head() -> Memory:
    """The head after the client's last training, {"value": params/classifier, "is_known"}."""
    return last(
        lambda problem, view: view.local["params"]["classifier"], lambda variables: variables["params"]["classifier"]
    )


@validate_arguments
def previous_models(size: Count = 1, first: Literal["none", "init"] = "none") -> Memory:
    """The last models trained by the client, newest first: {"models": leaves [size, ...], "count": number of models}.

    Args:
        size: Number of the client's rounds to store.
        first: Before its first round, a client has no earlier model ("none") or the initial model ("init").

    Raises:
        InputError: An option is unknown, or the size is below 1.
    """

    def init(variables: Variables) -> PyTree:
        return {"models": tree.broadcast(variables, size), "count": jnp.asarray(first == "init", jnp.int32)}

    def update(problem: Problem, view: ClientView) -> PyTree:
        kept = view.memory["previous"]
        models = jax.tree.map(lambda new, old: jnp.stack([new, *old[:-1]]), view.local, kept["models"])
        return {"models": models, "count": jnp.minimum(kept["count"] + 1, size)}

    return Memory(init, update)
