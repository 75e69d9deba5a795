"""Choice of one implementation for the convolutions that a model leaves undecided, and the candidates for it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fedjax_het._internal.target_platform import target_platform
from fedjax_het.models._conv_impl import (
    UNDECIDED_CONVS,
    check_conv_impl,
    choosing_convs,
    replace_missing_native,
    select_conv_impl,
)
from fedjax_het.types import Array, Context, Model, Named, Params, Variables
from fedjax_het.validation import validate_arguments

_EVERYWHERE = ("lax", "im2col", "shifts")


@validate_arguments
def with_conv(name: str) -> Callable[[Model], Model]:
    """Compute the convolutions that a model leaves undecided, as "auto" or "timed", by one implementation.

    Args:
        name: "lax", "im2col", "shifts" or "native"; where "native" is not available, "im2col" takes its place.
            "auto" and "timed" are the model itself.

    Raises:
        InputError: An unknown name.
    """
    check_conv_impl(name)

    def choose(asked: str, dtype: DTypeLike, strides: tuple[int, int]) -> str:
        del asked
        return replace_missing_native(name, dtype, strides)

    def adapt(model: Model) -> Model:
        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            with choosing_convs(choose):
                return model.encode(variables, inputs, context)

        def classify(params: Params, features: Array) -> Array:
            with choosing_convs(choose):
                return model.classify(params, features)

        return model._replace(encode=encode, classify=classify)

    return (lambda model: model) if name in UNDECIDED_CONVS else adapt


def find_conv_candidates(
    model: Model, inputs: Array | jax.ShapeDtypeStruct, *, is_layout_given: bool
) -> tuple[str, ...]:
    """The implementations worth timing for the convolutions that a model leaves undecided.

    "auto" is timed off the CPU, together with the layout; "timed" always is.

    Args:
        model: The model.
        inputs: A batch, or its shape.
        is_layout_given: Whether the layout is given, and not timed.

    Returns:
        Their names, that which "auto" stands for first; () where nothing is to be timed.
    """
    asked, usual = set(), set()

    def record(name: str, dtype: DTypeLike, strides: tuple[int, int]) -> str:
        asked.add(name)
        usual.add(impl := select_conv_impl(dtype, strides))
        return impl

    context = Context(jnp.ones(inputs.shape[0]), jnp.zeros((), jnp.int32), jax.random.key(0), False)
    variables = jax.eval_shape(model.init, jax.random.key(0), inputs)
    with choosing_convs(record):
        jax.eval_shape(
            lambda variables, inputs: model.classify(
                variables["params"], model.encode(variables, inputs, context)[0][0]
            ),
            variables,
            inputs,
        )
    if "timed" not in asked and ("auto" not in asked or is_layout_given or target_platform() == "cpu"):
        return ()
    first = "native" if "native" in usual else usual.pop()
    return tuple(dict.fromkeys((first, *_EVERYWHERE)))
