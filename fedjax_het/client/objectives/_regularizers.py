"""Regularizers: the proximal term, prototype alignment, gradient invariance and the margin."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Term
from fedjax_het.client.objectives._supervised import cross_entropy, masked_mean
from fedjax_het.labels import check_classes, flatten_positions
from fedjax_het.problem import ForwardPass, compares_examples
from fedjax_het.types import Array, Params
from fedjax_het.validation import NonNegative, validate_arguments

ProximalForm = Literal["squared", "norm_per_tensor"]
PROXIMAL_FORMS: dict[ProximalForm, Callable[[Params, float], Array]] = {
    "squared": lambda distance, mu: 0.5 * mu * tree.squared_norm(distance),
    "norm_per_tensor": lambda distance, mu: mu * sum(map(tree.norm, jax.tree.leaves(distance)), jnp.zeros(())),
}


@validate_arguments
def proximal(mu: NonNegative = 0.01, form: ProximalForm = "squared") -> Term:
    """Regularize each client towards its starting point, which limits drift in long local training.

        squared:          mu/2 ||w - w_start||^2
        norm_per_tensor:  mu sum_t ||w_t - w_start,t||, with gradient 0 at 0

    Trainable parameters only.
    Reads: view.start. `norm_per_tensor` is the FedProx baseline of the FedLD repository, a pull of constant size.

    Args:
        mu: The paper's μ, 0.001 to 1. 0 is FedAvg.
        form: "squared" or "norm_per_tensor", as above.

    References:
        Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020. arXiv:1812.06127
    """

    def proximal(forward: ForwardPass) -> Array:
        return PROXIMAL_FORMS[form](tree.subtract(forward.params, forward.view.start["params"]), mu)

    return proximal


@validate_arguments
def alignment(lam: NonNegative = 1.0) -> Term:
    """Attract features to the global prototype of their class, so that heads can be exchanged.

        lam 1/B sum_b 1/d |f_b - c_{y_b}|^2,   c_k: the global prototype, else the client's own from before training

    The term is 0 in round 0, when there are no global prototypes.
    Shapes: features [batch, feature].
    Reads: outputs.features, published["prototypes"], answers["classes"].

    Args:
        lam: The paper's λ (1). 0 is the cross-entropy alone.

    References:
        Xu, Tong and Huang, FedPAC, ICLR 2023, Eq. 6; code JianXu95/FedPAC, methods/fedpac.py.
    """

    def alignment(forward: ForwardPass) -> Array:
        published, own = forward.view.received.published["prototypes"], forward.view.answers["classes"]
        check_classes(forward.batch.labels)
        prototypes = jnp.where(published["is_known"][:, None], published["means"], own.means)
        distances = jnp.mean(jnp.square(forward.outputs.features - prototypes[forward.batch.labels]), axis=-1)
        is_on = forward.view.received.round > 0
        return jnp.where(is_on, lam, 0) * masked_mean(distances, forward.batch.mask)

    return alignment


@validate_arguments
def prototype_distance(lam: NonNegative = 1.0, over_features: Literal["mean", "sum"] = "mean") -> Term:
    """Attract features to the published prototypes of their classes (FedProto, FPL).

        lam 1/(B d) sum_b 1[c_{y_b} is known] |f_b - c_{y_b}|^2

    A mean over examples and d features; examples without a prototype contribute 0.
    Shapes: features [batch, feature].
    Reads: outputs.features, published["prototypes"].

    Args:
        lam: The paper's λ (1; .1 for CIFAR-10). 0 is local training.
        over_features: "mean", or "sum", which omits 1/d.

    References:
        Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022. arXiv:2105.00243;
        code yuetan031/fedproto.
    """

    def prototype_distance(forward: ForwardPass) -> Array:
        published, labels = forward.view.received.published["prototypes"], forward.batch.labels
        check_classes(labels)
        squares = jnp.square(forward.outputs.features - published["means"][labels])
        distances = jnp.mean(squares, axis=-1) if over_features == "mean" else jnp.sum(squares, axis=-1)
        return lam * masked_mean(jnp.where(published["is_known"][labels], distances, 0), forward.batch.mask)

    return prototype_distance


_entropy = cross_entropy()


@validate_arguments
def invariance(gamma: NonNegative = 0.001, debias: bool = False) -> Term:
    """Attract the batch's head gradient to the mean over clients, to learn invariant features.

        gamma || grad_head CE(batch) - gbar ||^2

    gbar is fixed for the round; the term is differentiated through the gradient (second order), so it affects the head
    and the features.
    Reads: outputs.features, published["mean_gradient"] (`server.summaries.ema`): mean, and mass if debias.

    Args:
        gamma: The code's penalty, .01 (RotatedMNIST), .005 (VLCS), .001 (PACS), .0005 (Office-Home).
        debias: Divide gbar by its mass 1 - decay^t. Without it, as in the code, gbar starts at 0 and has a twentieth of
            its strength in the first round.

    References:
        Guo et al., Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships, ICML
        2023; official code YamingGuo98/FedIIR, domainbed/algorithms.py.
    """

    @compares_examples
    def invariance(forward: ForwardPass) -> Array:
        published = forward.view.received.published["mean_gradient"]
        target = published["mean"]
        if debias:
            target = tree.scale(1.0 / tree.positive_or_one(published["mass"]), target)
        return gamma * tree.squared_norm(tree.subtract(gradient_of_head(forward), target))

    return invariance


def gradient_of_head(forward: ForwardPass) -> Params:
    """The differentiable gradient of the batch's cross-entropy in the shared leaves of params/classifier."""
    whole = forward.params["classifier"]
    _, head = tree.partition_like(whole, forward.view.received.shared["params"].get("classifier", {}))

    def loss(head: Params) -> Array:
        params = forward.params | {"classifier": tree.merge(whole, head)}
        logits = forward.problem.model.classify(params, forward.outputs.features)
        return _entropy(forward._replace(params=params, outputs=forward.outputs._replace(logits=logits)))

    return jax.grad(loss)(head)


def _per_example(scores: Array, mask: Array) -> Array:
    return masked_mean(jnp.log1p(jnp.sum(jnp.square(scores), axis=-1)), mask)


def _whole_batch(scores: Array, mask: Array) -> Array:
    return jnp.log1p(jnp.sum(mask * jnp.sum(jnp.square(scores), axis=-1).reshape(mask.shape[0], -1).sum(axis=1)))


MarginForm = Literal["logits_mean", "logits_batch", "softmax_mean", "softmax_batch"]
MARGIN_FORMS: dict[MarginForm, Callable[[Array, Array], Array]] = {
    "logits_mean": _per_example,
    "logits_batch": _whole_batch,
    "softmax_mean": lambda logits, mask: _per_example(jax.nn.softmax(logits), mask),
    "softmax_batch": lambda logits, mask: _whole_batch(jax.nn.softmax(logits), mask),
}


@validate_arguments
def margin(lam: NonNegative = 0.03, form: MarginForm = "logits_mean") -> Term:
    """Penalize the norm of the logits, so that no client becomes overconfident on its own distribution.

        logits_mean:    lam 1/B sum_b log(1 + ||z_b||^2)                 (paper, Eq. 3)
        logits_batch:   lam log(1 + sum_b ||z_b||^2)
        softmax_mean:   logits_mean  of softmax(z_b)
        softmax_batch:  logits_batch of softmax(z_b)                     (released code)

    Reads: outputs.logits [batch, class]; for sequences, all positions except padding. The released form is bounded,
    depends on the batch size and penalizes confidence rather than the norm: use it only to compare with published
    numbers.

    Args:
        lam: The paper's λ, .1 / .03 / .03 on Retina splits 1 / 2 / 3, .01 on COVID-FL. 0 is cross-entropy alone.
        form: As above.

    References:
        Zeng et al., FedLD, official code Zeng-Shuang/FedLD, methods/fedld.py.
    """

    def margin(forward: ForwardPass) -> Array:
        check_classes(forward.batch.labels)
        logits, mask = flatten_positions(forward.outputs.logits, forward.batch.labels, forward.batch.mask)
        return lam * MARGIN_FORMS[form](logits, mask)

    return compares_examples(margin) if form.endswith("_batch") else margin
