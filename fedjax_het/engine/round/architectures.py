"""Groups of clients with networks of different shape, each of which is mapped by itself where possible."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.engine.round.client_step import CohortMember, Common
from fedjax_het.engine.round.records import RoundSpec
from fedjax_het.errors import InputError
from fedjax_het.problem import Problem
from fedjax_het.types import PyTree, Variables

ClientFunction = Callable[[Problem, Common, CohortMember], tuple[PyTree, PyTree]]


def map_clients(
    spec: RoundSpec, function: ClientFunction, common: Common, members: CohortMember
) -> tuple[PyTree, PyTree]:
    """Map a function over the clients of a cohort, each group by itself where the layout allows it.

    Within a group `problem.group` is its number, a constant. If the cohort is all clients, they are ordered by group
    before they are mapped; if clients train one by one, the running program chooses one of the functions.

    Args:
        spec: The constants of all rounds.
        function: (problem, common, one client) -> (tree to stack, tree to sum).
        common: The argument that all clients share.
        members: The clients, leaves [slots, ...], their number a `Layout.round_up`.

    Returns:
        (Leaves [slots, ...], sums.)
    """

    def in_group(number: int | None) -> Callable[[Common, CohortMember], tuple[PyTree, PyTree]]:
        return partial(function, spec.problem._replace(group=number))

    groups, layout = spec.groups, spec.layout
    if groups is None:
        return layout.map_and_sum(in_group(None), common, members)
    if layout.chunk == 1:
        choices = [in_group(number) for number in range(groups.size)]

        def choose(common: Common, member: CohortMember) -> tuple[PyTree, PyTree]:
            return jax.lax.switch(groups.assign(jnp.asarray(member.client)), choices, common, member)

        return layout.map_and_sum(choose, common, members)
    if not spec.participation.is_everyone or layout.mesh:
        return layout.map_and_sum(in_group(None), common, members)
    numbers = np.asarray(groups.assign(np.arange(len(members.client))))  # padding is in groups, too
    stacks, sums, positions = [], [], np.zeros(len(numbers), int)
    num_rows = 0
    for group in np.unique(numbers).tolist():
        own = np.flatnonzero(numbers == group)
        slots = np.pad(own, (0, layout.round_up(len(own)) - len(own)))
        is_real = jnp.arange(len(slots)) < len(own)
        block = tree.take(members, slots)
        rows = tuple(part._replace(count=jnp.where(is_real, part.count, 0)) for part in block.rows)
        block = block._replace(rows=rows, is_here=block.is_here & is_real)
        stacked, summed = layout.map_and_sum(in_group(group), common, block)
        stacks.append(stacked)
        sums.append(summed)
        positions[own] = num_rows + np.arange(len(own))
        num_rows += len(slots)
    whole = jax.tree.map(lambda *parts: jnp.concatenate(parts), *stacks)
    return tree.take(whole, positions), jax.tree.map(lambda *parts: sum(parts[1:], start=parts[0]), *sums)


def check_groups(problem: Problem, shared: Variables, num_clients: int) -> None:
    """Check that every client has a network, and that no leaf of a single group's network is shared.

    Raises:
        InputError: The assignment is for another number of clients, or such a leaf is shared.
    """
    groups = problem.model.groups
    if groups is None:
        return
    if groups.num_clients not in (None, num_clients):
        raise InputError(
            f"assignment: it has the networks of {groups.num_clients} clients, and there are {num_clients}. Give one "
            "number per client."
        )
    if any("/group_" in path for path in tree.paths(shared)):
        raise InputError(
            "networks: those of different architecture cannot be averaged, and the algorithm shares them. Choose one "
            "that exchanges predictions or prototypes, such as fedmd or fedproto, or the head alone, such as lgfedavg."
        )
