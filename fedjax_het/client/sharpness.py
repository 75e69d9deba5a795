"""Sharpness-aware gradient rules: the gradient at perturbed weights nearby."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import GradientRule, Problem, StatefulGradientRule
from fedjax_het.client.gradients import LossAndState, plain_gradient
from fedjax_het.client.optimizers import partition_trained
from fedjax_het.types import Array, Batch, ClientView, Key, Params, Variables
from fedjax_het.validation import Fraction, NonNegative, may_be_nonzero, validate_arguments

PerturbationNorm = Literal["whole", "tensor", "none"]
AdaptiveParameters = Literal["weights", "all"]
_TASK, _ADDED = slice(0, 1), slice(1, None)  # terms of the objective: the task loss comes first
_EPSILON = 1e-12


def perturbation(
    gradient: Params,
    radius: float | Array = 0.05,
    norm: PerturbationNorm = "whole",
    epsilon: float = _EPSILON,
    scales: Params | None = None,
) -> Params:
    """delta = radius T^2 g / (||T g|| + epsilon); 0 if g is 0.

    Args:
        gradient: g.
        radius: Norm of T^-1 delta.
        norm: Scope of the norm: the "whole" tree or each "tensor"; "none" gives radius T^2 g.
        epsilon: Constant added to the norm.
        scales: T, a tree like g. None: 1.
    """
    if scales is not None:
        multiply = lambda a, b: jax.tree.map(jnp.multiply, a, b)  # noqa: E731
        return multiply(scales, perturbation(multiply(scales, gradient), radius, norm, epsilon))
    if norm == "tensor":
        return jax.tree.map(lambda leaf: perturbation(leaf, radius, epsilon=epsilon), gradient)
    size = 1.0 if norm == "none" else tree.positive_or_one(tree.norm(gradient) + epsilon)
    return tree.scale(radius / size, gradient)


def adaptive_scales(params: Params, adaptive: AdaptiveParameters, offset: float | Array) -> Params:
    """ASAM's T: |w| + offset for weights and 1 for biases and shifts of norms, or |w| + offset for "all" parameters.

    Args:
        params: The parameters; those named "bias" are biases.
        adaptive: "weights" or "all".
        offset: ASAM's eta.
    """

    def scale(path: tuple, leaf: Array) -> Array:
        is_bias = jax.tree_util.keystr(path, simple=True, separator="/").rpartition("/")[2] == "bias"
        return jnp.ones_like(leaf) if is_bias and adaptive == "weights" else (jnp.abs(leaf) + offset).astype(leaf.dtype)

    return jax.tree.map_with_path(scale, params)


@validate_arguments
def sharpness_aware(
    radius: NonNegative = 0.05,
    norm: PerturbationNorm = "whole",
    *,
    epsilon: NonNegative = _EPSILON,
    adaptive: AdaptiveParameters | None = None,
    offset: NonNegative = 0.0,
    mix: Fraction = 1.0,
    only: str | None = None,
) -> GradientRule:
    """The gradient at the worst nearby weights, which leads to a flat optimum.

        g = grad l(w),   delta = perturbation(g),   (1 - mix) g + mix grad l(w + delta) + grad r(w)

    l is the task loss, the first term of the objective; r is the sum of the other terms, such as a proximal term, which
    neither enter the perturbation nor are perturbed. Both passes start from the same state, and the state after the
    first pass is kept, so running statistics are updated once per step. Weights are not perturbed in place, which
    avoids the rounding error of the authors' codes.

    Args:
        radius: SAM's ρ, HarmoFL's α. 0 is the plain gradient.
        norm: Scope of the norm: the "whole" model or each "tensor"; "none" is delta = radius g.
        epsilon: Constant added to the norm: 1e-16 in FedSAM's code, 1e-7 in FL-Simulator.
        adaptive: ASAM: scale the perturbation of each entry by its size, see `adaptive_scales`, for "weights" (the
            authors' code) or "all" parameters (the printed formula). None: SAM.
        offset: ASAM's η.
        mix: Weight of the perturbed gradient, FedSpeed's α.
        only: Pattern of the trained parameters, as in `optimizers.trainable_only`; the others are not perturbed.

    Raises:
        InputError: An option is unknown, or a number is out of range.

    References:
        Foret et al., Sharpness-Aware Minimization, ICLR 2021. arXiv:2010.01412; Kwon et al., ASAM, ICML 2021.
        arXiv:2102.11600
    """
    if not may_be_nonzero(radius) or not may_be_nonzero(mix):
        return plain_gradient

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[LossAndState, Params]:
        loss_and_state, gradient, added = differentiate_task(problem, params, state, batch, view, key)
        frozen, trained = partition_trained(gradient, only)
        scales = None
        if adaptive is not None:
            scales = adaptive_scales(tree.partition_like(params, trained)[1], adaptive, offset)
        delta = tree.merge(tree.zeros_like(frozen), perturbation(trained, radius, norm, epsilon, scales))
        _, nearby = problem.value_and_grad(tree.add(params, delta), state, batch, view, key, _TASK)
        if may_be_nonzero(1 - mix):
            nearby = tree.add(tree.scale(1 - mix, gradient), tree.scale(mix, nearby))
        return loss_and_state, nearby if added is None else tree.add(nearby, added)

    return rule


@validate_arguments
def consensus_sharpness_aware(
    radius: NonNegative = 0.1, *, epsilon: NonNegative = _EPSILON, only: str | None = None
) -> StatefulGradientRule:
    """FedSMOO's gradient at nearby weights, with a dual variable that makes the perturbations of all clients agree.

        q = g - mu_i - s,   delta = radius q / (||q|| + epsilon),   mu_i <- mu_i + delta - s,   grad l(w + delta)

    g and l refer to the task loss alone, as in `sharpness_aware`. The state is mu_i, which is kept from step to step
    and, by a memory, from round to round; it is not bounded. Personal leaves have mu_i = s = 0.
    Reads: memory["perturbation"] (mu_i, `memories.gradient_state`), published["perturbation"] (s).

    Args:
        radius: The paper's r.
        epsilon: Constant added to the norm.
        only: As in `sharpness_aware`.

    References:
        Sun et al., Dynamic Regularized Sharpness Aware Minimization in Federated Learning, ICML 2023. arXiv:2305.11584
    """

    def update(
        dual: Params, problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[tuple[LossAndState, Params], Params]:
        loss_and_state, gradient, added = differentiate_task(problem, params, state, batch, view, key)
        common = view.received.published["perturbation"]
        drawn = tree.subtract(tree.subtract(gradient, dual), tree.merge(tree.zeros_like(dual), common))
        frozen, trained = partition_trained(drawn, only)
        delta = tree.merge(tree.zeros_like(frozen), perturbation(trained, radius, epsilon=epsilon))
        _, nearby = problem.value_and_grad(tree.add(params, delta), state, batch, view, key, _TASK)
        change = tree.subtract(tree.partition_like(delta, common)[1], common)
        dual = tree.merge(dual, tree.add(tree.partition_like(dual, common)[1], change))
        return (loss_and_state, nearby if added is None else tree.add(nearby, added)), dual

    return StatefulGradientRule(lambda view: view.memory["perturbation"], update)


def differentiate_task(
    problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
) -> tuple[LossAndState, Params, Params | None]:
    """Differentiate the task loss (the objective's first term) and the other terms separately.

    Returns:
        (Loss of the whole objective and new state, gradient of the task loss, gradient of the other terms or None.)
    """
    (loss, new_state), gradient = problem.value_and_grad(params, state, batch, view, key, _TASK)
    if len(problem.objective) == 1:
        return (loss, new_state), gradient, None
    (added_loss, _), added = problem.value_and_grad(params, state, batch, view, key, _ADDED)
    return (loss + added_loss, new_state), gradient, added
