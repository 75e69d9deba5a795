"""Gradient rules: from a batch to the gradient for the local optimizer."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import GradientRule, Problem, StatefulGradientRule
from fedjax_het.types import Array, Batch, ClientView, Key, Params, PyTree, Variables
from fedjax_het.validation import NonNegative, Positive, PositiveFraction, validate_arguments

LossAndState = tuple[Array, Variables]
Hessian = Literal["none", "exact", "difference"]
META_PARTS: dict[Hessian, int] = {"none": 2, "exact": 3, "difference": 3}
"""The number of parts of a batch in `meta_gradient`."""


def plain_gradient(
    problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
) -> tuple[LossAndState, Params]:
    """The gradient of the objective."""
    return problem.value_and_grad(params, state, batch, view, key)


def control_variate_gradient(gradient: GradientRule = plain_gradient) -> GradientRule:
    """SCAFFOLD's gradient, corrected by the control variates of the client and the server.

        g(y) - c_i + c

    Reads: memory["control"] (c_i), published["control"] (c, shared leaves; personal leaves are not corrected).

    Args:
        gradient: Rule that computes g, see `momentum_gradient`.

    References:
        Karimireddy et al., SCAFFOLD, ICML 2020. arXiv:1910.06378
    """

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[LossAndState, Params]:
        loss_and_state, step = gradient(problem, params, state, batch, view, key)
        average = tree.merge(tree.zeros_like(params), view.received.published["control"])
        return loss_and_state, tree.add(tree.subtract(step, view.memory["control"]), average)

    return rule


@validate_arguments
def momentum_gradient(
    alpha: PositiveFraction = 0.1, clip: Positive | None = None, gradient: GradientRule = plain_gradient
) -> GradientRule:
    """FedCM's mixture of the client's gradient and the server's momentum.

        v = alpha g(y) + (1 - alpha) Delta,   then, with clip, v min(1, clip / (||v|| + 1e-6))

    Reads: published["momentum"] (Delta, shared leaves; personal ones follow g alone).

    Args:
        alpha: The paper's α in (0, 1] (default .1). 1 is the gradient alone.
        clip: Maximum norm of v (10 in FL-Simulator). None: no clipping (paper).
        gradient: Rule that computes g. The momentum is added to its result, so it does not enter the perturbation of a
            sharpness-aware rule.

    Raises:
        InputError: An alpha outside (0, 1], or a clip that is not above 0.

    References:
        Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021. arXiv:2106.10874
    """

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[LossAndState, Params]:
        loss_and_state, own = gradient(problem, params, state, batch, view, key)
        direction = tree.merge(own, view.received.published["momentum"])
        step = tree.add(tree.scale(alpha, own), tree.scale(1 - alpha, direction))
        if clip is not None:
            step = _clip(step, clip)
        return loss_and_state, step

    return rule


@validate_arguments
def dynamic_gradient(
    alpha: Positive = 0.1,
    mean_examples: Positive | None = None,
    clip: Positive | None = None,
    gradient: GradientRule = plain_gradient,
) -> GradientRule:
    """FedDyn's gradient, dynamically regularized so that stationary points of clients agree with the received model.

        g(w) + a_i h_i + a_i (w - x),   a_i = alpha, or alpha nbar / n_i;   x: the received model

    With clip, the vector v = g(w) + a_i (h_i - x) becomes v min(1, clip / (||v|| + 1e-6)) before a_i w is added, as in
    the authors' code, whose optimizer adds a_i w as weight decay; clipping thus depends on the origin of the weights.
    Reads: memory["displacement"] (h_i, `memories.total_displacement`), view.start. Personal leaves use g alone.

    Args:
        alpha: FedDyn's α > 0.
        mean_examples: nbar, the mean number of training examples over all clients. None: the same a_i for all clients.
        clip: Maximum norm of v (10 in the authors' code). None: no clipping (paper).
        gradient: Rule that computes g(w) of the task loss alone: the terms are added to its result, so they do not
            enter any perturbation.

    Raises:
        InputError: A number that is not above 0.

    References:
        Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021. arXiv:2111.04263
    """

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[LossAndState, Params]:
        loss_and_state, step = gradient(problem, params, state, batch, view, key)
        num_examples = jnp.maximum(view.data.train.count, 1)
        own_alpha = alpha if mean_examples is None else alpha * mean_examples / num_examples
        history, start, own = (
            tree.partition_like(variables, view.received.shared["params"])[1]
            for variables in (view.memory["displacement"], view.start["params"], params)
        )
        if clip is None:
            return loss_and_state, _add_scaled(step, own_alpha, tree.add(history, tree.subtract(own, start)))
        step = _clip(_add_scaled(step, own_alpha, tree.subtract(history, start)), clip)
        return loss_and_state, _add_scaled(step, own_alpha, own)

    return rule


def _add_scaled(gradient: Params, factor: float | Array, direction: Params) -> Params:
    """gradient + factor direction, for the leaves of direction."""
    _, part = tree.partition_like(gradient, direction)
    return tree.merge(gradient, tree.add(part, tree.scale(factor, direction)))


@validate_arguments
def clipped_gradient(norm: Positive = 10.0, gradient: GradientRule = plain_gradient) -> GradientRule:
    """A gradient clipped to a maximum norm: g min(1, norm / (||g|| + 1e-6)), as in PyTorch's clip_grad_norm_.

    Args:
        norm: Maximum norm over all parameters (default 10).
        gradient: Rule whose gradient (of the whole objective) is clipped.
    """

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[LossAndState, Params]:
        loss_and_state, direction = gradient(problem, params, state, batch, view, key)
        return loss_and_state, _clip(direction, norm)

    return rule


def _clip(gradient: Params, norm: float | Array) -> Params:
    return tree.scale(jnp.minimum(1, norm / (tree.norm(gradient) + 1e-6)), gradient)


def wrapped_rule(rule: StatefulGradientRule, wrapper: Callable[[GradientRule], GradientRule]) -> StatefulGradientRule:
    """A stateful rule whose gradient is passed to a wrapper rule.

        wrapped_rule(rule, lambda gradient: dynamic_gradient(0.1, gradient=gradient))

    Args:
        rule: The stateful rule.
        wrapper: Function from a rule to the rule around it.
    """

    def update(
        own: PyTree, problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[tuple[LossAndState, Params], PyTree]:
        result, own = rule.update(own, problem, params, state, batch, view, key)
        return wrapper(lambda *arguments: result)(problem, params, state, batch, view, key), own

    return StatefulGradientRule(rule.init, update)


def tracked_gradient(gradient: GradientRule = plain_gradient) -> StatefulGradientRule:
    """The gradient plus the correction of gradient tracking: g + c. Its state is the last such direction.

    Reads: memory["tracking"] (c, see `memories.gradient_state`).

    Args:
        gradient: Rule that computes g.
    """

    def update(
        own: PyTree, problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[tuple[LossAndState, Params], PyTree]:
        loss_and_state, step = gradient(problem, params, state, batch, view, key)
        direction = tree.add(step, view.memory["tracking"])
        return (loss_and_state, direction), direction

    return StatefulGradientRule(lambda view: tree.zeros_like(view.local["params"]), update)


@validate_arguments
def proximal_gradient(lam: NonNegative = 1.0) -> GradientRule:
    """The gradient of the objective plus lam/2 ||v - w||^2, which regularizes a personal model v to the received one.

        g(v) + lam (v - w)

    Reads: view.start (w).

    Args:
        lam: Ditto's λ (default 1), 0.1 to 2. 0 is the gradient alone.

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


@validate_arguments
def meta_gradient(alpha: NonNegative = 0.01, hessian: Hessian = "none", delta: Positive = 1e-3) -> GradientRule:
    """The gradient of the loss after one step, for a start from which one step leads to a good model (Per-FedAvg).

        g_1(w'),   w' = w - alpha g_0(w)                                        "none", first order
        g_1(w') - alpha H_2(w) g_1(w')                                          "exact"
        the same with H v = (g(w + delta v) - g(w - delta v)) / (2 delta)       "difference", Hessian-free

    g_p is the gradient of part p of the batch: of its examples p, p + 2, p + 4, ..., or p, p + 3, ... of three parts. A
    part without examples has the gradient 0. The loss is that of g_0, and the state that of g_1.

    Args:
        alpha: The paper's α, the rate of the step that the personal model takes.
        hessian: As above.
        delta: The paper's δ.

    References:
        Fallah, Mokhtari and Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
        Meta-Learning Approach, NeurIPS 2020. arXiv:2002.07948
    """
    num_parts = META_PARTS[hessian]

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[LossAndState, Params]:
        def compute(number: int, params: Params) -> tuple[LossAndState, Params]:
            part = jax.tree.map(lambda x: x[number::num_parts], batch)
            return problem.value_and_grad(params, state, part, view, jax.random.fold_in(key, number))

        (loss, _), first = compute(0, params)
        (_, new_state), meta = compute(1, _add_scaled(params, -alpha, first))
        if hessian == "exact":
            product = jax.jvp(lambda params: compute(2, params)[1], (params,), (meta,))[1]
            meta = _add_scaled(meta, -alpha, product)
        elif hessian == "difference":
            ahead, behind = (compute(2, _add_scaled(params, step, meta))[1] for step in (delta, -delta))
            meta = _add_scaled(meta, -alpha / (2 * delta), tree.subtract(ahead, behind))
        return (loss, new_state), meta

    return rule
