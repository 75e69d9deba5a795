"""Graphs of clients that exchange their models without a server.

Names in equations: W [clients, clients], W_ij is the weight of client j's model in that of client i; d_i, the number of
clients that i hears besides itself.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key, PyTree
from fedjax_het.validation import Fraction, validate_arguments

Weights = Literal["metropolis", "uniform", "out_degree"]
_DENSE = 16  # neighbours up to which the rows of each are added; above, a product with W if the graph is dense


class Links(NamedTuple):
    """The matrix W of a round, by rows.

    Args:
        heard: The clients that each one hears; its own id fills the places of clients that hear fewer.
        weights: The weights of their models; 0 for clients that are not heard.
        own: The weight of the own model.
        distances: Client i hears i - distance for these, in the order of `heard`; None: no such graph.
    """

    heard: Int[Array, "clients degree"]
    weights: Float[Array, "clients degree"]
    own: Float[Array, " clients"]
    distances: tuple[int, ...] | None = None

    def restrict(self, ids: Int[Array, " cohort"]) -> "Links":
        """Return the matrix for a cohort, whose other clients have weight 0 in it."""
        rows = jnp.zeros(len(self.own), int).at[ids].set(jnp.arange(len(ids)))  # 0 outside the cohort
        return Links(rows[self.heard[ids]], self.weights[ids], self.own[ids])

    def mix(self, models: PyTree) -> PyTree:
        """Return W X of models X, leaves [clients, ...]."""
        num_clients, degree = self.heard.shape
        if degree > max(_DENSE, num_clients // 8):
            return tree.weighted_sum(models, self.matrix())

        def combine(leaf: Array) -> Array:
            def add(i: int | Array, total: Array) -> Array:
                # A shift is exchanged with the next devices alone, where XLA would gather all rows to choose from.
                heard = leaf[self.heard[:, i]] if self.distances is None else jnp.roll(leaf, self.distances[i], 0)
                return total + tree.add_axes(self.weights[:, i], leaf.ndim) * heard

            total = tree.add_axes(self.own, leaf.ndim) * leaf
            if self.distances is None and degree > _DENSE:
                return jax.lax.fori_loop(0, degree, add, total).astype(leaf.dtype)
            for i in range(degree):
                total = add(i, total)
            return total.astype(leaf.dtype)

        return jax.tree.map(combine, models)

    def matrix(self) -> Float[Array, "clients clients"]:
        """Return W."""
        ids = jnp.arange(len(self.heard))
        matrix = jnp.zeros((len(ids), len(ids)), self.weights.dtype).at[ids[:, None], self.heard].add(self.weights)
        return matrix.at[ids, ids].add(self.own)


class Topology(NamedTuple):
    """Who hears whom.

    Args:
        hear: (number of clients, round, key of the round) -> [clients, degree], the clients that each one hears besides
            itself, without repetition; its own id fills the places of clients that hear fewer.
        weights: "metropolis" (default), 1 / (1 + max(d_i, d_j)), doubly stochastic on every undirected graph;
            "uniform", 1 / (1 + d_i), the mean of all models that a client has, doubly stochastic on regular graphs
            alone; "out_degree", 1 / (1 + h_j), where h_j clients hear j, which keeps sums on every graph
            (`mixing.push_sum`); or a function of the round that returns W. The rest of a row, or with "out_degree" of a
            column, is the weight of the own model.
        distances: Number of clients -> the distances of the columns of `hear`, if client i hears i - distance in all
            rounds. Models are then exchanged by shifts.
    """

    hear: Callable[[int, Int[Array, ""], Key], Int[Array, "clients degree"]]
    weights: Weights | Callable[[Int[Array, ""]], Float[Array, "clients clients"]] = "metropolis"
    distances: Callable[[int], Sequence[int]] | None = None

    def connect(
        self, num_clients: int, round: Int[Array, ""] | int, key: Key, is_present: Bool[Array, " clients"] | None = None
    ) -> Links:
        """Return W of a round. Absent clients neither hear nor are heard; None: all are present."""
        number, ids = jnp.asarray(round), jnp.arange(num_clients)
        is_present = jnp.ones(num_clients, bool) if is_present is None else is_present
        heard = self.hear(num_clients, number, key)
        is_heard = (heard != ids[:, None]) & is_present[:, None] & is_present[heard]
        weights = jnp.where(is_heard, self._weigh(heard, is_heard, number), 0)
        own = 1 - jnp.sum(weights, axis=1)
        if self.weights == "out_degree":
            own = 1 / (1 + _count_hearers(heard, is_heard))
        return Links(heard, weights, own, tuple(self.distances(num_clients)) if self.distances else None)

    def _weigh(self, heard: Array, is_heard: Array, number: Array) -> Array:
        if callable(self.weights):
            return self.weights(number)[jnp.arange(len(heard))[:, None], heard]
        if self.weights == "out_degree":
            return 1 / (1 + _count_hearers(heard, is_heard)[heard])
        degree = jnp.sum(is_heard, axis=1)
        return 1 / (
            1 + (jnp.maximum(degree[:, None], degree[heard]) if self.weights == "metropolis" else degree[:, None])
        )

    def matrix(self, num_clients: int, round: int = 0, key: Key | None = None) -> Float[Array, "clients clients"]:
        """Return W of a round in which all clients are present."""
        return self.connect(num_clients, round, make_key(0) if key is None else key).matrix()


def _count_hearers(heard: Array, is_heard: Array) -> Array:
    """h_j, the number of clients that hear each one, [clients]."""
    return jnp.zeros(len(heard), int).at[heard].add(is_heard)


def spectral_gap(matrix: Float[Array, "clients clients"]) -> float:
    """Return 1 - ||W - 11^T / n||_2: a mixing reduces the distance to the mean model by at least this share."""
    num_clients = len(matrix)
    return float(1 - np.linalg.norm(np.asarray(matrix, np.float64) - 1 / num_clients, 2))


# ---- graphs ----------------------------------------------------------------------------------------------------------
def ring() -> Topology:
    """Client i hears i - 1 and i + 1; weights 1/3."""
    return _circulant(lambda n: sorted({1 % n, -1 % n} - {0}))


def complete() -> Topology:
    """All clients hear one another; W = 11^T / n. Mixing is then FedAvg with equal weights and full participation."""
    return _circulant(lambda n: list(range(1, n)))


def exponential() -> Topology:
    """Client i hears i - 1, i - 2, i - 4, ..., with equal weights: directed, of degree ceil(log2 n)."""
    return _circulant(_powers)._replace(weights="uniform")


def one_peer_exponential() -> Topology:
    """In round t, client i hears i - 2^(t mod ceil(log2 n)) alone, with weight 1/2.

    If n is a power of two, the product of log2 n successive matrices is 11^T / n.
    """

    def hear(num_clients: int, round: Array, key: Key) -> Array:
        distances = jnp.array(_powers(num_clients) or [0])
        return (jnp.arange(num_clients) - distances[round % len(distances)])[:, None] % num_clients

    return Topology(hear, "uniform")


def torus() -> Topology:
    """Four neighbours on a grid with wrapped edges, whose sides are the two closest factors of n."""
    return _grid(is_wrapped=True)


def grid() -> Topology:
    """Up to four neighbours on a grid, whose sides are the two closest factors of n."""
    return _grid(is_wrapped=False)


def star() -> Topology:
    """Client 0 and every other client hear each other."""

    def neighbours(num_clients: int) -> list[list[int]]:
        return [list(range(1, num_clients)), *([0] for _ in range(1, num_clients))]

    return _static(neighbours)


def random_matching() -> Topology:
    """Random pairs in each round, with weights 1/2; of an odd number of clients one is alone."""

    return Topology(lambda num_clients, round, key: _pair(jax.random.permutation(key, num_clients)))


@validate_arguments
def erdos_renyi(probability: Fraction = 0.5) -> Topology:
    """Every pair of clients is connected with the same probability, drawn anew in each round.

    Args:
        probability: The probability p of an edge.
    """

    def hear(num_clients: int, round: Array, key: Key) -> Array:
        return _connect(jax.random.uniform(key, (num_clients, num_clients)) < probability)

    return Topology(hear)


TOPOLOGIES: dict[str, Callable[[], Topology]] = {
    graph.__name__: graph
    for graph in (ring, torus, grid, star, complete, exponential, one_peer_exponential, random_matching, erdos_renyi)
}
TopologyName = Literal[
    "ring", "torus", "grid", "star", "complete", "exponential", "one_peer_exponential", "random_matching", "erdos_renyi"
]
TopologyOrName = Topology | TopologyName


def resolve_topology(topology: TopologyOrName) -> Topology:
    """Return the topology of a name."""
    return TOPOLOGIES[topology]() if isinstance(topology, str) else topology


def from_matrix(adjacency: Bool[np.ndarray, "clients clients"], weights: Weights = "metropolis") -> Topology:
    """A given graph.

    Args:
        adjacency: Whether client i (row) hears client j (column); the diagonal does not matter.
        weights: See `Topology`; "metropolis" needs a symmetric matrix.

    Raises:
        InputError: The matrix is not square, or not symmetric although the weights need it.
    """
    edges = np.asarray(adjacency, bool)
    if edges.ndim != 2 or edges.shape[0] != edges.shape[1]:
        raise InputError(f"adjacency: shape {edges.shape}, expected [clients, clients].")
    if weights == "metropolis" and not np.array_equal(edges, edges.T):
        raise InputError("adjacency: not symmetric. Use weights='uniform' for a directed graph.")

    def neighbours(num_clients: int) -> list[list[int]]:
        if num_clients != len(edges):
            raise InputError(f"topology: the matrix is for {len(edges)} clients, and there are {num_clients}.")
        return [[int(j) for j in np.flatnonzero(row) if j != i] for i, row in enumerate(edges)]

    return _static(neighbours)._replace(weights=weights)


def _pair(order: Array) -> Array:
    """The clients heard if consecutive clients of a permutation hear each other, [clients, 1]."""
    pairs = order[: len(order) // 2 * 2].reshape(-1, 2)
    return jnp.arange(len(order)).at[pairs].set(pairs[:, ::-1])[:, None]


def _connect(is_edge: Array) -> Array:
    """The clients heard if the pairs above the diagonal are edges, [clients, clients]."""
    upper, ids = jnp.triu(is_edge, 1), jnp.arange(len(is_edge))
    return jnp.where(upper | upper.T, ids[None], ids[:, None])


def _powers(num_clients: int) -> list[int]:
    return [2**power for power in range(math.ceil(math.log2(num_clients)))] if num_clients > 1 else []


def _circulant(distances: Callable[[int], list[int]]) -> Topology:
    """Client i hears i - distance for every distance."""

    def hear(num_clients: int, round: Array, key: Key) -> Array:
        ids = np.arange(num_clients)[:, None]
        return jnp.asarray((ids - np.array(distances(num_clients), int)) % num_clients, jnp.int32)

    return Topology(hear, distances=distances)


def _grid(*, is_wrapped: bool) -> Topology:
    def neighbours(num_clients: int) -> list[list[int]]:
        rows = next(side for side in range(math.isqrt(num_clients), 0, -1) if num_clients % side == 0)
        columns = num_clients // rows

        def around(i: int) -> list[int]:
            row, column = divmod(i, columns)
            places = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
            if is_wrapped:
                places = [(r % rows, c % columns) for r, c in places]
            inside = {r * columns + c for r, c in places if 0 <= r < rows and 0 <= c < columns}
            return sorted(inside - {i})

        return [around(i) for i in range(num_clients)]

    return _static(neighbours)


def _static(neighbours: Callable[[int], list[list[int]]]) -> Topology:
    """The graph in which every client hears the same others in all rounds."""

    def hear(num_clients: int, round: Array, key: Key) -> Array:
        heard = neighbours(num_clients)
        degree = max(map(len, heard))
        return jnp.array([[*others, *[i] * (degree - len(others))] for i, others in enumerate(heard)], jnp.int32)

    return Topology(hear)
