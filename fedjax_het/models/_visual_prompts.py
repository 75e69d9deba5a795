"""Visual prompts: trained tokens among the patches of a frozen vision transformer."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models._adaptations import split_off
from fedjax_het.models._attention import Block
from fedjax_het.models._frozen import frozen_by
from fedjax_het.sharing import HEAD, share_only
from fedjax_het.types import Array, Context, Key, Model, Named, Variables
from fedjax_het.validation import Count, validate_arguments

_LEAF = "prompts"


@validate_arguments
def visual_prompts(num_prompts: Count = 10, *, deep: bool = False, train_head: bool = True) -> Callable[[Model], Model]:
    """Freeze a vision transformer, and put trained tokens behind its class token.

    The leaf params/prompts [1 or block, prompt, feature] begins uniform on +-sqrt(6 / (3 p^2 + feature)), p the side of
    a patch. Prompts have no positions, and their outputs are not part of the features.

    Args:
        num_prompts: The number of prompts (default 10).
        deep: Whether every block has prompts of its own, in place of the outputs of those before it. By default, only
            the first block has, whose outputs go through all blocks.
        train_head: Whether the head, params/classifier, is trained, too (default True).

    Raises:
        InputError: A number is out of range; or, when the model is initialized, it is no vision transformer of this
            package.

    References:
        Jia, Tang, Chen et al., Visual Prompt Tuning, ECCV 2022. Without their dropout and projection.
    """

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            variables, blocks = model.init(key, inputs), _list_blocks(model, inputs)
            params = variables["params"]
            if not blocks or "patches" not in params or _LEAF in params:
                raise InputError(
                    "visual_prompts: the model is no vision transformer without prompts. Take the model vit."
                )
            features, side = params["patches"]["kernel"].shape[-1], params["patches"]["kernel"].shape[0]
            bound, shape = math.sqrt(6 / (3 * side**2 + features)), (len(blocks) if deep else 1, num_prompts, features)
            key = jax.random.fold_in(key, 1)
            prompts = jax.random.uniform(key, shape, params["patches"]["kernel"].dtype, -bound, bound)
            return {**variables, "params": {**params, _LEAF: prompts}}

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            own, rest = split_off(variables, _LEAF)
            with nn.intercept_methods(_insert(own[_LEAF], _list_blocks(model, inputs))):
                return model.encode(rest, inputs, context)

        trained = share_only(f"params/{_LEAF}", *([HEAD] * train_head))
        return frozen_by(model, trained)._replace(init=init, encode=encode)

    return adapt


def _list_blocks(model: Model, inputs: Array) -> list[str]:
    return [path for path, kind in model.layers(inputs).items() if issubclass(kind, Block)]


def _insert(prompts: Array, blocks: list[str]) -> Callable:
    """The interceptor that puts prompts into the inputs of blocks, and takes them out of the outputs."""
    num_prompts, is_deep = prompts.shape[1], len(prompts) > 1

    def call_layer(call: Callable, args: tuple, options: dict, context: nn.module.InterceptorContext) -> Any:
        path = "/".join(context.module.path)
        if context.method_name != "__call__" or path not in blocks:
            return call(*args, **options)
        x, *rest = args
        index = blocks.index(path)
        if is_deep or index == 0:
            tokens = jnp.broadcast_to(prompts[index].astype(x.dtype), (len(x), *prompts.shape[1:]))
            x = jnp.concatenate([x[:, :1], tokens, x[:, 1:]], axis=1)
        x = call(x, *rest, **options)
        is_last = index == len(blocks) - 1
        return jnp.concatenate([x[:, :1], x[:, 1 + num_prompts :]], axis=1) if is_deep or is_last else x

    return call_layer
