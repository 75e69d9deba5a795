"""Networks with several exits: intermediate classifiers in front of chosen layers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError, nearest
from fedjax_het.models._adaptations import check_vectors, split_off
from fedjax_het.models._dense import apply_dense, init_dense
from fedjax_het.models._frozen import spare_leaves
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables
from fedjax_het.validation import validate_arguments

LAST = "classifier"


@validate_arguments
def with_exits(before: Sequence[str] | None = None) -> Callable[[Model], Model]:
    """Add a classifier in front of each of these layers; the network's own classifier is the last exit.

        z = 1/M sum_i z_i,   z_i = W_i h_i + b_i,   h_i: the inputs of the i-th layer, averaged over the image

    Features are the h_i of all exits by the names of the layers, and then the network's own, [batch, sum of widths].
    Adds params/exits/LAYER/{kernel,bias}.

    Args:
        before: Names of layers at the top of the network. None: all that follow another and have a kernel in them,
            such as the blocks of a ResNet, but its classifier.

    Raises:
        InputError: When the model is initialized: there is no such layer, its inputs are neither vectors nor images,
            features are maps, or the classifier is not a dense layer.
    """

    def adapt(model: Model) -> Model:
        def run(
            variables: Variables, inputs: Array, context: Context
        ) -> tuple[dict[str, Array], tuple[tuple[Array, Named], Variables]]:
            names, captured = _choose_layers(before, model.layers(inputs), variables["params"]), {}

            def record(call: Callable, args: tuple, options: dict, about: nn.module.InterceptorContext) -> Any:
                name = "/".join(about.module.path)
                if about.method_name == "__call__" and name in names:
                    captured[name] = _pool(name, args[0])
                return call(*args, **options)

            with nn.intercept_methods(record):
                outputs = model.encode(variables, inputs, context)
            return captured, outputs

        def init(key: Key, inputs: Array) -> Variables:
            variables = model.init(key, inputs)
            kernel = variables["params"].get(LAST, {}).get("kernel")
            if kernel is None or kernel.ndim != 2:
                raise InputError("exits: they need a network whose classifier is a dense layer. Choose another model.")
            context = Context(jnp.ones(inputs.shape[0]), jnp.zeros((), jnp.int32), make_key(0), False)
            shapes, ((features, _), _) = jax.eval_shape(lambda variables: run(variables, inputs, context), variables)
            check_vectors("exits", features)
            heads = {
                name: init_dense(jax.random.fold_in(key, i), shapes[name].shape[1], kernel.shape[1], kernel.dtype)
                for i, name in enumerate(sorted(shapes), start=1)
            }
            return {**variables, "params": {**variables["params"], "exits": heads}}

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            captured, ((features, extras), state) = run(split_off(variables, "exits")[1], inputs, context)
            return (jnp.concatenate([*(captured[name] for name in sorted(captured)), features], axis=-1), extras), state

        def classify(params: Params, features: Array) -> Array:
            own, rest = split_off({"params": params}, "exits")
            heads = [own["exits"][name] for name in sorted(own["exits"])] if own else []
            ends = np.cumsum([head["kernel"].shape[0] for head in heads]).tolist()
            *hidden, last = jnp.split(features, ends, axis=-1)
            logits = [apply_dense(head, part) for head, part in zip(heads, hidden, strict=True)]
            return sum(logits, start=model.classify(rest["params"], last)) / (len(heads) + 1)

        whole = spare_leaves(model, "params/exits/*")
        return whole._replace(init=init, encode=encode, classify=classify, published=None, narrowed=None)

    return adapt


def _choose_layers(before: Sequence[str] | None, layers: Mapping[str, type], params: Params) -> list[str]:
    """The layers whose inputs have an exit, in the order in which they run."""
    usable = [name for name in layers if name != LAST and _has_kernel(params.get(name, {}))][1:]
    for name in before or ():
        if name not in usable:
            raise InputError(
                f"exits: '{name}' is not a layer at the top of the network that follows another and has a kernel. "
                f"{nearest(name, usable)}"
            )
    return usable if before is None else [name for name in usable if name in before]


def _has_kernel(params: Params) -> bool:
    return any(name == "kernel" or (isinstance(part, dict) and _has_kernel(part)) for name, part in params.items())


def _pool(name: str, inputs: Array) -> Array:
    if inputs.ndim not in (2, 4):
        raise InputError(f"exits: the inputs of '{name}' are neither vectors nor images. Choose another layer.")
    return inputs if inputs.ndim == 2 else inputs.mean((1, 2))
