"""Groups of clients that the server forms from their updates, each with a model of its own."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het import geometry
from fedjax_het.algorithm import Problem, Summary
from fedjax_het.server.clustering import Linkage, bipartition
from fedjax_het.types import Array, Named, ServerView, UpdateStack, Variables
from fedjax_het.validation import Count, CountOrZero, Positive, validate_arguments


@validate_arguments
def divide_groups(
    max_groups: Count,
    max_mean_norm: Positive,
    min_max_norm: Positive,
    first_round: CountOrZero = 20,
    min_size: Count = 2,
    linkage: Linkage = "single",
) -> Summary:
    """Divide a group of clients in two when its mean update is short although single updates are long.

        |mean_i u_i| < eps_1,   max_i |u_i| > eps_2,   more than `min_size` members,   round > `first_round`

    The parts are those of `clustering.bipartition` on the cosines of the updates. Clients receive {"labels" [clients],
    the group of each client}. The server also has "number" [], of groups; "source" [max_groups], the group of the last
    round that each group continues; and "norms" [2], the two norms above for the group with more than `min_size`
    members in which their ratio is the smallest, before it is divided.

    Args:
        max_groups: The maximum number of groups; a group is not divided if no number is left.
        max_mean_norm: eps_1.
        min_max_norm: eps_2.
        first_round: The number of rounds in which no group is divided.
        min_size: Groups of at most this size are not divided.
        linkage: "single" or "complete".
    """

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> Named:
        number = jnp.ones((), jnp.int32)
        labels, norms = jnp.zeros(num_clients, jnp.int32), jnp.zeros(2, float)
        return {"labels": labels, "number": number, "source": _numbers(max_groups), "norms": norms}

    def update(old: Named, reports: UpdateStack, view: ServerView) -> Named:
        gram = view.updates.gram()
        lengths, cosines = geometry.lengths(gram), geometry.cosines(gram)
        labels = old["labels"][view.cohort]
        groups = (labels == jnp.arange(max_groups)[:, None]) & view.is_present  # [groups, cohort]
        sizes = jnp.sum(groups, axis=1)
        of_mean = jnp.sqrt(jnp.maximum(jnp.einsum("gi,ij,gj->g", groups, gram, groups), 0)) / jnp.maximum(sizes, 1)
        longest = jnp.max(jnp.where(groups, lengths, 0), axis=1)
        is_late = view.received.round >= first_round
        is_divided = (of_mean < max_mean_norm) & (longest > min_max_norm) & (sizes > min_size) & is_late
        opposed = jnp.argmin(jnp.where((sizes > min_size) & (longest > 0), of_mean / longest, jnp.inf))
        added = old["number"] + jnp.cumsum(is_divided) - 1  # the number of the second part
        is_divided &= added < max_groups
        parts = jax.lax.map(lambda members: bipartition(cosines, members, linkage), groups)
        moves = jnp.any(parts & is_divided[:, None], axis=0)
        labels = jnp.where(moves, added[labels], labels).astype(jnp.int32)
        source = _numbers(max_groups)
        source = source.at[jnp.where(is_divided, added, max_groups)].set(source, mode="drop")
        return {
            "labels": old["labels"].at[view.cohort].set(labels),
            "number": old["number"] + jnp.sum(is_divided, dtype=jnp.int32),
            "source": source,
            "norms": jnp.stack([of_mean[opposed], longest[opposed]]).astype(float),
        }

    return Summary(init, update, reads="gram", send=lambda groups: {"labels": groups["labels"]})


def _numbers(num: int) -> Array:
    return jnp.arange(num, dtype=jnp.int32)


def continue_groups(name: str) -> Callable[[Named, Array], tuple[Array, Array]]:
    """The groups `published[name]` of `divide_groups` for `SharedModels.regroup`: updates go to the new groups."""
    return lambda published, cohort: (published[name]["labels"][cohort], published[name]["source"])


def measure_groups(name: str) -> Callable[[Named], Named]:
    """{"number" of groups `published[name]` of `divide_groups`; "mean_norm" and "max_norm", see there}, scalars, for
    `SharedModels.measure`."""

    def measure(published: Named) -> Named:
        groups = published[name]
        return {"number": groups["number"], "mean_norm": groups["norms"][0], "max_norm": groups["norms"][1]}

    return measure


def shares_of_groups(name: str, num_groups: int) -> Callable[[Named], Array]:
    """The share of the clients in each of the groups `published[name]`, for `SharedModels.weigh`."""

    def weigh(published: Named) -> Array:
        labels = published[name]["labels"]
        return jnp.bincount(labels, length=num_groups) / len(labels)

    return weigh
