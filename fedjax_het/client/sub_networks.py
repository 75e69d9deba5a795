"""Sub-networks of the common model: by masks over the whole network, and as smaller networks."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import sharing, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Problem
from fedjax_het.client.objectives._supervised import count_classes
from fedjax_het.errors import InputError
from fedjax_het.types import (
    Array,
    ClientData,
    ClientGroups,
    ClientView,
    Context,
    Leaf,
    ModelPart,
    Params,
    PyTree,
    Variables,
)


class Capacities(NamedTuple):
    """The sub-networks of all clients.

    Args:
        widths: The distinct widths, increasing.
        level: (client id, round) -> the index of the client's width.
        places: The indices of the widths of clients 0, 1, ..., which are repeated for further clients; or those that
            are drawn, equally often.
        start: Round -> the first kept unit of every hidden layer, modulo the number of its units.
        check: Raises InputError if there is no width for so many clients.
        groups: Clients by the index of their width; None if it changes from round to round.
    """

    widths: tuple[float, ...]
    level: Callable[[Array, Array], Array]
    places: tuple[int, ...]
    start: Callable[[Array], Array]
    check: Callable[[int], None] = lambda num_clients: None
    groups: ClientGroups | None = None

    def own_level(self, view: ClientView) -> Array:
        return self.level(jnp.asarray(view.client), view.received.round)


def kept_units(capacities: Capacities, problem: Problem, view: ClientView, level: Array) -> Variables:
    """For each trained leaf, a tuple of one Boolean mask per axis; [1] for a whole axis.

    An axis has a hidden layer's units if it is shorter in the narrowest network, whose hidden layers have one unit. It
    then has as many times each unit, as the inputs of a dense layer after convolutions, where channels come last.
    """
    narrowest, *narrower = (_view_shapes(problem, view, width) for width in (0.0, *capacities.widths))
    start = capacities.start(view.received.round)

    def mask(length: int, num_blocks: int, *kept: int) -> Array:
        if length == num_blocks:
            return jnp.ones(1, bool)
        size, counts = length // num_blocks, np.array(kept) // num_blocks
        return (jnp.arange(length) % size - start) % size < jnp.asarray(counts)[level]

    def masks(leaf: Array, *smaller: jax.ShapeDtypeStruct) -> tuple[Array, ...]:
        return tuple(map(mask, leaf.shape, *(x.shape for x in smaller)))

    return jax.tree.map(masks, view.start, narrowest, *narrower)


def count_sub_networks(
    capacities: Capacities, problem: Problem, data: ClientData, num_clients: int
) -> list[tuple[int, ModelPart]]:
    """The sub-network of each width and the number of its clients, or of draws, see `LocalUpdate.count_parts`."""
    places = np.resize(capacities.places, num_clients) if capacities.groups else np.array(capacities.places)
    counts = np.bincount(places, minlength=len(capacities.widths)).tolist()
    shapes = (tree.leaves_by_path(_shapes(problem, data, width)) for width in capacities.widths)
    parts = ({path: leaf.shape for path, leaf in own.items()} for own in shapes)
    return list(zip(counts, parts, strict=True))


def _view_shapes(problem: Problem, view: ClientView, width: float) -> Variables:
    """`_shapes` of a network of which clients train all leaves.

    Raises:
        InputError: It has other leaves.
    """
    shapes = _shapes(problem, view.data, width)
    if sorted(tree.paths(shapes)) != sorted(tree.paths(view.start)):
        raise InputError("model: sub-networks of adapters and of frozen leaves are not defined. Train all parameters.")
    return shapes


def _shapes(problem: Problem, data: ClientData, width: float) -> Variables:
    """The shapes of the leaves at this width.

    Raises:
        InputError: Sub-networks of the model are not defined.
    """
    inputs = problem.input_shape(data)
    model = problem.model
    if model.narrowed is None:
        raise InputError(
            "model: the widths of its layers are not known, which this algorithm reduces. Use mlp, cnn, lenet or a "
            "ResNet, or give your module a method `narrowed`, see models.from_flax."
        )
    layers = [Leaf(path, layer) for path, layer in model.layers(inputs).items()]
    if any(sharing.all_norms(layer) and not sharing.batch_norms(layer) for layer in layers):
        raise InputError(
            "model: its group or layer norms average over units that a sub-network lacks. Use norm='static', "
            "'none' or 'batch_stat'."
        )
    shapes = dict(jax.eval_shape(lambda x: model.narrowed(width).init(make_key(0), x), inputs))
    if set(shapes) != {"params"}:
        raise InputError(
            "model: its batch norms keep running statistics, which differ between sub-networks. Use norm='static', "
            "'none' or 'batch_stat'."
        )
    return shapes


def sub_network(problem: Problem, axes: Variables, width: Array | None = None) -> Problem:
    """The problem of a network that reads the kept entries alone, with hidden outputs divided by the width if given."""
    model = problem.model
    scaled = axes if width is None else _divide_outputs(axes, axes, width)

    def encode(variables: Variables, inputs: Array, context: Context):
        return model.encode(keep_entries(variables, scaled if context.is_training else axes), inputs, context)

    def classify(params: Params, features: Array) -> Array:
        return model.classify(keep_entries({"params": params}, axes)["params"], features)

    return problem._replace(model=model._replace(encode=encode, classify=classify))


class Slice(NamedTuple):
    """A smaller network, and the entries of the whole network that it has.

    Args:
        problem: Its problem.
        start: The first kept unit of every hidden layer, modulo the number of its units.
        axes: For each leaf a tuple of (number of blocks, kept units of each block) per axis.
    """

    problem: Problem
    start: Array
    axes: Variables

    def take(self, whole: Variables) -> Variables:
        """The entries of the smaller network."""

        def take(leaf: Array, axes: Sequence[tuple[int, int]]) -> Array:
            kept = tuple(slice(count) for axis in axes for count in axis)
            return _roll_units(_split_axes(leaf, axes), axes, -self.start)[kept].reshape([b * k for b, k in axes])

        return jax.tree.map(take, whole, self.axes)

    def put(self, whole: Variables, small: Variables) -> Variables:
        """The whole network with the entries of the smaller one."""

        def put(leaf: Array, axes: Sequence[tuple[int, int]], part: Array) -> Array:
            rolled, part = _roll_units(_split_axes(leaf, axes), axes, -self.start), part.reshape(sum(axes, ()))
            changed = jax.lax.dynamic_update_slice(rolled, part, (0,) * part.ndim)
            return _roll_units(changed, axes, self.start).reshape(leaf.shape)

        return jax.tree.map(put, whole, self.axes, small)


def _split_axes(leaf: Array, axes: Sequence[tuple[int, int]]) -> Array:
    """[blocks * units, ...] -> [blocks, units, ...]"""
    lengths = zip(leaf.shape, axes, strict=True)
    return leaf.reshape([size for length, (blocks, _) in lengths for size in (blocks, length // blocks)])


def _roll_units(leaf: Array, axes: Sequence[tuple[int, int]], shift: Array) -> Array:
    """Roll the axes of units of which some are left out. Slices of rolled arrays are faster than lists of entries."""
    for number, (_, kept) in enumerate(axes):
        if kept < leaf.shape[2 * number + 1]:
            leaf = jnp.roll(leaf, shift, 2 * number + 1)
    return leaf


def slice_network(capacities: Capacities, problem: Problem, view: ClientView, axes: Variables, scaled: bool) -> Slice:
    """The smaller network of the width with the static index `problem.group`, whose kept entries are `axes`.

    Args:
        capacities: The widths.
        problem: The problem of the whole network.
        view: The client's view.
        axes: The kept entries, see `kept_units`.
        scaled: Whether hidden outputs are divided by the width in training.
    """
    assert problem.group is not None and problem.model.narrowed
    width = capacities.widths[problem.group]
    model, start = problem.model.narrowed(width), capacities.start(view.received.round)

    def kept_by_axis(*leaves: jax.ShapeDtypeStruct) -> tuple[tuple[int, int], ...]:
        counts, num_blocks = (leaf.shape for leaf in leaves)
        return tuple((blocks, count // blocks) for count, blocks in zip(counts, num_blocks, strict=True))

    units = jax.tree.map(kept_by_axis, *(_view_shapes(problem, view, p) for p in (width, 0.0)))
    factors = _divide_outputs(jax.tree.map(lambda mask: jnp.ones(1, bool), axes), axes, width)

    def encode(variables: Variables, inputs: Array, context: Context):
        return model.encode(keep_entries(variables, factors) if context.is_training else variables, inputs, context)

    return Slice(problem._replace(model=model._replace(encode=encode) if scaled else model), start, units)


def _divide_outputs(factors: Variables, axes: Variables, width: Array | float) -> Variables:
    """Divide the factors of kernels and biases with hidden outputs by the width, which divides the outputs."""
    by_path = tree.leaves_by_path(axes)

    def divide(path: str, own: PyTree) -> PyTree:
        layer, masks = path.rpartition("/")[0], by_path[path]
        is_hidden = masks[-1:] and masks[-1].shape != (1,) and f"{layer}/kernel" in by_path
        return (*own[:-1], own[-1] / width) if is_hidden else own

    return tree.from_paths({path: divide(path, own) for path, own in tree.leaves_by_path(factors).items()})


def restrict_head(axes: Variables, view: ClientView) -> Variables:
    """Keep the head's rows of the classes of the client's own examples alone."""

    def restrict(path: str, masks: PyTree) -> PyTree:
        if not path.startswith(sharing.HEAD.removesuffix("*")):
            return masks
        num_classes = tree.leaves_by_path(view.start)[path].shape[-1]
        return (*masks[:-1], count_classes(view.data, num_classes) > 0)

    return tree.from_paths({path: restrict(path, masks) for path, masks in tree.leaves_by_path(axes).items()})


def keep_entries(variables: Variables, axes: Variables) -> Variables:
    return jax.tree.map(lambda leaf, masks: leaf * outer_mask(masks).astype(leaf.dtype), variables, axes)


def outer_mask(masks: tuple[Array, ...]) -> Array:
    """The outer product of masks, one per axis."""
    return math.prod((tree.add_axes(mask, len(masks) - axis) for axis, mask in enumerate(masks)), start=jnp.array(True))
