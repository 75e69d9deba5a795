"""Parts of a network for single clients: a second head, a shift of the features, statistics of the features."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError
from fedjax_het.models._adaptations import split_off, vector_shapes
from fedjax_het.models._frozen import spare_leaves
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables
from fedjax_het.validation import PositiveFraction, validate_arguments

HeadStart = Literal["copy", "zero"]


@validate_arguments
def with_personal_head(start: HeadStart = "copy") -> Callable[[Model], Model]:
    """Add a second head, which the network itself does not use.

    Adds params/personal_head, like params/classifier, for the term `personal_head` and the personal models of
    `summed_heads`.

    Args:
        start: Whether it begins as a copy of the classifier, or with zeros.

    Raises:
        InputError: When initialized, the classifier is not a dense layer.
    """

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            variables = model.init(key, inputs)
            head = dense_head("personal head", variables)
            own = head if start == "copy" else jax.tree.map(jnp.zeros_like, head)
            return variables | {"params": {**variables["params"], "personal_head": own}}

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            return model.encode(split_off(variables, "personal_head")[1], inputs, context)

        return spare_leaves(model, "params/personal_head/*")._replace(init=init, encode=encode)

    return adapt


def dense_head(part: str, variables: Variables) -> Params:
    """params/classifier; raises InputError if it is not a dense layer."""
    head = variables["params"].get("classifier", {})
    if set(head) - {"bias"} != {"kernel"} or head["kernel"].ndim != 2:
        raise InputError(f"{part}: it requires a head of one dense layer, params/classifier/kernel [feature, class].")
    return head


@validate_arguments
def with_feature_shift(momentum: PositiveFraction = 1.0) -> Callable[[Model], Model]:
    """Add a vector to the features, and follow the mean of the features without it.

        features z + c,   mu <- (1 - momentum) mu + momentum mean_batch(z) in each training pass

    Adds params/shift/mean (c [feature], initially 0) and the leaf running/mean (mu [feature], initially 0). The
    gradient in mu passes through the batch alone. extras: "representation", z.

    Args:
        momentum: As above.

    Raises:
        InputError: Features are maps.
    """

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            variables = model.init(key, inputs)
            features, _ = vector_shapes("feature shift", model, variables, inputs)
            zeros = jnp.zeros(features.shape[1:], features.dtype)
            params = {**variables["params"], "shift": {"mean": zeros}}
            return variables | {"params": params, "running": {"mean": zeros}}

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            own, rest = split_off(variables, "shift")
            running = rest.pop("running")["mean"]
            (features, extras), state = model.encode(rest, inputs, context)
            if context.is_training:
                moved = (1 - momentum) * running + momentum * batch_mean(features, context.mask)
                running = moved.astype(running.dtype)
            extras = extras | {"representation": features}
            return (features + own["shift"]["mean"], extras), state | {"running": {"mean": running}}

        return spare_leaves(model, "params/shift/*", "running/*")._replace(init=init, encode=encode)

    return adapt


def batch_mean(features: Array, mask: Array) -> Array:
    """[feature]: the mean of the features [batch, feature] of examples that are not padding; 0 without any."""
    chosen = jnp.where(mask[:, None] > 0, features, 0)
    return (jnp.sum(chosen, axis=0) / jnp.maximum(jnp.sum(mask), 1)).astype(features.dtype)


def with_gaussian(model: Model) -> Model:
    """Add the leaves gaussian/means [class, feature] and gaussian/covariance [feature, feature].

    They begin uniform in [0, 1), and as the identity. The network does not read them; the start rule
    `gaussian_head.discriminant_start` makes the head of them.

    Raises:
        InputError: Features are maps, or the classifier is not a dense layer with a bias.
    """

    def init(key: Key, inputs: Array) -> Variables:
        variables = model.init(key, inputs)
        head = dense_head("gaussian", variables)
        features, logits = vector_shapes("gaussian", model, variables, inputs)
        if "bias" not in head:
            raise InputError("gaussian: the head has no bias for the class priors. Use a network whose head has one.")
        width, dtype = features.shape[-1], features.dtype
        means = jax.random.uniform(jax.random.fold_in(key, 1), (logits.shape[-1], width), dtype)
        return variables | {"gaussian": {"means": means, "covariance": jnp.eye(width, dtype=dtype)}}

    def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
        rest = dict(variables)
        gaussian = rest.pop("gaussian")
        outputs, state = model.encode(rest, inputs, context)
        return outputs, state | {"gaussian": gaussian}

    return spare_leaves(model, "gaussian/*")._replace(init=init, encode=encode)
