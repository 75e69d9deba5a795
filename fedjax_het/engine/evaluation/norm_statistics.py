"""Statistics of static batch norms, from a pass over training examples before a model is evaluated.

    mean = 1/B sum_b m_b,   var = 1/B sum_b v_b

m_b and v_b are the mean and the unbiased variance of batch b in training mode, in which earlier layers normalize by the
batch too. All batches have the same weight. The server's model takes the batches of all clients, each of one client
alone; a client's own model takes those of the client.

Diao, Ding and Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients,
ICLR 2021. arXiv:2010.01264
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.models import StaticBatchNorm
from fedjax_het.problem import Problem
from fedjax_het.types import Array, Batch, ClientData, Context, Variables


class Moments(NamedTuple):
    """Moments of batches, summed; leaves batch_stats/.../mean and batch_stats/.../var."""

    sums: Variables  # {} without static norms
    num_batches: Array


def no_moments(problem: Problem, data: ClientData) -> Moments:
    """The moments of zero batches."""
    inputs = problem.input_shape(data)
    layers = [path for path, layer in problem.model.layers(inputs).items() if issubclass(layer, StaticBatchNorm)]
    variables = jax.eval_shape(lambda x: problem.model.init(make_key(0), x), inputs) if layers else {}
    shapes = {path: leaf.shape for path, leaf in tree.leaves_by_path(variables).items()}
    zeros = {path: jnp.zeros(shapes[f"params/{path}/scale"], float) for path in layers}
    sums = {f"batch_stats/{path}/{name}": leaf for path, leaf in zeros.items() for name in ("mean", "var")}
    return Moments(tree.from_paths(sums), jnp.zeros((), jnp.int32))


def add_client(
    problem: Problem, variables: Variables, round: Array, data: ClientData, size: int, total: Moments
) -> Moments:
    """Add the moments of the batches of one client's training examples, of at most `size` examples, to the total."""
    zeros = jax.tree.map(jnp.zeros_like, total.sums)

    def add(total: Moments, batch: Batch, number: Array) -> Moments:
        context = Context(batch.mask, round, make_key(0), True)
        _, state = problem.model.encode(tree.merge(variables, zeros), batch.inputs, context)
        return Moments(tree.add(total.sums, tree.partition_like(state, zeros)[1]), total.num_batches + 1)

    return problem.fold(data, data.train, size, add, total, is_even=True)


def add_clients(
    problem: Problem, variables: Variables, round: Array, data: ClientData, size: int, total: Moments
) -> Moments:
    """`add_client` for all clients of the data in turn."""

    def add(client: Array, total: Moments) -> Moments:
        return add_client(problem, variables, round, data._replace(train=tree.take(rows, client)), size, total)

    rows = jax.tree.map(jnp.asarray, data.train)
    return jax.lax.fori_loop(0, len(rows.count), add, total)


def mean_moments(total: Moments) -> Variables:
    """The statistics of the norms; without a batch, means of 0 and variances of 1."""

    def mean(path: str, total_of_leaf: Array) -> Array:
        empty = 1.0 if path.endswith("/var") else 0.0
        return jnp.where(total.num_batches > 0, total_of_leaf / jnp.maximum(total.num_batches, 1), empty)

    return tree.from_paths({path: mean(path, leaf) for path, leaf in tree.leaves_by_path(total.sums).items()})


def add_own_statistics(problem: Problem, variables: Variables, round: Array, data: ClientData, size: int) -> Variables:
    """Add the statistics of the training examples of one client, `data.train`; nothing without static norms.

    Variables that have statistics keep them.
    """
    total = no_moments(problem, data)
    if not total.sums or tree.partition_like(variables, total.sums)[1]:
        return variables
    return tree.merge(variables, mean_moments(add_client(problem, variables, round, data, size, total)))


def add_common_statistics(
    problem: Problem, variables: Variables, round: Array, data: ClientData, size: int
) -> Variables:
    """Add the statistics of the training examples of all clients; nothing without static norms.

    Args:
        problem: The learning problem.
        variables: All variables of the model.
        round: The number of completed rounds.
        data: The data of all clients.
        size: The maximum number of examples per batch.
    """
    if not jax.eval_shape(lambda: no_moments(problem, data)).sums:
        return variables

    @jax.jit
    def measure(variables: Variables, data: ClientData) -> Variables:
        return mean_moments(add_clients(problem, variables, round, data, size, no_moments(problem, data)))

    return tree.merge(variables, measure(variables, data))
