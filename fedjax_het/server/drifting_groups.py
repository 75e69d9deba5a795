"""Groups of clients whose data change: a client leaves a model that fits its new data badly, and models merge."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from fedjax_het.algorithm import Problem, Summary
from fedjax_het.errors import InputError
from fedjax_het.server.clustering import Merging, merge_nearest
from fedjax_het.types import Array, Named, ServerView, UpdateStack, Variables
from fedjax_het.validation import Count, NonNegative, validate_arguments

_NEVER, _MERGED = -2, -1  # the last use of a model that nobody has used, and of one that became part of another
GroupStart = Literal["separate", "common"]


class DriftSettings(NamedTuple):
    """See `follow_drift`."""

    max_rise: float
    max_distance: float
    isolation: int
    linkage: Merging


class Groups(NamedTuple):
    """The model of each client."""

    labels: Int[Array, "clients"]  # the model of each client
    errors: Float[Array, "clients"]  # the error of its model at its last step
    until: Int[Array, "clients"]  # the step in which it may choose again, if it is isolated
    uses: Int[Array, "models"]  # clients that trained the model, summed over steps
    last_used: Int[Array, "models"]  # the last step in which a client used it
    weights: Float[Array, "models models"]  # of the old models in each of the new ones; 0 for a merged one


def start_groups(num_models: int, num_clients: int, start: GroupStart) -> Groups:
    """The groups before the first step: a model for each client, or one for all.

    Raises:
        InputError: There are fewer models than clients, which each start with one.
    """
    if start == "separate" and num_models < num_clients:
        raise InputError(
            f"num_models: {num_clients} clients start with a model each, and there are {num_models}. Allow at least as "
            "many, or set start='common'."
        )
    labels = jnp.arange(num_clients) if start == "separate" else jnp.zeros(num_clients, int)
    none = jnp.zeros(num_models, jnp.int32)
    labels, until = labels.astype(jnp.int32), jnp.zeros(num_clients, jnp.int32)
    zeros = jnp.zeros(num_clients, float)
    return Groups(labels, zeros, until, none, none + _NEVER, jnp.eye(num_models, dtype=float))


def begin_groups(groups: Groups, errors: Array) -> Groups:
    """The groups after the first step, in which no client changes its model: errors [models, clients]."""
    own = jnp.take_along_axis(errors, groups.labels[None], axis=0)[0].astype(groups.errors.dtype)
    return _count_uses(groups._replace(errors=own), jnp.zeros((), jnp.int32))


def change_groups(
    groups: Groups,
    errors: Array,
    errors_of_groups: Callable[[Array, Array], Array],
    step: Array,
    is_present: Array,
    settings: DriftSettings,
) -> Groups:
    """The groups of a later step.

    Args:
        groups: The groups of the last step.
        errors: [models, clients], the error of each model on the new data of each client.
        errors_of_groups: (labels [clients], whether clients count [clients]) -> [models, models], the error of each
            model on the new data of the group of each model; not finite for a group without data.
        step: The number of the step.
        is_present: [clients], whether the client has been asked.
        settings: The settings.
    """
    models = jnp.arange(len(groups.uses))
    is_isolated = groups.until > step
    is_usable = (groups.uses > 0) & ~_has_client(groups.labels, is_isolated, models)
    possible = jnp.where(is_usable[:, None], errors, jnp.inf)
    best, lowest = jnp.argmin(possible, axis=0).astype(jnp.int32), jnp.min(possible, axis=0).astype(groups.errors.dtype)
    is_free = is_present & ~is_isolated
    labels = jnp.where(is_free, best, groups.labels)
    leaves = is_free & (lowest - groups.errors > settings.max_rise)

    def leave(client: Array, carry: tuple) -> tuple:
        """A client takes a model that nobody uses: a new one, or else the one that was used least recently."""
        labels, source, is_taken = carry
        everyone = jnp.ones_like(is_present)
        last_used = jnp.where(_has_client(labels, everyone, models), step, groups.last_used)
        new = jnp.argmin(last_used).astype(jnp.int32)
        is_moved = leaves[client] & (last_used[new] < step)
        moved = labels.at[client].set(new), source.at[new].set(best[client]), is_taken.at[new].set(True)
        return jax.tree.map(lambda yes, no: jnp.where(is_moved, yes, no), moved, carry)

    first = labels, models.astype(jnp.int32), jnp.zeros(len(models), bool)
    labels, source, is_taken = jax.lax.fori_loop(0, len(labels), leave, first)
    until = jnp.where(is_free & is_taken[labels], step + settings.isolation, groups.until).astype(jnp.int32)
    moved = groups._replace(
        labels=labels,
        errors=jnp.where(is_free, lowest, groups.errors),
        until=until,
        uses=jnp.where(is_taken, 0, groups.uses),
        weights=jax.nn.one_hot(source, len(models), dtype=groups.weights.dtype),
    )
    moved = _count_uses(moved, step)
    distances = _distances(errors_of_groups(labels, is_present & (until <= step)))
    return _merge(moved, distances, is_usable & ~is_taken, settings)


def _has_client(labels: Array, is_counted: Array, models: Array) -> Array:
    """[models]: whether a client that counts has the model."""
    return jnp.zeros(len(models), bool).at[labels].max(is_counted)


def _count_uses(groups: Groups, step: Array) -> Groups:
    counts = jnp.bincount(groups.labels, length=len(groups.uses)).astype(jnp.int32)
    last_used = jnp.where(counts > 0, step, groups.last_used).astype(jnp.int32)
    return groups._replace(uses=groups.uses + counts, last_used=last_used)


def _distances(errors: Array) -> Array:
    """max(e_ij - e_ii, e_ji - e_jj, 0) of errors [models, models]; infinite for groups without data."""
    rise = errors - jnp.diagonal(errors)[:, None]
    distances = jnp.maximum(jnp.maximum(rise, rise.T), 0)
    return jnp.where(jnp.isfinite(distances), distances, jnp.inf)


def _merge(groups: Groups, distances: Array, is_member: Array, settings: DriftSettings) -> Groups:
    """Merge models into the first of their cluster: means of their parameters, weighted by their uses."""
    target = merge_nearest(-distances, is_member, min_similarity=-settings.max_distance, linkage=settings.linkage)
    models = jnp.arange(len(target))
    is_part = target == models[:, None]  # [new model, old model]
    uses = jnp.sum(jnp.where(is_part, groups.uses, 0), axis=1)
    is_merged, is_alone = target != models, jnp.sum(is_part, axis=1) == 1
    share = jnp.where(is_part, groups.uses, 0) / jnp.maximum(uses, 1)[:, None]
    weights = jnp.where((is_alone & ~is_merged)[:, None], groups.weights, share.astype(groups.weights.dtype))
    last_used = jnp.max(jnp.where(is_part, groups.last_used, _NEVER), axis=1)
    return groups._replace(
        labels=target[groups.labels].astype(jnp.int32),
        uses=uses.astype(jnp.int32),
        last_used=jnp.where(is_merged, _MERGED, last_used).astype(jnp.int32),
        weights=weights,
    )


@validate_arguments
def follow_drift(
    num_models: Count,
    rounds_per_step: Count = 20,
    delta: NonNegative = 0.1,
    delta_merge: NonNegative | None = None,
    isolation: Count = 1,
    start: GroupStart = "separate",
    linkage: Merging = "complete",
) -> Summary:
    """FedDrift's groups, which change in the rounds that are multiples of `rounds_per_step`, before clients train.

        a client whose lowest error rose by more than delta takes a copy of its best model, for itself alone
        models i, j merge by agglomerative clustering up to the distance delta', max(e_ij - e_ii, e_ji - e_jj, 0)

    It summarizes a survey of the errors of all models on the clients' new data, [models]
    (`client.measures.losses_of_models`). The published value is the fields of `Groups`, of which clients receive
    "labels". Clients that are not asked in the first round of a step keep their model.

    Args:
        num_models: The maximum number of models.
        rounds_per_step: The number of rounds of each step.
        delta: delta.
        delta_merge: delta'. None: delta.
        isolation: The number of steps for which a client that left keeps its own model.
        start: "separate": each client starts with a model of its own; "common": all start with the first one.
        linkage: The distance of clusters: "complete" or "average".

    Raises:
        InputError: There are fewer models than clients, which each start with one.
    """
    settings = DriftSettings(delta, delta if delta_merge is None else delta_merge, isolation, linkage)

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> Named:
        return start_groups(num_models, num_clients, start)._asdict()

    def update(before: Named, answers: UpdateStack, view: ServerView) -> Named:
        old, step = Groups(**before), view.received.round // rounds_per_step
        num_clients = len(old.labels)
        cohort_errors = answers.tensors()
        errors = jnp.zeros((num_clients, num_models), cohort_errors.dtype).at[view.cohort].set(cohort_errors).T
        is_present = jnp.zeros(num_clients, bool).at[view.cohort].set(view.is_present)
        counts = jnp.zeros(num_clients, float).at[view.cohort].set(view.uploads.num_examples)

        def errors_of_groups(labels: Array, is_counted: Array) -> Array:
            member = jnp.where(is_counted, counts, 0)[:, None] * jax.nn.one_hot(labels, num_models)
            sums = jnp.matmul(errors, member, precision=jax.lax.Precision.HIGHEST)
            return sums / jnp.sum(member, axis=0)

        def change() -> Groups:
            return change_groups(old, errors, errors_of_groups, step, is_present, settings)

        def keep() -> Groups:
            return old._replace(weights=jnp.eye(num_models, dtype=old.weights.dtype))

        def begin() -> Groups:
            return begin_groups(old, errors)

        is_first = view.received.round % rounds_per_step == 0
        return jax.lax.switch(is_first * jnp.where(step > 0, 2, 1), (keep, begin, change))._asdict()

    return Summary(init, update, send=lambda groups: {"labels": groups["labels"]})
