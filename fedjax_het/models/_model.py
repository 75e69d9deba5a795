"""Models from Flax modules, and argument checks of the model factories."""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models._dense import Dense
from fedjax_het.models._plain import is_nnx, plain_model, to_linen
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables
from fedjax_het.validation import LARGEST_COUNT, Range

NumClasses = Annotated[int, Range(1, LARGEST_COUNT, is_whole=True)]


class Network(nn.Module):
    """A module for `from_flax` with a dense layer as head; subclasses add the method `encode`."""

    num_classes: int

    def setup(self):
        self.classifier = Dense(self.num_classes)

    def classify(self, features: Array) -> Array:
        return self.classifier(features)


def from_flax(module: nn.Module | Callable[..., Any]) -> Model:
    """Build a model from a Flax module, Linen or NNX, that returns logits.

    If the last dense layer returns the logits, its inputs are the features, and its parameters are renamed to
    ``params/classifier``, where algorithms expect the head. Other modules work with all algorithms that use neither
    features nor head; the remaining algorithms raise an error that states the reason.

    `module(inputs)` may have further arguments: ``train``, ``training`` or ``is_training``; their opposites
    ``deterministic`` or ``use_running_average``; and ``mask`` [batch], 1 for examples and 0 for padding. Flax batch
    normalization always ignores padding. NNX modules run through `flax.nnx.bridge`, after ``train()`` or ``eval()``.

    A Linen module may define its features with the methods ``encode(inputs, mask, is_training) -> features`` and
    ``classify(features) -> logits``, and a submodule ``classifier`` as its head. With a method ``narrowed(width)``, it
    may differ in width between clients; the method returns the module with `narrow_layers` of its hidden layers.

    In training, every collection besides params may change, and dropout uses `context.key`; in evaluation, collections
    are unchanged.

    Args:
        module: A Linen module; a function ``rngs -> NNX module``, such as ``functools.partial(Net, 10)``, which
            initializes weights for each seed; or an NNX module, whose weights all seeds start from.

    Raises:
        InputError: The argument is not a module, or its ``__call__`` has an unknown argument without a default.
    """
    narrowed = None
    if hasattr(module, "narrowed"):
        narrowed = lambda width: from_flax(module.narrowed(width))  # noqa: E731
    module = to_linen(module)
    if is_nnx(module) or not (hasattr(module, "encode") and hasattr(module, "classify")):
        return plain_model(module)._replace(narrowed=narrowed)

    layers: dict[tuple[tuple[int, ...], jnp.dtype], Mapping[str, type]] = {}  # by the shape and dtype of the inputs

    def init(key: Key, inputs: Array) -> Variables:
        """Initialize the module, and record the class of every executed submodule by its path."""
        classes = {}

        def record(call, args, kwargs, context):
            if context.module.path:
                classes["/".join(context.module.path)] = type(context.module)
            return call(*args, **kwargs)

        with nn.intercept_methods(record):
            variables = dict(module.init(key, inputs, method=_encode_and_classify))
        layers[inputs.shape, inputs.dtype] = classes
        return variables

    def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
        _, state = tree.split_params(variables)
        features, changed = module.apply(
            variables,
            inputs,
            context.mask,
            context.is_training,
            method="encode",
            mutable=list(state) if context.is_training else [],
            rngs={"dropout": context.key},
        )
        return (features, {}), {**state, **changed}

    def classify(params: Params, features: Array) -> Array:
        return jnp.asarray(module.apply({"params": params}, features, method="classify"))

    def list_layers(inputs: Array) -> Mapping[str, type]:
        if (inputs.shape, inputs.dtype) not in layers:
            jax.eval_shape(init, make_key(0), inputs)
        return layers[inputs.shape, inputs.dtype]

    return Model(init, encode, classify, list_layers, narrowed=narrowed)


def _encode_and_classify(module: nn.Module, inputs: Array) -> Array:
    return module.classify(module.encode(inputs, jnp.ones(inputs.shape[0]), False))


def output_shapes(model: Model, variables: Variables, inputs: Array | jax.ShapeDtypeStruct) -> tuple[Any, Any]:
    """The shapes of (features, logits) in evaluation mode."""
    context = Context(jnp.ones(inputs.shape[0]), jnp.zeros((), jnp.int32), make_key(0), False)
    features = jax.eval_shape(lambda variables, x: model.encode(variables, x, context)[0][0], variables, inputs)
    return features, jax.eval_shape(model.classify, variables["params"], features)


def check_images(network: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 4:
        raise InputError(f"{network} takes images [batch, height, width, channel], and was given shape {shape}.")


def scale_widths(name: str, counts: Sequence[int], width: float) -> tuple[int, ...]:
    """Scale all counts by the width, rounded, at least 1. Raises InputError if the result is too large for an array."""
    if counts and max(counts) * width > LARGEST_COUNT:
        raise InputError(
            f"width: {width:g} times {name} of {max(counts)} is more than an array can have, {LARGEST_COUNT}. Give "
            "less."
        )
    return tuple(max(1, round(width * count)) for count in counts)


def narrow_layers(counts: Sequence[int], width: float) -> tuple[int, ...]:
    """The numbers of units of layers with a fraction of their units: ceil(width h), at least 1."""
    return tuple(max(1, math.ceil(Fraction(width).limit_denominator(10**6) * count)) for count in counts)
