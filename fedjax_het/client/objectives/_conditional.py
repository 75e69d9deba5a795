"""Terms of features that depend on the client: their distribution (FedCP), and their class embeddings (GPFL)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Term
from fedjax_het.client.objectives._contrastive import normalized
from fedjax_het.client.objectives._supervised import masked_mean
from fedjax_het.errors import InputError
from fedjax_het.labels import cross_entropies
from fedjax_het.problem import ForwardPass, compares_examples
from fedjax_het.types import Array
from fedjax_het.validation import NonNegative, Positive, validate_arguments

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)


@validate_arguments
def representation_discrepancy(weight: NonNegative = 1.0, bandwidths: Sequence[Positive] = BANDWIDTHS) -> Term:
    """Keep the distribution of the features near that of the received network's (FedCP).

        weight MMD(z, z_start),   z_start: the representations under view.start, constant, in evaluation mode

    Reads: outputs.extras["representation"] (`models.with_gate`), view.start. Cost: one more forward pass per step.

    Args:
        weight: The paper's λ.
        bandwidths: a in the kernels exp(-|x - y|^2 / (2 a)), which are summed.

    References:
        Zhang et al., FedCP, KDD 2023. arXiv:2307.01217; code TsingZ0/FedCP.
    """

    @compares_examples
    def representation_discrepancy(forward: ForwardPass) -> Array:
        if "representation" not in forward.outputs.extras:
            raise InputError("representation_discrepancy: the model has no gate. Use fh.models.with_gate.")
        params, state = tree.split_params(forward.view.start)
        again = forward.problem.forward(params, state, forward.batch, forward.view, forward.key, is_training=False)
        received = jax.lax.stop_gradient(again.outputs.extras["representation"])
        own = forward.outputs.extras["representation"]
        return weight * mean_discrepancy(own, received, forward.batch.mask, bandwidths)

    return representation_discrepancy


def mean_discrepancy(x: Array, y: Array, mask: Array, bandwidths: Sequence[float] = BANDWIDTHS) -> Array:
    """sum_a mean_ij (k_a(x_i, x_j) + k_a(y_i, y_j) - 2 k_a(x_i, y_j)) over unmasked rows of x, y [batch, feature]."""
    pairs = mask[:, None] * mask

    def compare(a: Array, b: Array) -> Array:
        squares = jnp.sum(jnp.square(a[:, None] - b[None]), axis=-1)
        return sum((jnp.exp(-squares / (2 * width)) for width in bandwidths), start=jnp.zeros_like(squares))

    kernels = compare(x, x) + compare(y, y) - 2 * compare(x, y)
    return jnp.sum(jnp.where(pairs > 0, kernels, 0)) / jnp.maximum(jnp.sum(pairs), 1)


def class_angles() -> Term:
    """Classify the generic features by their cosines to the class embeddings (GPFL).

        1/B sum_b -log softmax_c(cos(g_b, E_c))[y_b]

    Reads: outputs.extras["generic"], params/embedding (`models.with_valve`).

    References:
        Zhang et al., GPFL, ICCV 2023. arXiv:2308.10279; code TsingZ0/GPFL.
    """

    def class_angles(forward: ForwardPass) -> Array:
        generic, classes = _generic(forward, "class_angles"), forward.params["embedding"]["classes"]
        cosines = jnp.matmul(normalized(generic), normalized(classes).T, precision=jax.lax.Precision.HIGHEST)
        return masked_mean(cross_entropies(cosines, forward.batch.labels), forward.batch.mask)

    return class_angles


@validate_arguments
def class_distance(weight: NonNegative = 0.01) -> Term:
    """Attract the generic features to the received embeddings of their classes (GPFL).

        weight sqrt(sum_b |g_b - E_{y_b}|^2),   a norm over the batch

    Reads: outputs.extras["generic"], view.start (`models.with_valve`).

    Args:
        weight: The paper's λ.

    References:
        Zhang et al., GPFL, ICCV 2023. arXiv:2308.10279; code TsingZ0/GPFL.
    """

    @compares_examples
    def class_distance(forward: ForwardPass) -> Array:
        targets = forward.view.start["params"]["embedding"]["classes"][forward.batch.labels]
        squares = jnp.sum(jnp.square(_generic(forward, "class_distance") - targets), axis=-1)
        return weight * tree.safe_sqrt(jnp.sum(jnp.where(forward.batch.mask > 0, squares, 0)))

    return class_distance


def _generic(forward: ForwardPass, term: str) -> Array:
    if "generic" not in forward.outputs.extras:
        raise InputError(f"{term}: the model has no embedding of classes. Use fh.models.with_valve.")
    return forward.outputs.extras["generic"]


@validate_arguments
def decay(weight: NonNegative, names: Sequence[str]) -> Term:
    """Weight decay of some layers alone: weight/2 sum |w|^2.

    Args:
        weight: Weight of the term.
        names: The layers of params.
    """

    def decay(forward: ForwardPass) -> Array:
        return weight / 2 * tree.squared_norm({name: forward.params[name] for name in names})

    return decay
