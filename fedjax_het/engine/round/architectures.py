"""Clients with networks of different architecture: each group of them is mapped by itself where possible."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.round.client_step import CohortMember, Common
from fedjax_het.errors import InputError
from fedjax_het.problem import Problem
from fedjax_het.types import PyTree, Variables

ClientFunction = Callable[[Problem, Common, CohortMember], tuple[PyTree, PyTree]]


def map_clients(
    function: ClientFunction,
    problem: Problem,
    layout: Layout,
    common: Common,
    members: CohortMember,
    is_everyone: bool,
) -> tuple[PyTree, PyTree]:
    """Map a function over the clients of a cohort, with the problem of each client's group.

    Args:
        function: (problem, common, one client) -> (tree to stack, tree to sum).
        problem: The problem, whose model may have groups of clients.
        layout: The layout of the client axis.
        common: The argument that all clients share.
        members: The clients, leaves [slots, ...], their number a `Layout.round_up`.
        is_everyone: Whether the cohort is all clients in order, so that each group can be mapped by itself.

    Returns:
        (Leaves [slots, ...], sums.)
    """
    groups = problem.model.groups
    if groups is None or not is_everyone or layout.mesh:
        return layout.map_and_sum(lambda common, member: function(problem, common, member), common, members)
    numbers = np.asarray(groups.assign(np.arange(len(members.client))))  # padding is in groups, too
    stacks, sums, positions = [], [], np.zeros(len(numbers), int)
    num_rows = 0
    for group in np.unique(numbers).tolist():
        model = problem.model._replace(groups=groups._replace(assign=lambda client, group=group: group))
        own = np.flatnonzero(numbers == group)
        slots = np.pad(own, (0, layout.round_up(len(own)) - len(own)))
        is_real = jnp.arange(len(slots)) < len(own)
        block = tree.take(members, slots)
        rows = tuple(part._replace(count=jnp.where(is_real, part.count, 0)) for part in block.rows)
        block = block._replace(rows=rows, is_here=block.is_here & is_real)
        bound = problem._replace(model=model)
        stacked, summed = layout.map_and_sum(
            lambda common, member, bound=bound: function(bound, common, member), common, block
        )
        stacks.append(stacked)
        sums.append(summed)
        positions[own] = num_rows + np.arange(len(own))
        num_rows += len(slots)
    whole = jax.tree.map(lambda *parts: jnp.concatenate(parts), *stacks)
    total = sums[0]
    for summed in sums[1:]:
        total = tree.add(total, summed)
    return tree.take(whole, positions), total


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
