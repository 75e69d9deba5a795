"""Gradient rules: from a batch to the gradient that the local optimizer is fed."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import GradientRule, Problem
from fedjax_het.types import Array, Batch, ClientView, Key, Params, Variables
from fedjax_het.validation import NonNegative, Positive, PositiveFraction, validate_arguments

LossAndState = tuple[Array, Variables]


def plain_gradient(
    problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
) -> tuple[LossAndState, Params]:
    """The gradient of the objective."""
    return problem.value_and_grad(params, state, batch, view, key)


def control_variate_gradient(
    problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
) -> tuple[LossAndState, Params]:
    """SCAFFOLD's gradient, corrected by the client's own control variate and that of the server.

        g(y) - c_i + c

    Reads: memory["control"] (c_i), published["control"] (c, shared leaves; personal ones are left uncorrected).

    References:
        Karimireddy et al., SCAFFOLD, ICML 2020. arXiv:1910.06378
    """
    loss_and_state, gradient = problem.value_and_grad(params, state, batch, view, key)
    average = tree.merge(tree.zeros_like(params), view.received.published["control"])
    return loss_and_state, tree.add(tree.subtract(gradient, view.memory["control"]), average)


PerturbationNorm = Literal["whole", "tensor"]


def perturbation(gradient: Params, radius: float = 0.05, norm: PerturbationNorm = "whole") -> Params:
    """delta = radius g / (||g|| + 1e-12), the norm over all parameters or tensor by tensor; 0 where g is."""
    if norm == "tensor":
        return jax.tree.map(lambda leaf: perturbation(leaf, radius), gradient)
    return tree.scale(radius / (tree.norm(gradient) + 1e-12), gradient)


@validate_arguments
def sharpness_aware(radius: NonNegative = 0.05, norm: PerturbationNorm = "whole") -> GradientRule:
    """The gradient at the worst nearby weights, so that training ends in a flat optimum.

        grad l(w + delta),   delta = perturbation(grad l(w))

    Both passes see the batch alike: they start from the same state, and the state that stays is the first pass's, so
    running statistics are updated once per step. The weights are never changed and changed back, so there is no
    rounding residue as in the authors' code.

    Args:
        radius: HarmoFL's α, 0.05.
        norm: Over the "whole" model, or "tensor" by tensor.

    References:
        Jiang et al., HarmoFL, AAAI 2022, Eqs. 6 and 7; official code med-air/HarmoFL, utils/weight_perturbation.py.
    """

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[LossAndState, Params]:
        loss_and_state, gradient = problem.value_and_grad(params, state, batch, view, key)
        nearby = tree.add(params, perturbation(gradient, radius, norm))
        _, gradient = problem.value_and_grad(nearby, state, batch, view, key)
        return loss_and_state, gradient

    return rule


@validate_arguments
def momentum_gradient(alpha: PositiveFraction = 0.1, clip: Positive | None = None) -> GradientRule:
    """FedCM's step along the server's direction, the client's own gradient being a part of it.

        v = alpha g(y) + (1 - alpha) Delta,   then, with clip, v min(1, clip / (||v|| + 1e-6))

    Reads: published["momentum"] (Delta, shared leaves; personal ones follow g alone).

    Args:
        alpha: In (0, 1], the paper's α, .1; 1 is the gradient alone.
        clip: FL-Simulator's 10; None in the paper.

    Raises:
        InputError: An alpha outside (0, 1], or a clip that is not above 0.

    References:
        Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021. arXiv:2106.10874
    """

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[LossAndState, Params]:
        loss_and_state, gradient = problem.value_and_grad(params, state, batch, view, key)
        direction = tree.merge(gradient, view.received.published["momentum"])
        step = tree.add(tree.scale(alpha, gradient), tree.scale(1 - alpha, direction))
        if clip is not None:
            step = tree.scale(jnp.minimum(1, clip / (tree.norm(step) + 1e-6)), step)
        return loss_and_state, step

    return rule


@validate_arguments
def proximal_gradient(lam: NonNegative = 1.0) -> GradientRule:
    """The gradient of the objective and of lam/2 ||v - w||^2, which pulls an own model v to the received one.

        g(v) + lam (v - w)

    Reads: view.start (w).

    Args:
        lam: Ditto's λ, 0.1 to 2; 0 is the gradient alone.

    References:
        Li et al., Ditto, ICML 2021. arXiv:2012.04221
    """

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[LossAndState, Params]:
        loss_and_state, gradient = problem.value_and_grad(params, state, batch, view, key)
        pull = tree.scale(lam, tree.subtract(params, view.start["params"]))
        return loss_and_state, tree.add(gradient, pull)

    return rule


def full_gradient(problem: Problem, view: ClientView, batch_size: int) -> Params:
    """Gradient of the objective over all of the client's training examples at view.start.

    A mean over examples, taken batch by batch; the collections besides params stay as they are.
    """
    params, state = tree.split_params(view.start)
    rows = view.data.train

    def add(total: Params, batch: Batch, number: Array) -> Params:
        _, gradient = problem.value_and_grad(params, state, batch, view, jax.random.fold_in(jax.random.key(0), number))
        return tree.add(total, tree.scale(jnp.sum(batch.mask), gradient))

    total = problem.fold(view.data, rows, batch_size, add, tree.zeros_like(params))
    return tree.scale(1.0 / jnp.maximum(rows.count, 1), total)
