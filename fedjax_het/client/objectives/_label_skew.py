"""Losses against label skew: by class counts (FedLC, FedRS, FedETF), by the received model's logits (FedNTD)."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Term
from fedjax_het.client.objectives._supervised import count_classes
from fedjax_het.labels import check_classes, cross_entropies, mean_over_labels
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Array
from fedjax_het.validation import Fraction, NonNegative, Positive, validate_arguments

CalibrationForm = Literal["inclusive", "printed"]
RestrictionScale = Literal["missing", "share"]
MissingClasses = Literal["once", "excluded"]


@validate_arguments
def calibrated_cross_entropy(
    tau: NonNegative = 0.5, form: CalibrationForm = "inclusive", floor: Positive | None = None
) -> Term:
    """Cross-entropy with a margin for each class, larger for classes with few examples at the client (FedLC).

        a = z - m,   m_c = tau n_c^(-1/4)
        inclusive:  1/B sum_b -log( e^{a_y} / sum_c e^{a_c} )
        printed:    1/B sum_b -log( e^{a_y} / sum_{c != y} e^{a_c} )

    n_c is the client's number of training examples. A class without examples has an infinite margin and is excluded
    from the sums; an empty sum contributes no term.
    Shapes: as `cross_entropy`.
    Reads: outputs.logits, the examples' labels.

    Args:
        tau: The paper's τ: .1, .5 (default) or 1. 0 is the cross-entropy over all classes.
        form: "inclusive", or "printed", which is unbounded below.
        floor: Lower bound of the counts (1e-8 in FL-bench), with which missing classes stay in the sums with a large
            margin. None excludes them.

    References:
        Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022.
        arXiv:2209.00189
    """

    def calibrated_cross_entropy(forward: ForwardPass) -> Array:
        logits, labels = forward.outputs.logits, forward.batch.labels
        counts = count_classes(forward.view.data, logits.shape[-1])
        losses = calibrated_losses(logits, labels, counts, tau, form, floor)
        return mean_over_labels(losses, labels, forward.batch.mask)

    return calibrated_cross_entropy


def calibrated_losses(
    logits: Array,
    labels: Array,
    counts: Array,
    tau: float,
    form: CalibrationForm = "inclusive",
    floor: float | None = None,
) -> Array:
    """The loss of every example, logits [..., class] -> [...], for counts [class]; see `calibrated_cross_entropy`."""
    counts = counts if floor is None else jnp.maximum(counts, floor)
    has_margin = (counts > 0) & (jnp.asarray(tau) > 0)
    margins = jnp.where(has_margin, tau * jnp.where(has_margin, counts, 1.0) ** -0.25, 0)
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    calibrated = logits - margins.astype(logits.dtype)
    is_summed = has_margin | (jnp.asarray(tau) <= 0) | is_true
    if form == "printed":
        is_summed = is_summed & ~is_true
    never = jnp.finfo(logits.dtype).min / 2  # finite, so that no gradient is NaN
    total = jax.nn.logsumexp(jnp.where(is_summed, calibrated, never), axis=-1)
    own = jnp.sum(jnp.where(is_true, calibrated, 0), axis=-1)
    return jnp.where(jnp.any(is_summed, axis=-1), total - own, 0)


@validate_arguments
def restricted_cross_entropy(alpha: Fraction = 0.5, scaling: RestrictionScale = "missing") -> Term:
    """Cross-entropy of logits that are scaled down for classes that the client lacks (FedRS).

        1/B sum_b CE(s z_b, y_b),   missing:  s_c = 1 for classes that it has, else alpha
                                    share:    s_c = alpha + (1 - alpha) n_c / max_j n_j

    Shapes: as `cross_entropy`.
    Reads: outputs.logits, the examples' labels.

    Args:
        alpha: The paper's α in [0, 1] (.5). 1 is the cross-entropy. With 0, the logits of missing classes are 0 and
            remain in the sum.
        scaling: "missing" (printed), or "share" (released), which also scales rare classes.

    References:
        Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, KDD 2021;
        code lxcnju/FedRepo.
    """

    def restricted_cross_entropy(forward: ForwardPass) -> Array:
        logits = forward.outputs.logits
        scale = restriction(count_classes(forward.view.data, logits.shape[-1]), alpha, scaling)
        losses = cross_entropies(scale.astype(logits.dtype) * logits, forward.batch.labels)
        return mean_over_labels(losses, forward.batch.labels, forward.batch.mask)

    return restricted_cross_entropy


def restriction(counts: Array, alpha: float, scaling: RestrictionScale = "missing") -> Array:
    """[class]: factors of the logits for counts [class]; see `restricted_cross_entropy`."""
    if scaling == "missing":
        return jnp.where(counts > 0, 1.0, alpha)
    return alpha + (1 - alpha) * counts / tree.positive_or_one(jnp.max(counts))


@validate_arguments
def not_true_distillation(beta: NonNegative = 1.0, tau: Positive = 1.0, *, tau_squared: bool = True) -> Term:
    """Distill the received model's logits of the classes other than the true one (FedNTD).

        beta s 1/B sum_b sum_{c != y} q_g(c) log( q_g(c) / q(c) ),   q(c) = e^{z_c / tau} / sum_{j != y} e^{z_j / tau}

    q_g is the same for the received model's logits on the same batch, in evaluation mode; constant in the gradient.
    Shapes: as `cross_entropy`.
    Reads: outputs.logits, view.start. Cost: one more forward pass per step.

    Args:
        beta: The paper's β (1).
        tau: The paper's τ (1; 3 in the code's constructor).
        tau_squared: Whether s is tau^2 (code) or 1 (paper).

    References:
        Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated Learning, NeurIPS 2022.
        arXiv:2106.03097; code Lee-Gihun/FedNTD.
    """

    def not_true_distillation(forward: ForwardPass) -> Array:
        check_classes(forward.batch.labels)
        params, state = tree.split_params(forward.view.start)
        again = forward.problem.forward(params, state, forward.batch, forward.view, forward.key, is_training=False)
        received = jax.lax.stop_gradient(again.outputs.logits)
        losses = not_true_divergence(forward.outputs.logits, received, forward.batch.labels, tau)
        weight = beta * tau**2 if tau_squared else beta
        return weight * mean_over_labels(losses, forward.batch.labels, forward.batch.mask)

    return not_true_distillation


def not_true_divergence(logits: Array, received: Array, labels: Array, tau: float) -> Array:
    """sum_{c != y} q_g(c) log(q_g(c) / q(c)) of every example, logits [..., class] -> [...]."""
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    never = jnp.finfo(logits.dtype).min / 2  # finite, so that no gradient is NaN
    own, theirs = (jax.nn.log_softmax(jnp.where(is_true, never, scores / tau)) for scores in (logits, received))
    return jnp.sum(jnp.where(is_true, 0, jnp.exp(theirs) * (theirs - own)), axis=-1)


@validate_arguments
def balanced_cross_entropy(gamma: NonNegative = 1.0, missing: MissingClasses = "once") -> Term:
    """Cross-entropy with logits adjusted by the client's class counts (balanced softmax).

        1/B sum_b CE(z_b + gamma log n, y_b),   n_c: the client's training examples of class c

    Shapes: as `cross_entropy`.
    Reads: outputs.logits, the examples' labels.

    Args:
        gamma: The paper's γ (1). 0 is the cross-entropy.
        missing: The treatment of classes without examples: "once", as if there were one (FedETF), or "excluded" from
            the sum over classes (Fed-RoD).

    References:
        Li et al., No Fear of Classifier Biases, ICCV 2023. arXiv:2303.10058; code ZexiLee/ICCV-2023-FedETF. Chen and
        Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022.
    """

    def balanced_cross_entropy(forward: ForwardPass) -> Array:
        counts = count_classes(forward.view.data, forward.outputs.logits.shape[-1])
        losses = balanced_losses(forward.outputs.logits, forward.batch.labels, counts, gamma, missing)
        return mean_over_labels(losses, forward.batch.labels, forward.batch.mask)

    return balanced_cross_entropy


def balanced_losses(
    logits: Array, labels: Array, counts: Array, gamma: float = 1.0, missing: MissingClasses = "once"
) -> Array:
    """The loss of every example, logits [..., class] -> [...], for counts [class]; see `balanced_cross_entropy`."""
    priors = gamma * jnp.log(jnp.maximum(counts, 1))
    adjusted = logits + priors.astype(logits.dtype)
    if missing == "excluded":
        is_used = (counts > 0) | (jnp.asarray(gamma) <= 0)
        adjusted = jnp.where(is_used, adjusted, jnp.finfo(logits.dtype).min / 2)  # finite, so that no gradient is NaN
    return cross_entropies(adjusted, labels)
