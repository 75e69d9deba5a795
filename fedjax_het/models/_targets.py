"""The layers of a model that adapters are added to."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
from flax import linen as nn

from fedjax_het import tree
from fedjax_het.errors import InputError, nearest
from fedjax_het.models._layers import Conv
from fedjax_het.models._model import output_shapes
from fedjax_het.types import Array, Key, Model, Params

_DENSE, _CONVOLUTIONS = (nn.Dense,), (nn.Conv, Conv)


def choose_layers(layers: Mapping[str, type], patterns: Sequence[str]) -> list[str]:
    """The paths of the layers that match the patterns; "*" alone chooses all dense layers except the head.

    Raises:
        InputError: A pattern matches no layer that can have an adapter.
    """
    known = {
        path
        for path, kind in layers.items()
        if issubclass(kind, _DENSE + _CONVOLUTIONS) and path.partition("/")[0] != "classifier"
    }
    chosen = set()
    for pattern in patterns:
        matched = {path for path in known if matches(path, layers[path], pattern)}
        if not matched:
            raise InputError(
                f"targets: '{pattern}' matches no dense layer {'' if pattern == '*' else 'or convolution '}besides the "
                f"head, which is trained as a whole. {nearest(pattern, sorted(known))}"
            )
        chosen |= matched
    return sorted(chosen)


def matches(path: str, kind: type, pattern: str) -> bool:
    """Whether a layer of this class matches a pattern; "*" matches no convolution."""
    kinds = _DENSE if pattern == "*" else _DENSE + _CONVOLUTIONS
    return issubclass(kind, kinds) and (fnmatchcase(path, pattern) or fnmatchcase(path, f"*/{pattern}"))


def init_added(
    name: str,
    model: Model,
    key: Key,
    inputs: Array,
    chosen: Sequence[str],
    init: Callable[[str, Key, Array], Params],
    interceptor: Callable,
) -> dict[str, Array]:
    """The leaves of a model and those that `init`, of a layer's path, a key and a kernel, adds to the chosen layers.

    Raises:
        InputError: A layer cannot have the leaves, or is not called in a way that lets `interceptor` read them.
    """
    leaves = tree.leaves_by_path(model.init(key, inputs))
    for path in chosen:
        kernel = leaves.get(f"params/{path}/kernel")
        own = {} if kernel is None else init(path, jax.random.fold_in(key, zlib.crc32(path.encode())), kernel)
        added = {f"params/{path}/{leaf}": value for leaf, value in own.items()}
        if not added or added.keys() & leaves.keys():
            reason = "has no kernel" if kernel is None else "has such adapters already"
            raise InputError(f"{name}: the layer '{path}' {reason}. Choose other targets.")
        leaves |= added
    called: set[str] = set()

    def note(call: Callable, args: tuple, options: dict, context: nn.module.InterceptorContext) -> Any:
        if context.method_name == "__call__":
            called.add("/".join(context.module.path))
        return call(*args, **options)

    with nn.intercept_methods(interceptor), nn.intercept_methods(note):
        variables = {kind: values for kind, values in tree.from_paths(leaves).items() if kind != "adapter"}
        output_shapes(model, variables, inputs)
    if missing := sorted(set(chosen) - called):
        raise InputError(
            f"{name}: the layer '{missing[0]}' is not called as a Linen layer in the model's encoder, so that nothing "
            "can be added to its output. Choose other targets, or write the module in Linen."
        )
    return leaves
