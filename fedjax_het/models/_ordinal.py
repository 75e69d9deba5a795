"""A head for ranks: one score, and a bias for every rank but the lowest (CORAL)."""

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError
from fedjax_het.models._adaptations import vector_shapes
from fedjax_het.models._dense import apply_dense, init_dense
from fedjax_het.types import Array, Key, Model, Params, Variables


def ordinal(model: Model) -> Model:
    """Replace the dense classifier of K classes by CORAL's head for K ranks.

        z_k = w h + b_k,   P(rank > k) = sigmoid(z_k),   k = 0 .. K-2

    The score w h orders the examples, and the K - 1 biases divide it into ranks. In place of the head's parameters, the
    model has params/classifier/{kernel [feature, 1], bias [K - 1]}. The biases begin at values for which all ranks have
    the same probability at a score of 0; in the authors' code they begin at 0. Falling biases give all ranks a
    probability of at least 0. The loss leads to such biases, but does not force them to fall.

    Args:
        model: A model with a head of one dense layer for K classes, at least two.

    Raises:
        InputError: When initialized, features are not vectors, or the head is not a single dense layer.

    References:
        Cao, Mirjalili and Raschka, Rank Consistent Ordinal Regression for Neural Networks with Application to Age
        Estimation, Pattern Recognition Letters 2020. arXiv:1901.07884; code Raschka-research-group/coral-cnn.
    """

    def replace_head(variables: Variables, num_ranks: int, key: Key) -> Variables:
        head = variables["params"].get("classifier", {})
        if set(head) - {"bias"} != {"kernel"} or head["kernel"].ndim != 2 or num_ranks < 2:
            raise InputError(
                f"ranks: they need a model with a head of one dense layer for two or more, and this one has "
                f"{', '.join(sorted(head)) or 'nothing at params/classifier'}. Use another model."
            )
        num_features, dtype = head["kernel"].shape[0], head["kernel"].dtype
        kernel = init_dense(jax.random.fold_in(key, 1), num_features, 1, dtype)["kernel"]
        levels = jnp.arange(1, num_ranks, dtype=dtype)
        own = {"kernel": kernel, "bias": jnp.log((num_ranks - levels) / levels)}
        return variables | {"params": {**variables["params"], "classifier": own}}

    def init(key: Key, inputs: Array) -> Variables:
        variables = model.init(key, inputs)
        _, logits = vector_shapes("ranks", model, variables, inputs)
        return replace_head(variables, logits.shape[-1], key)

    def classify(params: Params, features: Array) -> Array:
        return apply_dense(params["classifier"], features)

    narrowed = model.narrowed and (lambda width: ordinal(model.narrowed(width)))
    return model._replace(init=init, classify=classify, narrowed=narrowed, published=None)
