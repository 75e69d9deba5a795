"""Adaptations of models: a projection head, a probabilistic representation, a feature shape."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models._dense import apply_dense, init_dense
from fedjax_het.models._frozen import spare_leaves
from fedjax_het.models._model import check_images, output_shapes
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables
from fedjax_het.validation import Count, CountOrZero, validate_arguments


@validate_arguments
def projected(width: Count = 256) -> Callable[[Model], Model]:
    """Add a two-layer projection head; its output replaces the features as input of the classifier.

        z = W_2 relu(W_1 h + b_1) + b_2,   h [batch, feature] -> z [batch, width],   W_1 square

    Adds params/projection/{hidden,output}; params/classifier is resized to the width of z. All are trained and shared.

    Args:
        width: The width of z (default 256, as in MOON).

    Raises:
        InputError: The width is below 1, or the classifier of the model is not a single dense layer.
    """

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            variables = model.init(key, inputs)
            return variables | {"params": _insert_projection(variables["params"], width, jax.random.fold_in(key, 1))}

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            layers, rest = split_off(variables, "projection")
            (features, extras), state = model.encode(rest, inputs, context)
            hidden = nn.relu(apply_dense(layers["projection"]["hidden"], features))
            return (apply_dense(layers["projection"]["output"], hidden), extras), state

        def layers(inputs: Array) -> dict[str, type]:
            return {**model.layers(inputs), "projection/hidden": nn.Dense, "projection/output": nn.Dense}

        return spare_leaves(model, "params/projection/*")._replace(init=init, encode=encode, layers=layers)

    return adapt


def _insert_projection(params: Params, width: int, key: Key) -> Params:
    kernel = params.get("classifier", {}).get("kernel")
    if kernel is None or kernel.ndim != 2:
        raise InputError(
            "projection: it goes in front of a dense classifier, params/classifier/kernel [feature, class]."
        )
    hidden, output, classifier = jax.random.split(key, 3)
    num_features, num_classes = kernel.shape
    projection = {
        "hidden": init_dense(hidden, num_features, num_features, kernel.dtype),
        "output": init_dense(output, num_features, width, kernel.dtype),
    }
    head = init_dense(classifier, width, num_classes, kernel.dtype)["kernel"]
    return {**params, "projection": projection, "classifier": params["classifier"] | {"kernel": head}}


@validate_arguments
def probabilistic(
    num_samples: CountOrZero = 20,
    num_features: Count | None = None,
    *,
    has_reference: bool = True,
    learn_scale: bool = True,
    draw: Callable[[Key, tuple[int, ...], jnp.dtype], Array] = jax.random.normal,
) -> Callable[[Model], Model]:
    """Make a model's representation a distribution; its features become a sample z, with mu and sigma as extras.

        (mu_b, s_b) = W h_b + v,   sigma_b = softplus(s_b),   z_b = mu_b + sigma_b eps_b,   eps_b ~ N(0, I)

    h_b [feature] are the encoder's features, mu, s, z [D]. The noise is derived from `context.key`. Training uses one
    sample per example, features [batch, D]. Evaluation uses `num_samples` samples, features [batch, samples, D], and
    the logits are the log of the mean softmax over samples; with 0 samples, mu is used. Evaluation always uses the key
    of its context, so it is reproducible. extras: "mean" (mu) and "scale" (sigma), each [batch, D].

    Adds params: representation/kernel [feature, 2 D] and bias [2 D]; with `has_reference`, which only the term
    `conditional_information` needs, reference/mean [class, D] (initially 0), reference/scale [class, D] (before
    softplus, initially 1) and, with `learn_scale`, reference/factor [] (initially 1).

    Args:
        num_samples: The number of samples in evaluation (default 20, as in the authors' code).
        num_features: D (default None, the number of features of the model: 512 for a ResNet-18 and 2048 for a
            ResNet-50, as in the authors' code).
        draw: (key, shape, dtype) -> standard noise.

    Raises:
        InputError: Values are invalid, features are maps, or the head cannot be resized to D.

    References:
        Nguyen, Torr and Lim, FedSR: A Simple and Effective Domain Generalization Method for Federated Learning, NeurIPS
        2022. Authors' code: atuannguyen/FedSR, src/methods/base.py.
    """

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            variables = model.init(key, inputs)
            features, logits = vector_shapes("probabilistic", model, variables, inputs)
            inside, num_classes, dtype = features.shape[1], logits.shape[-1], features.dtype
            outside, params, key = num_features or inside, variables["params"], jax.random.fold_in(key, 1)
            params = params | {"representation": init_dense(key, inside, 2 * outside, dtype)}
            if outside != inside:
                params = params | _resize_head(key, params, inside, outside)
            if has_reference:
                shape, factor = (num_classes, outside), {"factor": jnp.ones((), dtype)} if learn_scale else {}
                reference = {"mean": jnp.zeros(shape, dtype), "scale": jnp.ones(shape, dtype), **factor}
                params = params | {"reference": reference}
            return variables | {"params": params}

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            (features, extras), state = model.encode(variables, inputs, context)
            mean, raw = jnp.split(apply_dense(variables["params"]["representation"], features), 2, axis=-1)
            scale = jax.nn.softplus(raw)
            drawn = mean
            if context.is_training:
                drawn = mean + scale * draw(context.key, mean.shape, mean.dtype)
            elif num_samples:
                noise = draw(context.key, (num_samples, *mean.shape), mean.dtype)
                drawn = jnp.moveaxis(mean + scale * noise, 0, 1)
            return (drawn, extras | {"mean": mean, "scale": scale}), state

        def classify(params: Params, features: Array) -> Array:
            if features.ndim == 2:
                return model.classify(params, features)
            logits = model.classify(params, features.reshape(-1, features.shape[-1]))
            chances = jax.nn.log_softmax(logits.reshape(*features.shape[:2], -1))
            return jax.nn.logsumexp(chances, axis=1) - jnp.log(features.shape[1])

        def layers(inputs: Array) -> Mapping[str, type]:
            return {**model.layers(inputs), "representation": nn.Dense}

        spared = spare_leaves(model, "params/representation/*", "params/reference/*")
        return spared._replace(init=init, encode=encode, classify=classify, layers=layers)

    return adapt


def _resize_head(key: Key, params: Params, inside: int, outside: int) -> Params:
    """Reinitialize the head for features of another width."""
    head = params.get("classifier", {})
    if set(head) - {"bias"} != {"kernel"} or head["kernel"].shape[:-1] != (inside,):
        raise InputError(
            f"num_features: only a head of one dense layer can be made another width, and this one has "
            f"{', '.join(sorted(head)) or 'nothing at params/classifier'}. Leave num_features out."
        )
    old, key = head["kernel"], jax.random.fold_in(key, 1)
    return {"classifier": {**head, "kernel": init_dense(key, outside, old.shape[1], old.dtype)["kernel"]}}


def split_off(variables: Variables, *names: str) -> tuple[Params, Variables]:
    """(these entries of the parameters, the variables without them)."""
    params = dict(variables["params"])
    return {name: params.pop(name) for name in names if name in params}, {**variables, "params": params}


def vector_shapes(part: str, model: Model, variables: Variables, inputs: Array) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The shapes of (features, logits) in evaluation mode; raises InputError if the features are not vectors."""
    features, logits = output_shapes(model, variables, inputs)
    check_vectors(part, features)
    return features, logits


def check_vectors(part: str, features: jax.ShapeDtypeStruct) -> None:
    """Raise InputError if features are not vectors."""
    if features.ndim != 2:
        raise InputError(
            f"{part}: features have shape {features.shape[1:]} per example; they need to be vectors. Use a model that "
            "classifies whole examples."
        )


def with_feature_shape(model: Model) -> Model:
    """Add the empty shared leaf outline/prototypes, of shape [0, class, feature].

    If the head is personal, no shared leaf has this shape, which summaries of features need.

    Raises:
        InputError: Features are maps.
    """

    def outline(variables: Variables, inputs: Array) -> Array:
        features, logits = vector_shapes("prototypes", model, variables, inputs)
        return jnp.zeros((0, logits.shape[-1], features.shape[-1]), features.dtype)

    return _with_outline(model, "prototypes", outline)


def with_logit_shape(model: Model) -> Model:
    """Add the empty shared leaf outline/logits, of shape [0, class, class], for summaries of logits by class.

    Raises:
        InputError: Features are maps.
    """

    def outline(variables: Variables, inputs: Array) -> Array:
        logits = vector_shapes("mean logits", model, variables, inputs)[1]
        return jnp.zeros((0, logits.shape[-1], logits.shape[-1]), logits.dtype)

    return _with_outline(model, "logits", outline)


def with_image_shape(model: Model) -> Model:
    """Add the empty shared leaf outline/images, of shape [0, height, width, channel], for summaries of images.

    Raises:
        InputError: Inputs are not images.
    """

    def outline(variables: Variables, inputs: Array) -> Array:
        check_images("a client's summary of its images", inputs.shape)
        return jnp.zeros((0, *inputs.shape[1:]), jnp.promote_types(inputs.dtype, jnp.float32))

    return _with_outline(model, "images", outline)


def _with_outline(model: Model, name: str, outline: Callable[[Variables, Array], Array]) -> Model:
    """Add the shared leaf outline/`name`, which the model does not read."""

    def init(key: Key, inputs: Array) -> Variables:
        variables = model.init(key, inputs)
        return variables | {"outline": {**variables.get("outline", {}), name: outline(variables, inputs)}}

    def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
        rest = dict(variables)
        shapes = {"outline": rest.pop("outline")} if "outline" in rest else {}
        outputs, state = model.encode(rest, inputs, context)
        return outputs, state | shapes

    return spare_leaves(model, f"outline/{name}")._replace(init=init, encode=encode)


def with_empty_parameter(model: Model) -> Model:
    """Add the parameter params/nothing/empty, of shape [0].

    If all other parameters are personal, it is the only message, and keeps its structure.
    """

    def init(key: Key, inputs: Array) -> Variables:
        variables = model.init(key, inputs)
        return variables | {"params": {**variables["params"], "nothing": {"empty": jnp.zeros(0)}}}

    def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
        return model.encode(split_off(variables, "nothing")[1], inputs, context)

    return spare_leaves(model, "params/nothing/*")._replace(init=init, encode=encode)
