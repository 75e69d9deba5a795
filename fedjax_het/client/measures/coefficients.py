"""How much of each gradient a client's update holds (FedNova)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fedjax_het.algorithm import Measure, Problem
from fedjax_het.client.optimizers import torch_sgd
from fedjax_het.client.schedules import Schedule, rate
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, ClientView
from fedjax_het.validation import FractionBelowOne, NonNegative, validate_arguments

Coefficients = Callable[[Array], Array]
"""Number of local steps [] -> |a|_1 []."""
_TINY = 1e-20  # a rate of 0 has the |a|_1 of the rates that go to it


def by_impulse(optimizer: optax.GradientTransformation, learning_rate: float, mu: float = 0.0) -> Coefficients:
    """|a|_1 of any linear, time-invariant local rule, from its answer to one unit gradient.

        w_tau - w = -lr sum_k a_k g_k,   a_k = h_(tau-k),   |a|_1 = sum_{j=1..tau} |h_j|

    h_j: how far (in learning rates) the weights are j steps after a single gradient of 1.   mu: the factor of a
    proximal term, which pulls them back meanwhile. Not for rules that change with the step (schedules) or with the
    size of the gradient (Adam).
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


def as_released(learning_rate: float, momentum: float = 0.0, mu: float = 0.0) -> Coefficients:
    """The authors' running sum. With momentum and mu together it counts every step twice."""

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


RULES = {
    "impulse": lambda learning_rate, momentum, mu: by_impulse(torch_sgd(learning_rate, momentum), learning_rate, mu),
    "released": as_released,
}


@validate_arguments
def coefficient_norm(
    learning_rate: NonNegative,
    momentum: FractionBelowOne = 0.0,
    mu: NonNegative = 0.0,
    rule: str = "impulse",
    schedule: Schedule | None = None,
) -> Measure:
    """|a_i|_1: how many plain gradient steps a client's round of SGD amounts to.

    tau_i for plain SGD, more with momentum, less with a proximal term.   Shape: [].   Reads: num_steps.
    rule: "impulse" (exact) or "released" (the authors' sum, too large where momentum meets mu).
    Weight decay is left out, as everywhere.   schedule: what lr is multiplied by in a round, as in `sgd`.
    Wang et al., FedNova, NeurIPS 2020. arXiv:2007.07481; official code JYWa/FedNova, distoptim/FedNova.py.
    """
    if rule not in RULES:
        raise InputError(f"a_norm: unknown option '{rule}'. {nearest(rule, RULES)}")

    def measure(problem: Problem, view: ClientView) -> Array:
        now = learning_rate if schedule is None else jnp.maximum(rate(learning_rate, schedule, view), _TINY)
        return RULES[rule](now, momentum, mu)(view.num_steps)

    return measure
