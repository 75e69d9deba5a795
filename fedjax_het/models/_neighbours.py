"""Predictions that are mixed with votes of stored features (kNN-Per)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het.models._adaptations import split_off, vector_shapes
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables
from fedjax_het.validation import Count, Positive, validate_arguments


@validate_arguments
def with_neighbours(num_neighbours: Count = 10, scale: Positive = 1.0) -> Callable[[Model], Model]:
    """Mix the predicted probabilities with a vote of the nearest stored features, where there are any.

        p = mix vote + (1 - mix) softmax(z)
        vote_c = sum_{j: y_j = c} w_j / sum_j w_j,   w_j = exp(-|f - f_j|^2 / (d scale))

    over the `num_neighbours` nearest stored features f_j [d]; the logits are log p. Variables may have the leaves
    params/neighbours/{features [stored, d], labels [stored], is_stored [stored], mix []}; without them the network is
    unchanged. Ties go to the first stored.

    Args:
        num_neighbours: k.
        scale: As above.

    Raises:
        InputError: Features are maps.

    References:
        Marfoq et al., Personalized Federated Learning through Local Memorization, ICML 2022. arXiv:2111.09360; code
        omarfoq/knn-per.
    """

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            variables = model.init(key, inputs)
            vector_shapes("neighbours", model, variables, inputs)
            return variables

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            return model.encode(split_off(variables, "neighbours")[1], inputs, context)

        def classify(params: Params, features: Array) -> Array:
            logits = model.classify({name: leaves for name, leaves in params.items() if name != "neighbours"}, features)
            if "neighbours" not in params:
                return logits
            store = params["neighbours"]
            stored = store["features"], store["labels"], store["is_stored"]
            votes = vote_of_nearest(features, *stored, logits.shape[-1], num_neighbours, scale)
            mixed = store["mix"] * votes + (1 - store["mix"]) * jax.nn.softmax(logits)
            return jnp.log(jnp.maximum(mixed, jnp.finfo(logits.dtype).tiny)).astype(logits.dtype)

        return model._replace(init=init, encode=encode, classify=classify)

    return adapt


def vote_of_nearest(
    features: Array,
    stored: Array,
    labels: Array,
    is_stored: Array,
    num_classes: int,
    num_neighbours: int = 10,
    scale: float = 1.0,
) -> Array:
    """[batch, class]: the votes for features [batch, feature], equal if nothing is stored; see `with_neighbours`."""
    squares = jnp.sum(jnp.square(features[:, None] - stored), axis=-1)
    squares = jnp.where(is_stored, squares, jnp.inf)
    negative, nearest = jax.lax.top_k(-squares, min(num_neighbours, len(stored)))
    is_used = jnp.isfinite(negative)
    # The smallest distance is subtracted, since all weights may be 0 otherwise. It is read by a maximum: with a slice
    # of the output of top_k, XLA sorts whole rows on CPUs.
    exponents = jnp.where(is_used, negative - jnp.max(negative, axis=1, keepdims=True), 0)
    exponents = exponents / (features.shape[-1] * scale)
    weights = jnp.where(is_used, jnp.exp(exponents), 0)
    votes = jnp.einsum("bk,bkc->bc", weights, jax.nn.one_hot(labels[nearest], num_classes, dtype=weights.dtype))
    total = jnp.sum(weights, axis=1, keepdims=True)
    return jnp.where(total > 0, votes / jnp.where(total > 0, total, 1), 1 / num_classes)
