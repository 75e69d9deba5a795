"""Several models of the server: each is updated with the uploads of the clients that trained it."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round.client_step import Common, Sums
from fedjax_het.engine.round.update_plan import AGGREGATOR, UpdateSums
from fedjax_het.errors import InputError
from fedjax_het.shared_models import SharedModels
from fedjax_het.types import Array, Named, PyTree, ServerState, ServerView, Variables

StepRule = Callable[[ServerState, ServerView, Sums], tuple[ServerState, Variables]]
"""(the server with one of its models, its view, sums over clients) -> (the server after its step, replies)."""


def check_models(algorithm: Algorithm, *, is_asynchronous: bool) -> None:
    """Raise InputError if a round with several models cannot be composed of these parts."""
    if algorithm.models is None:
        return
    if is_asynchronous:
        raise InputError("asynchronous: not available for several models of the server. Train synchronously.")
    if algorithm.mixing:
        raise InputError("models: without a server there are no models to choose from. Leave mixing or models out.")
    if any(stage.receive or stage.hides_examples for stage in algorithm.uplink):
        raise InputError(
            "uplink: a stage acts on the sum over all clients or hides their data from the server, which with several "
            "models learns the choice of each client. Leave the stage out."
        )


def combine_models(models: SharedModels | None, server: ServerState, common: Common) -> tuple[ServerState, Common]:
    """(the server, what clients receive) with the models with which a round begins; see `SharedModels.combine`."""
    if models is None or models.combine is None:
        return server, common
    weights = models.combine(server.published)
    source = jnp.argmax(weights, axis=1)
    is_changed = jnp.any(weights != jnp.eye(models.number), axis=1)
    shared = tree.where(is_changed, tree.weighted_sum(server.shared, weights), server.shared)
    own = server.optimizer, server.aggregator
    optimizer, aggregator = tree.where(is_changed, tree.take(own, source), own)
    server = server._replace(shared=shared, optimizer=optimizer, aggregator=aggregator)
    return server, common._replace(received=common.received._replace(shared=shared))


def step_models(
    models: SharedModels, step: StepRule, server: ServerState, view: ServerView, sums: Sums, published: Named
) -> tuple[ServerState, Variables]:
    """Apply the server's step to each model with the clients that trained it.

    Args:
        models: The models.
        step: The step of one model.
        server: The server; its shared variables and the states of its optimizer and aggregator are [models, ...].
        view: The view of the server on the whole cohort.
        sums: The sums accumulated while clients trained, [models, ...].
        published: The values published after the round.

    Returns:
        (The server, replies to the cohort.)
    """
    target, source = view.uploads.model, jnp.arange(models.number)
    if models.regroup:
        target, source = models.regroup(published, view.cohort)
    target = jnp.asarray(target)

    def step_model(number: Array, source: Array, own_sums: UpdateSums) -> tuple[tuple[PyTree, ...], Variables]:
        old = tree.take((server.shared, server.optimizer, server.aggregator), source)
        is_member = view.is_present & (target == number)

        def keep_members(stack: PyTree) -> PyTree:
            return tree.where(is_member, stack, tree.zeros_like(stack))

        updates = view.updates
        assert isinstance(updates, StackedUpdates)
        own = view._replace(
            received=view.received._replace(shared=old[0]),
            uploads=keep_members(view.uploads),
            is_present=is_member,
            updates=replace(updates, stack=keep_members(updates.stack)),
        )
        model = server._replace(shared=old[0], optimizer=old[1], aggregator=old[2])
        after, replies = step(model, own, Sums(own_sums, ()))
        new = after.shared, after.optimizer, after.aggregator
        return tree.where(jnp.any(is_member), new, old), keep_members(replies)

    (shared, optimizer, aggregator), replies = jax.vmap(step_model)(
        jnp.arange(models.number), source, {key: part for key, part in sums.updates.items() if key == AGGREGATOR}
    )
    after = server._replace(shared=shared, optimizer=optimizer, aggregator=aggregator, published=published)
    return after, tree.sum_rows(replies)
