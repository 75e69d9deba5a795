"""Client measures of a trained model, outside rounds."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Measure
from fedjax_het.placeholders import HIDDEN_TEST_ROWS
from fedjax_het.problem import Problem, SlotView
from fedjax_het.types import Array, Broadcast, ClientData, ClientView, PyTree, Variables

Total = TypeVar("Total", bound=PyTree)


def fold_clients(
    problem: Problem,
    variables: Variables,
    round: Array,
    data: ClientData,
    measure: Measure,
    add: Callable[[Total, PyTree], Total],
    start: Total,
) -> Total:
    """Evaluate a measure of a shared model on each client in turn, with memory independent of the number of clients.

    Args:
        problem: The learning problem.
        variables: All variables of the model, which clients see as received, before and after training.
        round: The number of rounds of training, [] int32.
        data: The data of all clients; measures cannot access test examples.
        measure: The measure that clients report. It cannot read memory, published quantities or answers.
        add: (total, report of a client) -> the new total.
        start: The initial total.

    Returns:
        The final total.
    """
    num_clients = data.train.count.shape[0]

    def step(client: Array, total: Total) -> Total:
        train, valid = tree.take((data.train, data.valid), client)
        empty = {name: SlotView(name, {}) for name in ("published", "memory", "answers", "metrics")}
        view = ClientView(
            received=Broadcast(round, variables, empty["published"]),
            memory=empty["memory"],
            answers=empty["answers"],
            data=ClientData(data.examples, train, valid, HIDDEN_TEST_ROWS),
            start=variables,
            local=variables,
            optimizer=(),
            metrics=empty["metrics"],
            num_steps=jnp.zeros((), float),
            client=client,
        )
        return add(total, measure(problem, view))

    return jax.lax.fori_loop(0, num_clients, step, start)
