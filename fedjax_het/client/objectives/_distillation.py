"""Distillation: from the logits of other networks, from mean logits of classes, and from generated features."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het.algorithm import Term
from fedjax_het.client.objectives._supervised import masked_mean
from fedjax_het.errors import InputError
from fedjax_het.generation import generate
from fedjax_het.labels import check_classes, cross_entropies, mean_over_labels
from fedjax_het.problem import ForwardPass, compares_examples
from fedjax_het.types import Array, Key
from fedjax_het.validation import Count, Fraction, NonNegative, validate_arguments

OverClasses = Literal["sum", "mean"]
Gradients = Literal["own", "both"]


def divergence(target: Array, logits: Array) -> Array:
    """KL(softmax(target) || softmax(logits)) of every label: logits [..., class] -> [...]."""
    wanted = jax.nn.log_softmax(target)
    return jnp.sum(jnp.exp(wanted) * (wanted - jax.nn.log_softmax(logits)), axis=-1)


def _common_outputs(forward: ForwardPass, name: str) -> tuple[Array, Array]:
    """(features, logits) of the common network of a pair."""
    if "common" not in forward.outputs.extras:
        raise InputError(
            f"objective term '{name}' reads the outputs of a common network, which this model does not have. Add "
            "adapt=models.paired() to the Algorithm."
        )
    common = forward.outputs.extras["common"]
    return common["features"], common["logits"]


@validate_arguments
def mutual_learning(alpha: Fraction = 0.5, beta: Fraction = 0.5) -> Term:
    """Train a client's own network and a common one by the labels and by each other's predictions (FML).

        alpha CE(z) + (1 - alpha) KL(q || p) + beta CE(v) + (1 - beta) KL(p || q)
        p = softmax(z) of the own network, q = softmax(v) of the common one; the first argument of KL is constant

    Shapes: as `cross_entropy`.
    Reads: outputs.logits, outputs.extras["common"] (`models.paired`).

    Args:
        alpha: The paper's α (.5), of the own network.
        beta: The paper's β (.5), of the common network.

    References:
        Shen et al., Federated Mutual Learning, 2020. arXiv:2006.16765; code ZJU-DAI/Federated-Mutual-Learning.
    """

    def mutual_learning(forward: ForwardPass) -> Array:
        logits, labels = forward.outputs.logits, forward.batch.labels
        _, theirs = _common_outputs(forward, "mutual_learning")
        own_constant, constant = jax.lax.stop_gradient((logits, theirs))
        losses = alpha * cross_entropies(logits, labels) + (1 - alpha) * divergence(constant, logits)
        losses += beta * cross_entropies(theirs, labels) + (1 - beta) * divergence(own_constant, theirs)
        return mean_over_labels(losses, labels, forward.batch.mask)

    return mutual_learning


@validate_arguments
def adaptive_distillation(gradients: Gradients = "own", over_classes: OverClasses = "sum") -> Term:
    """Train a teacher and a common student by the labels and by each other, the less the larger their losses (FedKD).

        L_t = CE_t + (KL(q || p) + D) / (CE_t + CE_s),   L_s = CE_s + (KL(p || q) + D) / (CE_t + CE_s)
        p, q: softmax of the logits of teacher and student,   D = mean (f_t - f_s W)^2 of their features

    Shapes: as `cross_entropy`.
    Reads: outputs.logits and features (of the teacher), outputs.extras["common"] and ["matched"] (`models.paired` with
    match_features).

    Args:
        gradients: "own": each network minimizes its own loss, W that of the student; "both": all minimize the sum.
        over_classes: Whether KL is a "sum" or a "mean" over classes.

    References:
        Wu et al., Communication-Efficient Federated Learning via Knowledge Distillation, Nature Communications 2022.
        arXiv:2108.13323; code wuch15/FedKD.
    """

    @compares_examples
    def adaptive_distillation(forward: ForwardPass) -> Array:
        labels, mask = forward.batch.labels, forward.batch.mask
        theirs = _common_outputs(forward, "adaptive_distillation")
        if "matched" not in forward.outputs.extras:
            raise InputError(
                "objective term 'adaptive_distillation' reads matched features, which this model does not have. Add "
                "adapt=models.paired(match_features=True) to the Algorithm."
            )
        teacher = forward.outputs.features, forward.outputs.logits
        student = forward.outputs.extras["matched"], theirs[1]
        constants = (teacher, student) if gradients == "both" else jax.lax.stop_gradient((teacher, student))

        def loss(own: tuple[Array, Array], other: tuple[Array, Array]) -> Array:
            entropies = (mean_over_labels(cross_entropies(x[1], labels), labels, mask) for x in (own, other))
            entropy, other_entropy = entropies
            gap = mean_over_labels(divergence(other[1], own[1]), labels, mask)
            gap = gap / own[1].shape[-1] if over_classes == "mean" else gap
            squares = jnp.mean(jnp.square(own[0] - other[0]), axis=-1)
            has_labels = squares.shape == labels.shape  # features of the positions that have labels
            distance = mean_over_labels(squares, labels, mask) if has_labels else masked_mean(squares, mask)
            return entropy + (gap + distance) / jnp.maximum(entropy + other_entropy, _SMALLEST)

        return loss(teacher, constants[1]) + loss(student, constants[0])

    return adaptive_distillation


_SMALLEST = 1e-12  # the loss of two networks that fit their batch exactly is 0


@validate_arguments
def logit_distillation(weight: NonNegative = 1.0) -> Term:
    """Distill the published mean logits of the class of each example (FedDistill).

        weight 1/B sum_b 1[m_{y_b} is known] KL( softmax(m_{y_b}) || softmax(z_b) )

    Shapes: logits [batch, class].
    Reads: outputs.logits, published["logits"].

    Args:
        weight: Factor of the term.

    References:
        Jeong et al., Communication-Efficient On-Device Machine Learning, 2018. arXiv:1811.11479; code
        zhuangdizhu/FedGen.
    """

    def logit_distillation(forward: ForwardPass) -> Array:
        published, labels = forward.view.received.published["logits"], forward.batch.labels
        check_classes(labels)
        losses = divergence(published["means"][labels], forward.outputs.logits)
        return weight * masked_mean(jnp.where(published["is_known"][labels], losses, 0), forward.batch.mask)

    return logit_distillation


Draw = Callable[[Key, tuple[int, ...]], Array]


@validate_arguments
def generated_features(
    alpha: NonNegative = 10.0,
    beta: NonNegative = 10.0,
    decay: Fraction = 0.98,
    floor: NonNegative = 1e-4,
    batch_size: Count = 32,
    *,
    draw_noise: Draw = jax.random.uniform,
    draw_labels: Callable[[Key, Array, int], Array] | None = None,
) -> Term:
    """Regularize the head by features that the server's generator makes (FedGen).

        a_t B'/B 1/B' sum_b CE(h(G(e_b, y'_b)), y'_b) + b_t 1/B sum_b KL( softmax(h(G(e_b, y_b))) || softmax(z_b) )
        a_t = max(alpha decay^t, floor), b_t likewise; the target of KL is constant, y' drawn from the known classes

    The term is 0 before the generator is trained.
    Shapes: logits [batch, class], labels [batch].
    Reads: outputs.logits, received.base["generator"] (`models.with_generator`).

    Args:
        alpha: Weight of the generated examples (10).
        beta: Weight of the divergence (10; 1 for EMNIST).
        decay: Factor of both weights per round (.98).
        floor: Minimum of both weights (1e-4).
        batch_size: The number of generated examples per step, B' (32).
        draw_noise: (key, shape) -> noise.
        draw_labels: (key, whether each class is known [class], number) -> classes; None: uniform.

    References:
        Zhu, Hong and Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021.
        arXiv:2105.10056; code zhuangdizhu/FedGen.
    """
    draw_labels = draw_labels or _draw_known

    @compares_examples
    def generated_features(forward: ForwardPass) -> Array:
        if "generator" not in forward.view.received.base:
            raise InputError(
                "objective term 'generated_features' reads a generator, which this model does not have. Add "
                "adapt=models.with_generator() to the Algorithm."
            )
        generator, labels = forward.view.received.base["generator"], forward.batch.labels
        check_classes(labels)
        network, known = generator["network"], generator["labels"] > 0
        width = network["hidden"]["kernel"].shape[0] - len(known)

        def classify(key: Key, classes: Array) -> Array:
            noise = draw_noise(key, (len(classes), width)).astype(network["hidden"]["kernel"].dtype)
            return forward.problem.model.classify(forward.params, generate(network, noise, classes)[0])

        noise_key, label_key, other_key = jax.random.split(jax.random.fold_in(forward.key, 1), 3)
        target = jax.lax.stop_gradient(classify(noise_key, labels))
        gap = masked_mean(divergence(target, forward.outputs.logits), forward.batch.mask)
        classes = draw_labels(label_key, known, batch_size)
        entropy = jnp.mean(cross_entropies(classify(other_key, classes), classes))
        share = batch_size / jnp.maximum(jnp.sum(forward.batch.mask), 1)
        fade = decay**forward.view.received.round
        total = share * jnp.maximum(alpha * fade, floor) * entropy + jnp.maximum(beta * fade, floor) * gap
        return jnp.where(jnp.any(known), total, 0)

    return generated_features


def _draw_known(key: Key, known: Array, number: int) -> Array:
    return jax.random.categorical(key, jnp.where(known, 0.0, -jnp.inf), shape=(number,))
