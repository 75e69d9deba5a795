"""DivFL: select clients whose gradients represent those of all."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_het import tree
from fedjax_het._internal.whole_data import mean_gradient
from fedjax_het.engine.round.participation._record import Participation, Told
from fedjax_het.engine.round.participation._selection import BATCH, draw_in_order, select
from fedjax_het.problem import Problem
from fedjax_het.types import Array, ClientView, Key, Params, Variables
from fedjax_het.validation import CountOrZero, validate_arguments


class Gradients(NamedTuple):
    """The state of `divfl`."""

    num_examples: Float[Array, "clients"]
    last: Params  # the last reported gradients, leaves [clients, ...]
    count: Int[Array, "clients"]  # the number of reports


def shared_gradient(problem: Problem, view: ClientView) -> Params:
    """The gradient of the received model on all the client's training examples; shared leaves only."""
    return tree.partition_like(mean_gradient(problem, view, BATCH), view.received.shared["params"])[1]


def distances_between(gradients: Params) -> Array:
    """||g_i - g_j||, [clients, clients], of leaves [clients, ...]."""
    rows = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(gradients)]
    grams = [jnp.matmul(leaf, leaf.T, precision=jax.lax.Precision.HIGHEST) for leaf in rows]
    gram = sum(grams[1:], grams[0])
    squares = jnp.diagonal(gram)
    return tree.safe_sqrt(jnp.maximum(squares[:, None] + squares - 2 * gram, 0))


def select_greedily(distances: Array, is_candidate: Bool[Array, "clients"], forced: Array, count: int) -> Array:
    """The clients [count] that greedily minimize   sum_i min_{j selected} distances_ij   over the candidates i.

    Args:
        distances: [clients, clients].
        is_candidate: The clients that are represented, and may be selected.
        forced: [count], the ids of clients that are taken first, -1 where there is none.
        count: The number of clients.
    """
    distances = jnp.where(is_candidate[:, None], distances, 0)

    def add(turn: Array, progress: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        chosen, is_chosen, nearest = progress
        costs = jnp.sum(jnp.minimum(nearest[:, None], distances), axis=0)
        best = jnp.argmin(jnp.where(is_chosen, jnp.inf, jnp.where(is_candidate, costs, jnp.finfo(costs.dtype).max)))
        pick = jnp.where(forced[turn] >= 0, forced[turn], best)
        nearer = jnp.where(is_candidate[pick], jnp.minimum(nearest, distances[:, pick]), nearest)
        return chosen.at[turn].set(pick), is_chosen.at[pick].set(True), nearer

    far = jnp.full(len(distances), jnp.max(distances))
    begin = jnp.zeros(count, forced.dtype), jnp.zeros(len(distances), bool), far
    return jax.lax.fori_loop(0, count, add, begin)[0]


@validate_arguments
def divfl(cohort_size: CountOrZero) -> Participation:
    """DivFL: select the clients whose gradients represent those of all clients best.

        greedily   min_S sum_i min_{j in S} ||g_i - g_j||,   g_i: the gradient when client i last took part

    Cost: a gradient per upload, which doubles it, one pass forward and backward over a client's training examples, and
    at the server the last gradient of every client and all their distances.

    Deviations from the code: it asks all clients for a gradient before the first round. Here clients that have never
    reported are selected first, in random order, and are represented from then on. The weights of the mean are the
    algorithm's; the paper's are the numbers of clients that a client represents, the code's the numbers of examples.

    Args:
        cohort_size: The number of clients per round.

    Raises:
        InputError: When a round is built, if there are fewer clients.

    References:
        Balakrishnan et al., Diverse Client Selection for Federated Learning via Submodular Maximization, ICLR 2022;
        code melodi-lab/divfl.
    """

    def init(num_examples: Array, shared: Variables, key: Key) -> Gradients:
        none = tree.broadcast(tree.zeros_like(shared["params"]), len(num_examples))
        return Gradients(jnp.asarray(num_examples, float), none, jnp.zeros(len(num_examples), jnp.int32))

    def update(known: Gradients, told: Told) -> Gradients:
        before = tree.take(known, told.cohort)
        now = before._replace(last=told.values, count=before.count + 1)
        return tree.put(known, told.cohort, tree.where(told.is_used, now, before))

    def choose(key: Key, num_clients: int, number: Array, known: Gradients) -> Array:
        is_known, has_examples = known.count > 0, known.num_examples > 0
        is_new = has_examples & ~is_known
        order = draw_in_order(key, jnp.zeros(num_clients), ~is_new)[:cohort_size]
        forced = jnp.where(jnp.arange(cohort_size) < jnp.sum(is_new), order, -1)
        return select_greedily(distances_between(known.last), is_known, forced, cohort_size)

    return select(divfl, cohort_size, choose, report=shared_gradient, init=init, update=update)
