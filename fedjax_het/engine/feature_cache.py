"""Activations of frozen layers, computed once per example."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.extend.core import Literal

from fedjax_het import sharing, tree
from fedjax_het._internal import atomic
from fedjax_het._internal.keys import GENERATOR, make_key
from fedjax_het.data.federation import Federation
from fedjax_het.engine.parallel.compilation import jit_initializer
from fedjax_het.engine.parallel.layout import vmapped
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Context, HostArray, Key, Model, Named, PyTree, Variables
from fedjax_het.validation import Count, validate_arguments


class _Cut(NamedTuple):
    """The position of the cut: after a layer directly below the root, or at the end of the encoder (None)."""

    layer: str | None
    shape: tuple[int, ...]  # of its output, without the axis of the batch


@validate_arguments
def cache_features(
    model: Model, federation: Federation, *, batch_size: Count = 256, folder: str | Path | None = None
) -> tuple[Model, Federation]:
    """Compute the output of the frozen layers before the first trained layer, once for each example.

        network = fh.models.train_only("params/classifier/*")(network)
        network, federation = fh.cache_features(network, federation)

    The model has the same variables as before and takes these activations as inputs, [feature] float32; training gives
    the same results up to rounding. The network is cut after a layer of its Linen module (a block, a norm) or at the
    end of its encoder: at the last output that depends on no trained leaf and that alone connects the inputs with the
    result. Algorithms and diagnostics that read images, such as `feddg`, then raise an error.

    Args:
        model: A model with frozen leaves, see `fedjax_het.models.freeze`, and pretrained weights.
        federation: A federation without augmentation.
        batch_size: The number of examples per forward pass.
        folder: The folder in which activations are stored for later calls with the same frozen layers, weights and
            examples; None: they are only in host memory. Files are named by the hash of these inputs, and may be
            deleted.

    Returns:
        The model and the federation for training. For new examples, use the original model with the trained variables.

    Raises:
        InputError: Inputs are augmented, public or changed by a drift, no layer is frozen before the first trained one,
            leaves depend on the seed, or the folder cannot be written.
    """
    if federation.augment is not None:
        raise InputError(
            "cache_features: inputs are augmented and differ in each epoch. Turn off augmentation or cache_features."
        )
    if model.groups:
        raise InputError("cache_features: clients have networks of different architecture. Turn off cache_features.")
    if federation.examples.public is not None:
        raise InputError("cache_features: public examples are not cached. Leave out public, or cache_features.")
    if federation.examples.concepts is not None and federation.examples.concepts.changes_inputs:
        raise InputError("cache_features: a drift changes inputs, so their features change. Turn off cache_features.")
    stored = federation.examples.inputs
    example = federation.prepare(jnp.zeros((1, *stored.shape[1:]), stored.dtype))
    variables = _initialize(model, example)
    frozen = sharing.group_leaves(model, sharing.share_all, variables, example).frozen
    cut = _find_cut(model, variables, frozen, example)
    where = None if folder is None else Path(folder)
    features = _compute_features(model, cut, variables, frozen, federation, batch_size, where)
    examples = federation.examples._replace(inputs=features)
    prepare = replace(federation.prepare, is_applied=True)
    return _continue_from(model, cut, example), replace(federation.with_examples(examples), prepare=prepare)


def _initialize(model: Model, example: Array) -> Variables:
    """Initial variables, whose frozen leaves must not depend on the key."""

    def init(key: Key) -> Variables:
        return model.init(key, example)

    initialize, arguments = jit_initializer(init, vmapped, None, make_key(0))
    starts = [initialize(arguments[0], make_key(seed)) for seed in (0, 1)]
    groups = [sharing.group_leaves(model, sharing.share_all, variables, example) for variables in starts]
    first, second = (tree.leaves_by_path(group.frozen) for group in groups)
    if not first:
        raise InputError(
            "cache_features: no leaf of the model is frozen. Freeze the first layers with "
            "config.model.adapter, or fh.models.freeze."
        )
    for path, leaf in first.items():
        if not np.array_equal(leaf, second[path]):
            raise InputError(
                f"cache_features: the frozen leaf {path} is random and differs between seeds. Use pretrained weights."
            )
    return starts[0]


def _find_cut(model: Model, variables: Variables, frozen: Variables, example: Array) -> _Cut:
    """The last output that depends on no trained leaf, and through which alone the result depends on the inputs."""
    trained, _ = tree.partition_like(variables, frozen)
    names: list[str | None] = []

    def record(changing: tuple[Variables, Array, Array, Array], inputs: Array) -> list[Array]:
        trained, mask, number, key = changing
        context = Context(mask, number, jax.random.wrap_key_data(key, impl=GENERATOR), True)
        calls: list[tuple[str | None, Any]] = []
        (features, extras), _ = _encode(model, tree.merge(frozen, trained), inputs, context, calls=calls)
        calls += [(None, None if extras else features)]
        called = [name for name, _ in calls]
        kept = [(name, value) for name, value in calls if called.count(name) == 1 and isinstance(value, jax.Array)]
        names[:] = [name for name, _ in kept]
        return [value for _, value in kept]

    context = _evaluation(1)
    changing = trained, context.mask, context.round, jax.random.key_data(context.key)
    outputs, are_changing = _trace(record, changing, example)
    for name, output, is_changing in reversed(list(zip(names, outputs, are_changing, strict=True))):
        cut = _Cut(name, output.shape[1:])
        if not is_changing and (name is None or _is_enough(model, cut, variables, example)):
            return cut
    raise InputError(
        "cache_features: no layer of a Linen module is frozen before the first trained one. Freeze the first layers, "
        "or remove cache_features."
    )


def _is_enough(model: Model, cut: _Cut, variables: Variables, inputs: Array) -> bool:
    """Whether the features are the same function of the output at the cut, whatever the inputs."""

    def resume(inputs: Array, outputs: Array | None) -> list[Any]:
        given = {} if outputs is None else {cut.layer: outputs}
        return [_encode(model, variables, inputs, _evaluation(len(inputs)), given=given)[0][0]]

    (expected,), _ = _trace(resume, inputs, None)
    (found,), are_changing = _trace(resume, inputs, jnp.zeros((1, *cut.shape)))
    return jax.tree.structure(found) == jax.tree.structure(expected) and not any(are_changing)


def _trace(function: Callable[..., list[Array]], changing: PyTree, fixed: PyTree) -> tuple[list[Any], list[bool]]:
    """(The shapes of a function's results, whether each depends on the first argument.)"""
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(changing, fixed)
    changed = set(traced.jaxpr.invars[: len(jax.tree.leaves(changing))])

    def is_changed(values: Sequence[Any]) -> bool:
        return any(not isinstance(value, Literal) and value in changed for value in values)

    for equation in traced.jaxpr.eqns:
        changed |= set(equation.outvars) if is_changed(equation.invars) else set()
    return shapes, [is_changed([value]) for value in traced.jaxpr.outvars]


def _encode(
    model: Model,
    variables: Variables,
    inputs: Array,
    context: Context,
    *,
    given: Mapping[str | None, Array] = MappingProxyType({}),
    calls: list[tuple[str | None, Any]] | None = None,
) -> tuple[tuple[Array, Named], Variables]:
    """`Model.encode` with the outputs of some layers given; it adds (name, output) of the layers called to `calls`."""

    def call_layer(call: Callable, args: tuple, options: dict, about: nn.module.InterceptorContext) -> Any:
        if about.method_name != "__call__" or len(about.module.path) != 1:
            return call(*args, **options)
        (name,) = about.module.path
        outputs = given[name] if name in given else call(*args, **options)
        if calls is not None:
            calls.append((name, outputs))
        return outputs

    with nn.intercept_methods(call_layer):
        return model.encode(variables, inputs, context)


def _compute_features(
    model: Model,
    cut: _Cut,
    variables: Variables,
    frozen: Variables,
    federation: Federation,
    batch_size: int,
    folder: Path | None,
) -> HostArray:
    """The outputs at the cut of all examples, [example, feature], read from the folder if they are there."""
    stored = federation.examples.inputs
    rest, _ = tree.partition_like(variables, frozen)  # does not enter the outputs, nor therefore the program

    @jax.jit
    def compute(frozen: Variables, inputs: Array) -> Array:
        calls: list[tuple[str | None, Any]] = []
        context = _evaluation(len(inputs))
        (features, _), _ = _encode(model, tree.merge(frozen, rest), federation.prepare(inputs), context, calls=calls)
        outputs = dict(calls) | {None: features}
        return outputs[cut.layer].reshape(len(inputs), -1)

    shape = len(stored), math.prod(cut.shape)
    program = compute.lower(frozen, jnp.zeros((min(batch_size, len(stored)), *stored.shape[1:]), stored.dtype))
    path = folder and folder / f"{_hash(program.as_text(), frozen, stored)}.npy"
    if path and (kept := _open(path, shape)) is not None:
        return kept
    features = np.empty(shape, np.float32)
    for first in range(0, len(stored), batch_size):
        batch = stored[first : first + batch_size]
        padding = [(0, min(batch_size, len(stored)) - len(batch)), *[(0, 0)] * (batch.ndim - 1)]
        features[first : first + batch_size] = compute(frozen, np.pad(batch, padding))[: len(batch)]
    if path:
        _keep(path, features)
    return features


def _hash(program: str, frozen: Variables, stored: HostArray) -> str:
    """Of everything that the features depend on."""
    digest = hashlib.sha256(f"{jax.__version__} {jax.default_backend()}\n{program}".encode())
    for path, leaf in tree.leaves_by_path(frozen).items():
        digest.update(path.encode())
        digest.update(np.asarray(leaf).tobytes())
    for first in range(0, len(stored), 1024):  # may be mapped from a file larger than the memory
        digest.update(stored[first : first + 1024].tobytes())
    return digest.hexdigest()[:32]


def _open(path: Path, shape: tuple[int, ...]) -> HostArray | None:
    """The features in the file; None without a file, and if it is damaged."""
    try:
        kept = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError):
        return None
    return kept if kept.shape == shape and kept.dtype == np.float32 else None


def _keep(path: Path, features: HostArray) -> None:
    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.save(file, features)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, save)
    except OSError as error:
        raise InputError(
            f"cache_features: cannot write {path}: {error.strerror}. Make room, or choose another folder."
        ) from error


def _continue_from(model: Model, cut: _Cut, example: Array) -> Model:
    """The model with the activations at the cut as inputs."""

    def originals(features: Array) -> Array:
        return jnp.zeros((len(features), *example.shape[1:]), example.dtype)

    def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
        features = inputs.reshape(len(inputs), *cut.shape)
        if cut.layer is None:
            return (features, {}), tree.split_params(variables)[1]
        return _encode(model, variables, originals(inputs), context, given={cut.layer: features})

    return model._replace(
        init=lambda key, inputs: model.init(key, originals(inputs)),
        encode=encode,
        layers=lambda inputs: model.layers(originals(inputs)),
    )


def _evaluation(num_examples: int) -> Context:
    return Context(jnp.ones(num_examples), jnp.zeros((), jnp.int32), make_key(0), False)
