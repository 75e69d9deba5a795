"""A mixture of networks: several components, whose probabilities are averaged."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het.models._adaptations import split_off
from fedjax_het.models._frozen import spare_leaves
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables
from fedjax_het.validation import Count, validate_arguments


@validate_arguments
def mixture(number: Count = 3) -> Callable[[Model], Model]:
    """Replace a network by several of the same kind, and average their probabilities.

        z = log sum_m pi_m softmax(z_m)

    All leaves get a leading axis [components]; the components start from different random weights. Features are
    [batch, components, ...]. Adds params/mixture/weights [components], the weights pi, initially equal; they are not
    trained by gradients of `client.mixtures`.

    Args:
        number: The number of components.
    """

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            keys = jnp.stack([key, *(jax.random.fold_in(key, m) for m in range(1, number))])
            components = jax.vmap(lambda key: model.init(key, inputs))(keys)
            weights = jnp.full(number, 1 / number, jax.tree.leaves(components["params"])[0].dtype)
            return {**components, "params": {**components["params"], "mixture": {"weights": weights}}}

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            components = split_off(variables, "mixture")[1]
            encode_one = jax.vmap(lambda component: model.encode(component, inputs, context), out_axes=((1, 0), 0))
            return encode_one(components)

        def classify(params: Params, features: Array) -> Array:
            own, components = split_off({"params": params}, "mixture")
            logits = jax.vmap(model.classify, (0, 1), -2)(components["params"], features)
            weights = own["mixture"]["weights"][:, None]
            return jax.nn.logsumexp(jax.nn.log_softmax(logits), axis=-2, b=weights.astype(logits.dtype))

        whole = spare_leaves(model, "params/mixture/*")
        return whole._replace(init=init, encode=encode, classify=classify, published=None, narrowed=None)

    return adapt
