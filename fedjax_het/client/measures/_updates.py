"""Measures of a client's update: step coefficients, control variates and the effective learning rate."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_het import tree
from fedjax_het._internal.whole_data import mean_gradient
from fedjax_het.algorithm import Measure, Problem
from fedjax_het.client.optimizers import torch_sgd
from fedjax_het.client.schedules import Schedule, rate
from fedjax_het.types import Array, ClientView, Params
from fedjax_het.validation import FractionBelowOne, NonNegative, validate_arguments

Coefficients = Callable[[Array], Array]
"""Number of local steps [] -> |a|_1 []."""
_TINY = 1e-20  # a rate of 0 has the limit of |a|_1 for small rates


def impulse_response_norm(
    optimizer: optax.GradientTransformation, learning_rate: float | Array, mu: float = 0.0
) -> Coefficients:
    """|a|_1 of a linear, time-invariant local rule, from its response to a unit gradient.

        w_tau - w = -lr sum_k a_k g_k,   a_k = h_(tau-k),   |a|_1 = sum_{j=1..tau} |h_j|

    h_j: displacement of the weights (in units of the learning rate) j steps after a single gradient of 1. Not valid for
    rules that change with the step (schedules) or with the size of the gradient (Adam).

    Args:
        optimizer: The local rule.
        learning_rate: Learning rate of the rule.
        mu: Weight of a proximal term, which pulls the weights back between steps.
    """

    def norm(num_steps: Array) -> Array:
        def step(index: Array, progress: tuple) -> tuple:
            moved, state, total = progress
            gradient = jnp.where(index == 0, 1.0, 0.0) + mu * moved
            update, state = optimizer.update(gradient, state, moved)
            return moved + update, state, total + jnp.abs(moved + update)

        zero = jnp.zeros((), float)
        _, _, total = jax.lax.fori_loop(0, jnp.asarray(num_steps, int), step, (zero, optimizer.init(zero), zero))
        return total / learning_rate

    return norm


def released_norm(learning_rate: float | Array, momentum: float = 0.0, mu: float = 0.0) -> Coefficients:
    """The authors' running sum. With both momentum and mu, it counts every step twice."""

    def norm(num_steps: Array) -> Array:
        pull = jnp.asarray(learning_rate * mu, float)

        def step(index: Array, progress: tuple) -> tuple:
            counter, total = progress
            counter = momentum * counter + 1
            plain = jnp.where(pull == 0, total + 1, total)
            total = jnp.where(jnp.asarray(momentum) != 0, total + counter, plain)
            return counter, jnp.where(pull != 0, (1 - pull) * total + 1, total)

        zero = jnp.zeros((), float)
        return jax.lax.fori_loop(0, jnp.asarray(num_steps, int), step, (zero, zero))[1]

    return norm


CoefficientRule = Literal["impulse", "released"]
Control = Literal["path", "start"]
RULES: dict[CoefficientRule, Callable[[float | Array, float, float], Coefficients]] = {
    "impulse": lambda learning_rate, momentum, mu: impulse_response_norm(
        torch_sgd(learning_rate, momentum), learning_rate, mu
    ),
    "released": released_norm,
}


@validate_arguments
def coefficient_norm(
    learning_rate: NonNegative,
    momentum: FractionBelowOne = 0.0,
    mu: NonNegative = 0.0,
    rule: CoefficientRule = "impulse",
    schedule: Schedule | None = None,
) -> Measure:
    """|a_i|_1: the number of plain gradient steps that a client's round of SGD is equivalent to.

    tau_i for plain SGD, more with momentum, less with a proximal term.
    Shape: [].
    Reads: num_steps. Weight decay is ignored, as everywhere.

    Args:
        learning_rate: Learning rate of the local steps.
        momentum: Momentum of the local steps.
        mu: Weight of the proximal term.
        rule: "impulse" (exact) or "released" (the authors' sum, too large if momentum and mu are combined).
        schedule: Factor of lr per round, as in `sgd`.

    References:
        Wang et al., FedNova, NeurIPS 2020. arXiv:2007.07481; official code JYWa/FedNova, distoptim/FedNova.py.
    """

    def measure(problem: Problem, view: ClientView) -> Array:
        now = learning_rate if schedule is None else jnp.maximum(rate(learning_rate, schedule, view), _TINY)
        return RULES[rule](now, momentum, mu)(view.num_steps)

    return measure


@validate_arguments
def change_of_control(
    learning_rate: float, control: Control = "path", batch_size: int = 50, schedule: Schedule | None = None
) -> Measure:
    """The change of a client's control variate in a round.

        path (option II):   c_i+ - c_i = -c + (w - y) / (K_i lr)
        start (option I):   c_i+ - c_i = grad F_i(w) - c_i

    Shared leaves only.
    Reads: view.start, view.local, num_steps, memory["control"], published["control"]. (w - y)/(K lr) is the mean of the
    corrected gradients only for plain SGD with a constant learning rate; the change then does not need c_i. A client
    without steps has no change.

    Args:
        learning_rate: Learning rate lr of the local steps.
        control: "path" (option II) or "start" (option I).
        batch_size: Batch size of option I's accumulation; does not affect the result.
        schedule: Factor of lr per round, as in `sgd`; in rounds with lr = 0, option II changes nothing.

    References:
        Karimireddy et al., SCAFFOLD, ICML 2020, Alg. 1. arXiv:1910.06378
    """

    def measure(problem: Problem, view: ClientView) -> Params:
        has_moved = view.num_steps > 0
        if control == "path":
            own_rate = rate(learning_rate, schedule, view)
            has_moved &= own_rate > 0
            path = tree.subtract(view.start["params"], view.local["params"])
            gradient = tree.scale(1.0 / tree.positive_or_one(view.num_steps * own_rate), path)
            change = tree.subtract(_shared(gradient, view), view.received.published["control"])
        else:
            start_gradient = mean_gradient(problem, view, batch_size)
            change = _shared(tree.subtract(start_gradient, view.memory["control"]), view)
        return tree.where(has_moved, change, tree.zeros_like(change))

    return measure


def _shared(params: Params, view: ClientView) -> Params:
    return tree.partition_like(params, view.received.shared["params"])[1]


def squared_norm(problem: Problem, view: ClientView) -> Array:
    """[]: |w_i - w|^2 over the shared parameters, which FedExP's server compares with the norm of the mean.

    References:
        Jhunjhunwala, Wang and Joshi, FedExP, ICLR 2023. arXiv:2301.09604
    """
    return tree.squared_norm(_shared(tree.subtract(view.local["params"], view.start["params"]), view)).astype(float)


def movement_per_rate(learning_rate: float, schedule: Schedule | None = None) -> Measure:
    """[]: |w_i - w|^2 / lr over the shared parameters, the length of q-FFL's steps.

    Args:
        learning_rate: Learning rate lr of the local steps.
        schedule: Factor of lr per round, as in `sgd`.

    References:
        Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020. arXiv:1905.10497
    """

    def measure(problem: Problem, view: ClientView) -> Array:
        return squared_norm(problem, view) / tree.positive_or_one(rate(learning_rate, schedule, view))

    return measure


def displacement(problem: Problem, view: ClientView) -> Params:
    """h_i, the client's total displacement over its rounds including this one; shared leaves only.

    Reads: view.start, view.local, memory["displacement"] (see `memories.total_displacement`).
    """
    moved = tree.subtract(view.local["params"], view.start["params"])
    return _shared(tree.add(view.memory["displacement"], moved), view)


def shared_gradient_state(problem: Problem, view: ClientView) -> Params:
    """The last state of a stateful gradient rule, a tree like the parameters; shared leaves only."""
    return _shared(view.results["gradient"], view)


def result(name: str) -> Measure:
    """A result of the client's training other than the sent model, view.results[name].

    Args:
        name: Name of the result, such as "distance" (see `consistency.with_consistency_mask`).
    """
    return lambda problem, view: view.results[name]


def effective_learning_rate(learning_rate: float, schedule: Schedule | None = None) -> Measure:
    """K_i lr: an update of plain SGD divided by it is the negative mean direction along the path.

    Shape: [].
    Reads: num_steps.

    Args:
        learning_rate: Learning rate lr of the local steps.
        schedule: Factor of lr per round, as in `sgd`.

    References:
        Xu et al., FedCM, 2021. arXiv:2106.10874
    """

    def measure(problem: Problem, view: ClientView) -> Array:
        return view.num_steps * rate(learning_rate, schedule, view)

    return measure
