"""Means that step beyond the updates of a cohort: FedDyn's, which repeats the history of all clients."""

import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.server.weightings import uniform
from fedjax_het.types import Aggregate, PyTree, ServerView, Variables


def displaced_mean() -> Aggregator:
    """The uniform mean of the cohort's updates, and the mean over ALL clients of what each has moved in all its rounds.

        h <- h + 1/N sum_S u_i,   u = 1/|S| sum_S u_i + h

    So that the server's model minimizes the mean of the clients' losses, however different these are (FedDyn). Other
    collections than the parameters take the plain mean. State: h, from zero, the size of the shared parameters.

    References:
        Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021. arXiv:2111.04263
    """

    def init(shared: Variables, num_clients: int) -> PyTree:
        return tree.zeros_like(shared["params"])

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, _ = uniform.update((), view)
        mean = view.updates.weighted_sum(weights, uniform.per_client)
        share = jnp.sum(view.is_present) / view.num_clients
        state = tree.add(state, tree.scale(share, mean["params"]))
        return Aggregate(mean | {"params": tree.add(mean["params"], state)}, {}), state

    return Aggregator(init, update, extrapolation=2.0)
