"""A projection head between the features and the classifier (MOON)."""

from collections.abc import Callable

import jax
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables
from fedjax_het.validation import Count, validate_arguments


@validate_arguments
def projected(width: Count = 256) -> Callable[[Model], Model]:
    """Two layers after a model's features; their output is what the classifier sees and what counts as features.

        z = W_2 relu(W_1 h + b_1) + b_2,   h [batch, feature] -> z [batch, width],   W_1 square

    Adds params/projection/{hidden,output}; params/classifier becomes as wide as z. All of it is trained and shared.
    width: MOON's 256.
    Raises InputError for a width below 1, and for a model whose classifier is not one dense layer.
    """

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            variables = model.init(key, inputs)
            return variables | {"params": _extended(variables["params"], width, jax.random.fold_in(key, 1))}

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            params = dict(variables["params"])
            layers = params.pop("projection")
            (features, extras), state = model.encode({**variables, "params": params}, inputs, context)
            hidden = nn.relu(_dense(layers["hidden"], features))
            return (_dense(layers["output"], hidden), extras), state

        def layers(inputs: Array) -> dict[str, type]:
            return {**model.layers(inputs), "projection/hidden": nn.Dense, "projection/output": nn.Dense}

        return Model(init, encode, model.classify, layers)

    return adapt


def _extended(params: Params, width: int, key: Key) -> Params:
    kernel = params.get("classifier", {}).get("kernel")
    if kernel is None or kernel.ndim != 2:
        raise InputError(
            "projection: it goes in front of a dense classifier, params/classifier/kernel [feature, class]."
        )
    hidden, output, classifier = jax.random.split(key, 3)
    num_features, num_classes = kernel.shape
    dense = nn.initializers.lecun_normal()
    projection = {
        "hidden": _layer(dense(hidden, (num_features, num_features), kernel.dtype)),
        "output": _layer(dense(output, (num_features, width), kernel.dtype)),
    }
    head = params["classifier"] | {"kernel": dense(classifier, (width, num_classes), kernel.dtype)}
    return {**params, "projection": projection, "classifier": head}


def _layer(kernel: Array) -> Params:
    return {"kernel": kernel, "bias": jax.numpy.zeros(kernel.shape[1], kernel.dtype)}


def _dense(layer: Params, inputs: Array) -> Array:
    return inputs @ layer["kernel"] + layer["bias"]
