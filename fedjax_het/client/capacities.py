"""Clients of different capacities: each trains the sub-network of the common model that has its width."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het._internal.number_table import read_client_numbers
from fedjax_het.algorithm import GradientRule, LocalUpdate, Personalization, Problem
from fedjax_het.client.local_updates import wrap_training
from fedjax_het.client.sub_networks import (
    Capacities,
    count_sub_networks,
    keep_entries,
    kept_units,
    outer_mask,
    restrict_head,
    slice_network,
    sub_network,
)
from fedjax_het.errors import InputError
from fedjax_het.labels import check_classes, mean_over_labels
from fedjax_het.types import Array, Batch, ClientGroups, ClientView, Key, Params, Trained, Variables
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

    places = tuple(levels.tolist())
    groups = ClientGroups(len(distinct), places) if assignment == "fixed" else None
    return Capacities(distinct, level, places, _WINDOW_STARTS[window], check, groups)


def with_capacity(
    local_update: LocalUpdate,
    capacities: Capacities,
    *,
    is_scaled: bool = False,
    owns_labels: bool = False,
    is_sliced: bool = False,
) -> LocalUpdate:
    """Train the client's sub-network, and leave all other entries as received.

    The network reads the kept entries alone, so no term or gradient rule changes the others; weight decay does not
    either, because training starts from zeros there. Masks over the whole network do this for all widths at once. Where
    the clients of one width are trained by themselves, a smaller network with the kept entries is trained.

    Results: results["mask"], the kept entries of the shared parameters: for each leaf a tuple of one mask per axis,
    whose outer product is the mask of the leaf. A mask of length 1 is of a whole axis.

    Args:
        local_update: Any local update.
        capacities: The width of each client.
        is_scaled: Whether the outputs of hidden dense layers and convolutions are divided by the width in training.
        owns_labels: Whether a client sends the head's rows of the classes of its own examples alone.
        is_sliced: Whether the local update also works on a smaller network: it reads neither received nor stored
            weights, and no other widths.
    """

    def train(rule: Callable[..., Trained], problem: Problem, view: ClientView, key: Key) -> Trained:
        if is_sliced and problem.group is not None:
            axes = kept_units(capacities, problem, view, jnp.asarray(problem.group))
            small = slice_network(capacities, problem, view, axes, is_scaled)
            start = small.take(view.local)
            trained = rule(small.problem, view._replace(start=start, local=start), key)
            trained = trained._replace(variables=small.put(view.local, trained.variables))
        else:
            level = capacities.own_level(view)
            axes = kept_units(capacities, problem, view, level)
            start = keep_entries(view.local, axes)
            width = jnp.asarray(capacities.widths)[level] if is_scaled else None
            trained = rule(sub_network(problem, axes, width), view._replace(start=start, local=start), key)
        if owns_labels:
            axes = restrict_head(axes, view)
        variables = jax.tree.map(
            lambda leaf, kept, received: jnp.where(outer_mask(kept), leaf, received),
            trained.variables,
            axes,
            view.local,
        )
        _, sent = tree.partition_like(axes, view.received.shared)
        return trained._replace(variables=variables, results={**trained.results, "mask": sent["params"]})

    return wrap_training(local_update, train)._replace(
        groups=capacities.groups if is_sliced else None, count_parts=partial(count_sub_networks, capacities)
    )


def own_sub_network(capacities: Capacities) -> Personalization:
    """The client's sub-network of the current model, without further training."""

    def personalize(problem: Problem, view: ClientView, key: Key) -> Variables:
        return keep_entries(view.start, kept_units(capacities, problem, view, capacities.own_level(view)))

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
        narrow = sub_network(problem, kept_units(capacities, problem, view, level))
        if not is_distilled:
            return narrow.value_and_grad(params, state, batch, view, key)

        def loss(params: Params) -> tuple[Array, Variables]:
            check_classes(batch.labels)
            whole = problem.forward(params, state, batch, view, key)
            logits = narrow.forward(params, state, batch, view, key).outputs.logits
            teacher = jax.lax.stop_gradient(jax.nn.softmax(whole.outputs.logits))
            losses = -jnp.sum(teacher * jax.nn.log_softmax(logits), axis=-1)
            total = problem.sum_terms(whole) + mean_over_labels(losses, batch.labels, batch.mask)
            return total, whole.state

        return jax.value_and_grad(loss, has_aux=True)(params)

    return rule
