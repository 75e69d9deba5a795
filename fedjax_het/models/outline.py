"""Telling the server how large a representation is."""

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError
from fedjax_het.types import Array, Context, Key, Model, Named, Variables


def outlined(model: Model) -> Model:
    """Add the shared leaf outline/prototypes, of shape [0, class, feature]: no number, but a shape.

    Where the head is personal no shared leaf has its size, and a summary of features could not be laid out.
    Raises InputError for features that are maps.
    """

    def init(key: Key, inputs: Array) -> Variables:
        variables = model.init(key, inputs)
        context = Context(jnp.ones(inputs.shape[0]), jnp.zeros((), jnp.int32), key, False)
        features = jax.eval_shape(lambda: model.encode(variables, inputs, context)[0][0])
        if features.ndim != 2:
            raise InputError(f"prototypes: features are {features.shape[1:]} an example; they need to be vectors.")
        logits = jax.eval_shape(model.classify, variables["params"], features)
        outline = jnp.zeros((0, logits.shape[-1], features.shape[-1]), features.dtype)
        return variables | {"outline": {"prototypes": outline}}

    def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
        rest = dict(variables)
        outline = {"outline": rest.pop("outline")} if "outline" in rest else {}
        outputs, state = model.encode(rest, inputs, context)
        return outputs, state | outline

    return Model(init, encode, model.classify, model.layers)
