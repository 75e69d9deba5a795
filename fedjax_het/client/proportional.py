"""Gradients that grow with the loss (PropFair)."""

from typing import Literal

import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.whole_data import mean_objective
from fedjax_het.algorithm import GradientRule, Problem
from fedjax_het.client.gradients import LossAndState, plain_gradient
from fedjax_het.types import Batch, ClientView, Key, Params, Variables
from fedjax_het.validation import Count, Positive, validate_arguments

Level = Literal["batch", "client"]


@validate_arguments
def proportional_gradient(
    base: Positive = 2.0,
    epsilon: Positive = 0.2,
    *,
    level: Level = "batch",
    is_continuous: bool = True,
    batch_size: Count = 50,
    gradient: GradientRule = plain_gradient,
) -> GradientRule:
    """The gradient of -log(1 - l / base), which upweights clients with large losses (PropFair).

        g / max(base - l, epsilon),   l: the loss of the batch, or of all the client's training examples

    Args:
        base: The paper's M, the largest loss that the logarithm is meant for.
        epsilon: Smallest value of base - l.
        level: Whose loss l is: "batch", or "client", which costs one pass over all its examples per step.
        is_continuous: False replaces the factor 1 / epsilon by the smaller 1 / base, as in the authors' code.
        batch_size: Batch size of the evaluations of "client"; does not affect the result.
        gradient: Rule that computes g.

    Raises:
        InputError: A number is not above 0, or the level is unknown.

    References:
        Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023. arXiv:2202.01666
    """

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[LossAndState, Params]:
        (loss, state), step = gradient(problem, params, state, batch, view, key)
        is_own = level == "client"
        measured = mean_objective(problem, view, {"params": params, **state}, batch_size) if is_own else loss
        distance = base - measured
        beyond = epsilon if is_continuous else base
        factor = 1 / jnp.where(distance >= epsilon, distance, beyond)
        return (loss, state), tree.scale(factor, step)

    return rule
