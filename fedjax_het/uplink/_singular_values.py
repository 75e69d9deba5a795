"""Compression of matrices by their largest singular values (FedKD)."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.decompositions import svd
from fedjax_het.algorithm import ReceiveView, Sent, Stage, StageView
from fedjax_het.types import Array, PyTree, Variables
from fedjax_het.validation import Count, Fraction, validate_arguments


@validate_arguments
def singular_values(
    energy: Fraction = 0.95,
    last_energy: Fraction | None = None,
    rounds: Count = 100,
    of: Literal["change", "model"] = "change",
) -> Stage:
    """Send each matrix as the product of its largest singular vectors, in both directions (FedKD).

        W = U S V^T is sent as U_k S_k V_k^T,   k: the smallest with sum_{i <= k} s_i^2 > e_t sum_i s_i^2, else all
        e_t = energy + (last_energy - energy) min(t / rounds, 1)

    A kernel of more than two axes is a matrix whose last axis is the columns. Vectors, tables of embeddings and
    collections other than the parameters are sent whole. The server compresses the combined update in the same way. k
    depends on the data, and a message is never larger than the matrix, whose size is counted: an upper bound.

    Args:
        energy: The paper's T_start (.95), the share of the squared singular values to exceed.
        last_energy: The paper's T_end (.98). None: as `energy`.
        rounds: The round from which `last_energy` applies.
        of: The matrices: the "change" of the weights (default), or the weights of the "model" itself.

    References:
        Wu et al., Communication-Efficient Federated Learning via Knowledge Distillation, Nature Communications 2022.
        arXiv:2108.13323; code wuch15/FedKD.
    """

    def compress(update: Variables, shared: Variables, round: Array) -> Variables:
        now = energy
        if last_energy is not None:
            now = energy + (last_energy - energy) * jnp.minimum(round / rounds, 1)
        known = {name: shared[name] for name in update} if of == "model" else tree.zeros_like(update)
        whole = tree.leaves_by_path(tree.add(known, update))
        sent = tree.from_paths({path: _send_leaf(path, leaf, now) for path, leaf in whole.items()})
        return tree.subtract(sent, known)

    def send(update: Variables, view: StageView) -> Sent:
        return Sent(compress(update, view.received.shared, view.received.round))

    def receive(update: Variables, view: ReceiveView) -> tuple[Variables, PyTree]:
        received = view.server.received
        return compress(update, received.shared, received.round), view.state

    return Stage(send=send, receive=receive)


def _send_leaf(path: str, leaf: Array, energy: float | Array) -> Array:
    if leaf.ndim < 2 or path.endswith("/embedding"):
        return leaf
    return truncate(leaf.reshape(-1, leaf.shape[-1]), energy).reshape(leaf.shape)


def truncate(matrix: Array, energy: float | Array) -> Array:
    """The matrix [m, n] with its largest singular values alone, see `singular_values`."""
    left, values, right = svd(matrix)
    kept = jnp.where(jnp.arange(len(values)) < count_kept(values, energy), values, 0)
    return jnp.matmul(left * kept, right, precision=jax.lax.Precision.HIGHEST).astype(matrix.dtype)


def count_kept(values: Array, energy: float | Array) -> Array:
    """[]: the number of singular values that are sent, of values [k] in decreasing order."""
    squares = jnp.cumsum(jnp.square(values))
    return jnp.minimum(jnp.sum(squares <= energy * squares[-1]) + 1, len(values))
