"""Models from plain Flax modules: a Linen module with only `__call__`, or an NNX module through `nnx.bridge`."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models._dense import Dense
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables

_HEAD, _MOVED = "classifier", "classifier_body"  # a layer that is not the head cannot keep its name
_IS_TRAINING = {
    **dict.fromkeys(("train", "training", "is_training"), True),
    **dict.fromkeys(("deterministic", "use_running_average"), False),
}
Hook = Callable[..., Array]
"""(call, the layer, its path, *its arguments) -> its output; `call` has the arguments of the layer."""


class _Structure(NamedTuple):
    """The structure of a module, from an abstract trace."""

    layers: Mapping[str, type]  # {path of a layer: its Linen class}
    head: str | None  # the path of the last dense layer if its output is the module's
    reason: str  # why there is no head


@jax.tree_util.register_pytree_node_class
class MissingFeatures:
    """Placeholder for features in a model whose head is unknown: access raises InputError."""

    def __init__(self, logits: Array, reason: str):
        self.logits, self.reason = logits, reason

    def tree_flatten(self):
        return (self.logits,), self.reason

    @classmethod
    def tree_unflatten(cls, reason, leaves):
        (logits,) = leaves
        return cls(logits, reason)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name != "__jax_array__":
            raise AttributeError(name)
        raise InputError(
            f"model: this algorithm reads features, and {self.reason}. End the module with one Dense layer (Linear in "
            "NNX) that returns the logits, give it methods encode and classify, or choose an algorithm without "
            "features, such as fedavg."
        )


def plain_model(module: nn.Module) -> Model:
    """Build a model from a Linen module without `encode`; see `from_flax`."""

    @functools.cache
    def read(shape: tuple[int, ...], dtype: jnp.dtype) -> _Structure:
        return _read_structure(module, jax.ShapeDtypeStruct(shape, dtype))

    def init(key: Key, inputs: Array) -> Variables:
        head = read(inputs.shape, inputs.dtype).head
        run_init = functools.partial(module.init, _initial_keys(key))
        variables = dict(_run(run_init, module, inputs, jnp.ones(len(inputs)), False))
        return {**variables, "params": _rename(variables["params"], lambda path: _to_ours(path, head))}

    def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Any, Named], Variables]:
        structure, taken = read(inputs.shape, inputs.dtype), []
        params, state = tree.split_params(variables)

        def take_features(call: Callable, layer: Any, path: str, *args: Any, **options: Any) -> Array:
            if path != structure.head:
                return call(*args, **options)
            taken.append(args[0])
            return jnp.zeros((*args[0].shape[:-1], _num_outputs(layer)), args[0].dtype)

        theirs = {**state, "params": _rename(params, lambda path: _to_theirs(path, structure.head))}
        mutable = list(state) if context.is_training else []
        rngs = dict.fromkeys(("dropout", "default"), context.key)
        apply = functools.partial(module.apply, theirs, mutable=mutable, rngs=rngs)
        logits, changed = _run(apply, module, inputs, context.mask, context.is_training, take_features)
        features = taken[0] if taken else MissingFeatures(logits, structure.reason)
        return (features, {}), {**state, **changed}

    def classify(params: Params, features: Any) -> Array:
        if isinstance(features, MissingFeatures):
            return features.logits
        head = params[_HEAD]
        layer = Dense(head["kernel"].shape[-1], use_bias="bias" in head)
        return jnp.asarray(layer.apply({"params": head}, features))

    return Model(init, encode, classify, layers=lambda inputs: read(inputs.shape, inputs.dtype).layers)


def to_linen(module: Any) -> nn.Module:
    """Return a Linen module unchanged, and wrap an NNX module or a function `rngs -> NNX module`.

    With an NNX module, every run starts from its weights; a function initializes new weights for every seed.

    Raises:
        InputError: The argument is anything else.
    """
    if isinstance(module, nn.Module):
        return module
    if callable(module):
        from flax import nnx  # slow to import

        def make(rngs: nnx.Rngs) -> nnx.Module:
            if not isinstance(module, nnx.Module):
                return module(rngs=rngs)
            copy = nnx.clone(module)
            nnx.reseed(copy, default=rngs())
            return copy

        return nnx.bridge.ToLinen(make)
    raise InputError(
        f"from_flax: expected a Linen module, an NNX module or a function of rngs that makes one, got {module!r}."
    )


def is_nnx(module: nn.Module) -> bool:
    """Whether `to_linen` has wrapped an NNX module."""
    return type(module).__module__.startswith("flax.nnx")


# ---- running a module ------------------------------------------------------------------------------------------------
def _run(
    function: Callable, module: nn.Module, inputs: Array, mask: Array, is_training: bool, hook: Hook | None = None
) -> Any:
    """Call `init` or `apply` of a module; every call of one of its layers goes through the hook.

    Batch normalization ignores padding, whose mask is 0.
    """

    def call_layer(call: Callable, layer: Any, path: str, *args: Any, **options: Any) -> Any:
        is_norm = _linen_class(type(layer)) is nn.BatchNorm
        if is_norm and options.get("mask") is None and len(args[0]) == len(mask):
            is_example = (mask > 0) | ~jnp.any(mask > 0)
            options["mask"] = is_example.reshape(-1, *[1] * (args[0].ndim - 1))
        return hook(call, layer, path, *args, **options) if hook else call(*args, **options)

    def intercept(call: Callable, args: tuple, options: dict, context: nn.module.InterceptorContext) -> Any:
        path = "/".join(context.module.path)
        if context.method_name != "__call__" or not path:
            return call(*args, **options)
        return call_layer(call, context.module, path, *args, **options)

    def call_nnx(network: Any, inputs: Array) -> Array:
        from flax import nnx

        network.train() if is_training else network.eval()
        for path, layer in nnx.iter_modules(network):
            if path:
                layer.__class__ = _hooked(type(layer))
                object.__setattr__(layer, "_call_layer", (call_layer, "/".join(map(str, path))))
        return network(inputs, **_arguments(type(network).__call__, mask, is_training))

    if is_nnx(module):
        return function(inputs, nnx_method=call_nnx)
    with nn.intercept_methods(intercept):
        return function(inputs, **_arguments(type(module).__call__, mask, is_training))


def _initial_keys(key: Key) -> dict[str, Key]:
    return {"params": key, "default": jax.random.fold_in(key, 1)}


@functools.cache
def _hooked(layer: type) -> type:
    """A subclass of an NNX layer whose calls go through `_call_layer` of the instance."""

    def call(self: Any, *args: Any, **options: Any) -> Any:
        hook, path = self._call_layer
        return hook(functools.partial(layer.__call__, self), self, path, *args, **options)

    return type(layer.__name__, (layer,), {"__call__": call})


def _arguments(function: Callable, mask: Array, is_training: bool) -> dict[str, Any]:
    """The arguments of a module besides its inputs, by name: the training flag and the mask of examples."""
    chosen: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[2:]:
        if name in _IS_TRAINING:
            chosen[name] = _IS_TRAINING[name] == is_training
        elif name == "mask":
            chosen[name] = mask
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise InputError(
                f"from_flax: the module's __call__ has an argument '{name}' without a default. Known are the inputs, "
                f"mask, {', '.join(_IS_TRAINING)}. Give it a default."
            )
    return chosen


# ---- its head --------------------------------------------------------------------------------------------------------
def _read_structure(module: nn.Module, inputs: jax.ShapeDtypeStruct) -> _Structure:
    layers, dense, outputs = {}, [], []

    def record(call: Callable, layer: Any, path: str, *args: Any, **options: Any) -> Any:
        layers[path], output = _linen_class(type(layer)), call(*args, **options)
        if issubclass(_linen_class(type(layer)), nn.Dense):
            dense.append((path, layer, output))
        return output

    def trace(inputs: Array) -> Array:
        function = functools.partial(module.init_with_output, _initial_keys(make_key(0)))
        output, _ = _run(function, module, inputs, jnp.ones(len(inputs)), False, record)
        outputs.append(output)
        return output

    jax.eval_shape(trace, inputs)
    paths = [path for path, _, _ in dense]
    if not dense:
        return _Structure(layers, None, "this model has no dense layer")
    path, layer, output = dense[-1]
    if output is not outputs[0]:
        return _Structure(layers, None, f"the last dense layer of this model, '{path}', does not return the logits")
    if paths.count(path) > 1:
        return _Structure(layers, None, f"the last dense layer of this model, '{path}', is called more than once")
    if _linen_class(type(layer)) not in (nn.Dense, Dense) or layer.dtype not in (None, jnp.float32):
        return _Structure(layers, None, f"the last layer of this model, '{path}', is no plain Dense layer in float32")
    return _Structure({_to_ours(name, path): layer for name, layer in layers.items()}, path, "")


def _linen_class(layer: type) -> type:
    """The Linen class with the name of an NNX layer; sharing rules identify norm layers by it."""
    names = [base.__name__ for base in layer.__mro__ if base.__module__.startswith("flax.nnx")]
    names = ["Dense" if name == "Linear" else name for name in names]
    return next((getattr(nn, name) for name in names if hasattr(nn, name)), layer)


def _num_outputs(layer: Any) -> int:
    return layer.features if isinstance(layer, nn.Dense) else layer.out_features


def _to_ours(path: str, head: str | None) -> str:
    return _move(_move(path, _HEAD, _MOVED), head, _HEAD) if head not in (None, _HEAD) else path


def _to_theirs(path: str, head: str | None) -> str:
    return _move(_move(path, _HEAD, head), _MOVED, _HEAD) if head not in (None, _HEAD) else path


def _move(path: str, old: str, new: str) -> str:
    return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path


def _rename(params: Params, rename: Callable[[str], str]) -> Params:
    leaves = tree.leaves_by_path(params)
    return traverse_util.unflatten_dict({rename(path): leaf for path, leaf in leaves.items()}, sep="/")
