"""Regularizers of the representation: length and information beyond the class (FedSR), correlations (FedDecorr)."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Term
from fedjax_het.client.objectives._supervised import masked_mean
from fedjax_het.errors import InputError
from fedjax_het.labels import check_classes, flatten_positions
from fedjax_het.problem import ForwardPass, compares_examples
from fedjax_het.types import Array
from fedjax_het.validation import NonNegative, Positive, validate_arguments

DecorrelationForm = Literal["released", "printed"]
LENGTHS = {1: tree.safe_sqrt, 2: lambda squared: squared}


@validate_arguments
def l2_representation(weight: NonNegative = 0.01, power: Literal[1, 2] = 1) -> Term:
    """Penalize the norm of representations, so that those of all clients are in one small region.

        weight 1/B sum_b ||z_b||^power

    Reads: outputs.features z [batch, D].

    Args:
        weight: FedSR's α for L2R (.01).
        power: 1 (the authors' code; gradient 0 at z = 0) or 2 (the paper's squared norm).

    Raises:
        InputError: The power is invalid.

    References:
        Nguyen et al., FedSR, NeurIPS 2022; official code atuannguyen/FedSR, src/methods/FedSR.py.
    """

    def l2_representation(forward: ForwardPass) -> Array:
        features, mask = flatten_positions(forward.outputs.features, forward.batch.labels, forward.batch.mask)
        return weight * masked_mean(LENGTHS[power](jnp.sum(jnp.square(features), axis=-1)), mask)

    return l2_representation


@validate_arguments
def conditional_information(weight: NonNegative = 0.001, floor: Positive = 1e-6) -> Term:
    """Bound the representation's information about the image given its class, with a learned Gaussian per class.

        weight 1/B sum_b KL( N(c mu_b, (c sigma_b)^2)  ||  N(r_mu[y_b], softplus(r_s[y_b])^2) )
        = weight 1/B sum_b sum_d  ln(r / |c| sigma) + ((c sigma)^2 + (c mu - r_mu)^2) / (2 r^2) - 1/2,
          r = softplus(r_s)

    The term is analytic, without sampling.
    Reads: outputs.extras["mean"] mu and ["scale"] sigma [batch, D], params/reference (r_mu "mean", r_s "scale" [class,
    D], c "factor" [], 1 if absent), all from `models.probabilistic`.

    Args:
        weight: FedSR's α for CMI (.001).
        floor: Lower bound of standard deviations, without gradient, so that neither c = 0 nor an underflow of softplus
            gives NaN; the authors' code gives NaN in these cases, and for any c < 0.

    Raises:
        InputError: The model has no distribution.

    References:
        Nguyen et al., FedSR, NeurIPS 2022; official code atuannguyen/FedSR, src/methods/FedSR.py.
    """

    def conditional_information(forward: ForwardPass) -> Array:
        mean, scale, reference = _distributions(forward)
        factor = reference.get("factor", 1.0)
        labels = forward.batch.labels
        check_classes(labels)
        target, width = reference["mean"][labels], _clip_below(floor, jax.nn.softplus(reference["scale"]))[labels]
        spread = _clip_below(floor, jnp.abs(factor) * scale)
        distance = jnp.square(spread) + jnp.square(factor * mean - target)
        divergence = jnp.log(width) - jnp.log(spread) + distance / (2 * jnp.square(width)) - 0.5
        return weight * masked_mean(jnp.sum(divergence, axis=-1), forward.batch.mask)

    return conditional_information


def _distributions(forward: ForwardPass) -> tuple[Array, Array, dict]:
    extras = forward.outputs.extras
    if not {"mean", "scale"} <= extras.keys() or "reference" not in forward.params:
        raise InputError(
            "objective term 'conditional_information' reads a representation's mean and scale and params/reference, "
            "which this model does not have. Add adapt=models.probabilistic() to the Algorithm."
        )
    return extras["mean"], extras["scale"], forward.params["reference"]


def _clip_below(floor: float, values: Array) -> Array:
    return jnp.where(values > floor, values, floor)


@validate_arguments
def decorrelation(beta: NonNegative = 0.1, form: DecorrelationForm = "released") -> Term:
    """Decorrelate the features of a batch, so that they do not collapse to few dimensions (FedDecorr).

        X: features [N, d] of the batch, standardized by mean and unbiased variance + 1e-8,   K = X^T X / (N - 1)
        released:  beta 1/(d (d - 1)) sum_{i != j} (X^T X)_ij^2 / N             printed:  beta |K|_F^2 / d^2

    The gradient includes mean and variance. 0 for a batch of one example, and for a single feature.
    Shapes: features [batch, feature]; padding is ignored.
    Reads: outputs.features.

    Args:
        beta: The paper's β (.1).
        form: "released", or "printed", which is smaller by a factor of about the number of examples in the batch.

    Raises:
        InputError: Features are maps.

    References:
        Shi et al., Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning, ICLR
        2023. arXiv:2210.00226; code bytedance/FedDecorr.
    """

    @compares_examples
    def decorrelation(forward: ForwardPass) -> Array:
        features = forward.outputs.features
        if features.ndim != 2:
            raise InputError(
                f"decorrelation: expected features that are vectors, got shape {features.shape[1:]} per example. Use a "
                "model and a data set for classification."
            )
        return beta * correlation(features, forward.batch.mask, form)

    return decorrelation


def correlation(features: Array, mask: Array, form: DecorrelationForm = "released") -> Array:
    """[]: correlation of features [batch, feature] over unmasked examples; see `decorrelation`."""
    num_features, count = features.shape[1], jnp.sum(mask)
    others = jnp.maximum(count - 1, 1)
    is_example = mask[:, None] > 0
    mean = jnp.sum(jnp.where(is_example, features, 0), axis=0) / jnp.maximum(count, 1)
    centred = jnp.where(is_example, features - mean, 0)
    variance = jnp.sum(jnp.square(centred), axis=0) / others
    standard = centred / jnp.sqrt(variance + 1e-8)
    products = jnp.matmul(standard.T, standard, precision=jax.lax.Precision.HIGHEST)
    if form == "printed":
        return jnp.sum(jnp.square(products / others)) / num_features**2
    off_diagonal = jnp.where(jnp.eye(num_features, dtype=bool), 0, products)
    return jnp.sum(jnp.square(off_diagonal)) / (max(num_features * (num_features - 1), 1) * jnp.maximum(count, 1))
