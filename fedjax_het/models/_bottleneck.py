"""Bottleneck adapters behind frozen layers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn

from fedjax_het import tree
from fedjax_het.models._dense import apply_dense, init_dense
from fedjax_het.models._frozen import frozen_by, to_patterns
from fedjax_het.models._targets import choose_layers, init_added
from fedjax_het.sharing import HEAD, share_only
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables
from fedjax_het.validation import Count, validate_arguments

_PARTS = ("down", "up")
_ACTIVATIONS = {"gelu": partial(nn.gelu, approximate=False), "relu": nn.relu}


@validate_arguments
def bottleneck(
    size: Count = 64,
    *,
    targets: str | Sequence[str] = ("attention/out", "dense_1"),
    activation: Literal["gelu", "relu"] = "gelu",
    train_head: bool = True,
) -> Callable[[Model], Model]:
    """Freeze a model, and put a small trained network behind the chosen layers.

        t <- t + U f(D t + b) + c,   t [..., d] the outputs of a layer,   D [d, size], U [size, d]

    U, b and c are zero at first, so that training starts from the model as it is. The leaves of a layer are
    bottleneck_down, bottleneck_up, and their biases bottleneck_down_bias and bottleneck_up_bias.

    Args:
        size: The number of hidden units (default 64).
        targets: Patterns of the paths of layers, see `lora`. The default are the last layers of attention and of the
            dense branch of the blocks of `vit` and language networks (Houlsby et al.); "dense_1" is behind the dense
            branch alone (Pfeiffer et al.).
        activation: f, "gelu" or "relu".
        train_head: Whether the head, params/classifier, is trained, too (default True).

    Raises:
        InputError: A number is out of range; or, when the model is initialized, a pattern matches no layer, or a chosen
            layer has such adapters already.

    References:
        Houlsby, Giurgiu, Jastrzebski et al., Parameter-Efficient Transfer Learning for NLP, ICML 2019. Pfeiffer,
        Kamath, Rueckle et al., AdapterFusion: Non-Destructive Task Composition for Transfer Learning, EACL 2021.
    """
    patterns, activate = to_patterns(targets), _ACTIVATIONS[activation]

    def add(call: Callable, args: tuple, options: dict, context: nn.module.InterceptorContext) -> Any:
        layer, outputs = context.module, call(*args, **options)
        if context.method_name != "__call__" or not layer.path or not layer.has_variable("params", _name("up")):
            return outputs
        down, up = (
            {kind: layer.get_variable("params", _name(part, kind)) for kind in ("kernel", "bias")} for part in _PARTS
        )
        hidden = outputs.astype(jnp.promote_types(outputs.dtype, down["kernel"].dtype))
        return outputs + apply_dense(up, activate(apply_dense(down, hidden))).astype(outputs.dtype)

    def init_layer(layer: str, key: Key, kernel: Array) -> Params:
        down = init_dense(key, kernel.shape[-1], size, kernel.dtype)
        up = {name: jnp.zeros(leaf.shape[::-1], leaf.dtype) for name, leaf in down.items()}
        up["bias"] = jnp.zeros(kernel.shape[-1], kernel.dtype)
        layers = {"down": down, "up": up}
        return {_name(part, kind): leaf for part, layer in layers.items() for kind, leaf in layer.items()}

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            chosen = choose_layers(model.layers(inputs), patterns)
            return tree.from_paths(init_added("bottleneck", model, key, inputs, chosen, init_layer, add))

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            with nn.intercept_methods(add):
                return model.encode(variables, inputs, context)

        trained = share_only("*/bottleneck_*", *([HEAD] * train_head))
        return frozen_by(model, trained)._replace(init=init, encode=encode)

    return adapt


def _name(part: str, kind: str = "kernel") -> str:
    return f"bottleneck_{part}" + ("_bias" if kind == "bias" else "")
