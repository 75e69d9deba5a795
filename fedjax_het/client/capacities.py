"""Clients of different capacities: each trains the sub-network of the common model that has its width."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import sharing, tree
from fedjax_het._internal.keys import make_key
from fedjax_het._internal.number_table import read_client_numbers
from fedjax_het.algorithm import GradientRule, LocalUpdate, Personalization, Problem
from fedjax_het.client.local_updates import wrap_training
from fedjax_het.client.objectives._supervised import count_classes
from fedjax_het.errors import InputError
from fedjax_het.labels import mean_over_labels
from fedjax_het.types import Array, Batch, ClientView, Context, Key, Leaf, Params, PyTree, Trained, Variables
from fedjax_het.validation import PositiveFraction, Seed, refuse_without_effect, validate_arguments

Assignment = Literal["fixed", "dynamic"]
Window = Literal["first", "up", "down"]
WidthsOrFile = Sequence[PositiveFraction] | str
"""Fractions of the units of each hidden layer, or the path of a CSV file with the columns client, width."""
_WINDOW_STARTS: dict[Window, Callable[[Array], Array]] = {
    "first": jnp.zeros_like,
    "up": lambda number: number,
    "down": lambda number: -number,
}
_DRAW = 1 << 18  # does not collide with the small numbers that split a step's key


class Capacities(NamedTuple):
    """The sub-networks of all clients.

    Args:
        widths: The distinct widths, increasing.
        level: (client id, round) -> the index of the client's width.
        start: Round -> the first kept unit of every hidden layer, modulo the number of its units.
        check: Raises InputError if there is no width for so many clients.
    """

    widths: tuple[float, ...]
    level: Callable[[Array, Array], Array]
    start: Callable[[Array], Array]
    check: Callable[[int], None] = lambda num_clients: None

    def own_level(self, view: ClientView) -> Array:
        return self.level(jnp.asarray(view.client), view.received.round)


@validate_arguments
def assign_widths(
    widths: WidthsOrFile, assignment: Assignment = "fixed", window: Window = "first", width_seed: Seed = 0
) -> Capacities:
    """Give each client a width p: it has ceil(p h) of the h units of each hidden layer, and all inputs and outputs.

    Args:
        widths: Client i has widths[i mod len(widths)]; or a CSV file with the columns client, width, one line per
            client.
        assignment: "fixed", or "dynamic": every client of a round draws one of the widths.
        window: The kept units: the "first" ones, or those from unit r "up" or from unit -r "down" in round r, modulo h.
        width_seed: The draws of "dynamic" are a function of (width_seed, round, client id).

    Raises:
        InputError: A width is not in (0, 1], the file is malformed, or an option has no effect.
    """
    own, check = read_client_numbers("widths", "width", PositiveFraction, widths)
    if isinstance(widths, str) and assignment != "fixed":
        raise InputError("assignment: a file gives every client its width. Leave it out, or list the widths.")
    if assignment == "fixed":
        refuse_without_effect(assign_widths, "with assignment='fixed'", width_seed=width_seed)
    distinct = tuple(sorted(set(own)))
    levels = np.array([distinct.index(width) for width in own], np.int32)

    def level(client: Array, number: Array) -> Array:
        place = client % len(levels)
        if assignment == "dynamic":
            key = jax.random.fold_in(jax.random.fold_in(make_key(width_seed), number), client)
            place = jax.random.randint(key, (), 0, len(levels))
        return jnp.asarray(levels)[place]

    return Capacities(distinct, level, _WINDOW_STARTS[window], check)


def with_capacity(
    local_update: LocalUpdate, capacities: Capacities, *, is_scaled: bool = False, owns_labels: bool = False
) -> LocalUpdate:
    """Train the client's sub-network, and leave all other entries as received.

    The network reads the kept entries alone, so no term or gradient rule changes the others; weight decay does not
    either, because training starts from zeros there.

    Results: results["mask"], the kept entries of the shared parameters: for each leaf a tuple of one mask per axis,
    whose outer product is the mask of the leaf. A mask of length 1 is of a whole axis.

    Args:
        local_update: Any local update.
        capacities: The width of each client.
        is_scaled: Whether the outputs of hidden dense layers and convolutions are divided by the width in training.
        owns_labels: Whether a client sends the head's rows of the classes of its own examples alone.
    """

    def train(rule: Callable[..., Trained], problem: Problem, view: ClientView, key: Key) -> Trained:
        level = capacities.own_level(view)
        axes = _kept_units(capacities, problem, view, level)
        start = _keep(view.local, axes)
        width = jnp.asarray(capacities.widths)[level] if is_scaled else None
        trained = rule(_sub_network(problem, axes, width), view._replace(start=start, local=start), key)
        if owns_labels:
            axes = _restrict_head(axes, view)
        variables = jax.tree.map(
            lambda leaf, kept, received: jnp.where(_outer(kept), leaf, received), trained.variables, axes, view.local
        )
        _, sent = tree.partition_like(axes, view.received.shared)
        return trained._replace(variables=variables, results={**trained.results, "mask": sent["params"]})

    return wrap_training(local_update, train)


def own_sub_network(capacities: Capacities) -> Personalization:
    """The client's sub-network of the current model, without further training."""

    def personalize(problem: Problem, view: ClientView, key: Key) -> Variables:
        return _keep(view.start, _kept_units(capacities, problem, view, capacities.own_level(view)))

    return personalize


def ordered_dropout(capacities: Capacities, *, is_distilled: bool = True) -> GradientRule:
    """The gradient at a width that each step draws uniformly from those up to the client's own (FjORD).

        F at the drawn width,   or with is_distilled:   F at the own width + CE(softmax(z), z') with constant z

    z and z' are the logits at the own and the drawn width. Use it inside `with_capacity`.

    Args:
        capacities: The width of each client.
        is_distilled: Whether the own width is trained in every step, and teaches the drawn one.
    """

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[tuple[Array, Variables], Params]:
        own = capacities.own_level(view)
        drawn = jax.random.randint(jax.random.fold_in(key, _DRAW), (), 0, own + 1)
        return gradient_at_level(capacities, drawn, is_distilled)(problem, params, state, batch, view, key)

    return rule


def gradient_at_level(capacities: Capacities, level: Array, is_distilled: bool) -> GradientRule:
    """The gradient of `ordered_dropout` for the drawn width with this index."""

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[tuple[Array, Variables], Params]:
        narrow = _sub_network(problem, _kept_units(capacities, problem, view, level))
        if not is_distilled:
            return narrow.value_and_grad(params, state, batch, view, key)

        def loss(params: Params) -> tuple[Array, Variables]:
            whole = problem.forward(params, state, batch, view, key)
            logits = narrow.forward(params, state, batch, view, key).outputs.logits
            teacher = jax.lax.stop_gradient(jax.nn.softmax(whole.outputs.logits))
            losses = -jnp.sum(teacher * jax.nn.log_softmax(logits), axis=-1)
            total = problem.sum_terms(whole) + mean_over_labels(losses, batch.labels, batch.mask)
            return total, whole.state

        return jax.value_and_grad(loss, has_aux=True)(params)

    return rule


# ---- sub-networks ----------------------------------------------------------------------------------------------------
def _kept_units(capacities: Capacities, problem: Problem, view: ClientView, level: Array) -> Variables:
    """For each trained leaf, a tuple of one Boolean mask per axis; [1] for a whole axis.

    An axis has a hidden layer's units if it is shorter in the narrowest network, whose hidden layers have one unit. It
    then has `narrowest` times each unit, as the inputs of a dense layer after convolutions, where channels come last.
    """
    narrowest, start = _narrowest_shapes(problem, view), capacities.start(view.received.round)

    def mask(length: int, num_blocks: int) -> Array:
        if length == num_blocks:
            return jnp.ones(1, bool)
        size = length // num_blocks
        counts = [math.ceil(Fraction(width).limit_denominator(10**6) * size) for width in capacities.widths]
        return (jnp.arange(length) % size - start) % size < jnp.asarray(counts)[level]

    def masks(leaf: Array, smallest: jax.ShapeDtypeStruct) -> tuple[Array, ...]:
        return tuple(map(mask, leaf.shape, smallest.shape))

    return jax.tree.map(masks, view.start, narrowest)


def _narrowest_shapes(problem: Problem, view: ClientView) -> Variables:
    """The shapes of the trained leaves if each hidden layer had one unit.

    Raises:
        InputError: Sub-networks of the model are not defined.
    """
    inputs = problem.input_shape(view.data)
    model = problem.model
    if model.narrowest is None:
        raise InputError(
            "model: the widths of its layers are not known, which this algorithm reduces. Use mlp, cnn, lenet or a "
            "ResNet, or give your module a method `narrowest`, see models.from_flax."
        )
    layers = [Leaf(path, layer) for path, layer in model.layers(inputs).items()]
    if any(sharing.all_norms(layer) and not sharing.batch_norms(layer) for layer in layers):
        raise InputError(
            "model: its group or layer norms average over units that a sub-network lacks. Use norm='none' or "
            "'batch_stat'."
        )
    shapes = dict(jax.eval_shape(lambda x: model.narrowest(make_key(0), x), inputs))
    if set(shapes) != {"params"}:
        raise InputError(
            "model: its batch norms keep running statistics, which differ between sub-networks. Use norm='none' or "
            "'batch_stat'."
        )
    if sorted(tree.paths(shapes)) != sorted(tree.paths(view.start)):
        raise InputError("model: sub-networks of adapters and of frozen leaves are not defined. Train all parameters.")
    return shapes


def _sub_network(problem: Problem, axes: Variables, width: Array | None = None) -> Problem:
    """The problem of a network that reads the kept entries alone, with hidden outputs divided by the width if given."""
    model = problem.model
    scaled = axes if width is None else _divide_outputs(axes, width)

    def encode(variables: Variables, inputs: Array, context: Context):
        return model.encode(_keep(variables, scaled if context.is_training else axes), inputs, context)

    def classify(params: Params, features: Array) -> Array:
        return model.classify(_keep({"params": params}, axes)["params"], features)

    return problem._replace(model=model._replace(encode=encode, classify=classify))


def _divide_outputs(axes: Variables, width: Array) -> Variables:
    """Divide kernels and biases of layers with hidden outputs by the width, which divides the outputs."""
    by_path = tree.leaves_by_path(axes)

    def divide(path: str, masks: PyTree) -> PyTree:
        layer = path.rpartition("/")[0]
        is_hidden = masks[-1:] and masks[-1].shape != (1,) and f"{layer}/kernel" in by_path
        return (*masks[:-1], masks[-1] / width) if is_hidden else masks

    return tree.from_paths({path: divide(path, masks) for path, masks in by_path.items()})


def _restrict_head(axes: Variables, view: ClientView) -> Variables:
    """Keep the head's rows of the classes of the client's own examples alone."""

    def restrict(path: str, masks: PyTree) -> PyTree:
        if not path.startswith(sharing.HEAD.removesuffix("*")):
            return masks
        num_classes = tree.leaves_by_path(view.start)[path].shape[-1]
        return (*masks[:-1], count_classes(view.data, num_classes) > 0)

    return tree.from_paths({path: restrict(path, masks) for path, masks in tree.leaves_by_path(axes).items()})


def _keep(variables: Variables, axes: Variables) -> Variables:
    return jax.tree.map(lambda leaf, masks: leaf * _outer(masks).astype(leaf.dtype), variables, axes)


def _outer(masks: tuple[Array, ...]) -> Array:
    """The outer product of masks, one per axis."""
    return math.prod((tree.add_axes(mask, len(masks) - axis) for axis, mask in enumerate(masks)), start=jnp.array(True))
