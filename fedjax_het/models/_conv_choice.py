"""Selection of the convolution implementation of models with conv="auto", by timing."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het._internal.keys import make_key
from fedjax_het._internal.target_platform import target_platform
from fedjax_het.models._conv_impl import setting_auto
from fedjax_het.types import Array, Context, Model, Named, Params, Variables

_CANDIDATES = ("lax", "im2col")  # the first is the meaning of "auto" without timing


def with_conv(name: str) -> Callable[[Model], Model]:
    """Use the implementation `name` for convolutions that a model leaves to "auto"."""

    def adapt(model: Model) -> Model:
        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            with setting_auto(lambda: name):
                return model.encode(variables, inputs, context)

        def classify(params: Params, features: Array) -> Array:
            with setting_auto(lambda: name):
                return model.classify(params, features)

        return model._replace(encode=encode, classify=classify)

    return adapt


def find_conv_candidates(model: Model, inputs: Array | jax.ShapeDtypeStruct) -> tuple[str, ...]:
    """List the implementations to time on an accelerator.

    Args:
        model: The model.
        inputs: A batch, or its shape.

    Returns:
        Their names; () on a CPU, and for models without convolutions left to "auto".
    """
    if target_platform() == "cpu":
        return ()
    found = []

    def record() -> str:
        found.append(_CANDIDATES[0])
        return _CANDIDATES[0]

    context = Context(jnp.ones(inputs.shape[0]), jnp.zeros((), jnp.int32), make_key(0), False)
    variables = jax.eval_shape(model.init, make_key(0), inputs)
    with setting_auto(record):
        jax.eval_shape(
            lambda variables, inputs: model.classify(
                variables["params"], model.encode(variables, inputs, context)[0][0]
            ),
            variables,
            inputs,
        )
    return _CANDIDATES if found else ()
