"""Start rules of clients with low-rank adapters: fresh ones, or those of the server at the client's own rank."""

import math
import zlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Problem, StartRule
from fedjax_het.errors import InputError
from fedjax_het.types import Array, ClientView, Key, Variables

_A, _B, _SCALE = "lora_a", "lora_b", "adapter/scale"


def fresh_adapters(ranks: Sequence[int], alpha: float) -> StartRule:
    """Start from a random A of the client's rank, a function of (seed, round, client id), and B = 0 (FLoRA).

    A [in, r] is uniform on (-1/sqrt(in), 1/sqrt(in)), as in `models.lora`.

    Args:
        ranks: Client i has the rank ranks[i mod len(ranks)].
        alpha: Scale alpha; the client's s_i is alpha / r_i.
    """

    def draw(path: str, leaf: Array, key: Key) -> Array:
        if path.endswith(_B):
            return jnp.zeros_like(leaf)
        bound = 1 / math.sqrt(math.prod(leaf.shape[:-1]))
        own_key = jax.random.fold_in(key, zlib.crc32(path.encode()))
        return jax.random.uniform(own_key, leaf.shape, leaf.dtype, -bound, bound)

    def start(problem: Problem, view: ClientView, key: Key) -> Variables:
        return _at_own_rank(view, ranks, alpha, lambda path, leaf: draw(path, leaf, key), is_rescaled=False)

    return start


def truncated_adapters(ranks: Sequence[int], alpha: float) -> StartRule:
    """Start from the first r_i columns of A and rows of B, with the product that they have at the server (FlexLoRA).

        s_i = alpha / r_i,   A_i = A[:, :r_i],   B_i = s / s_i B[:r_i]

    Args:
        ranks: As in `fresh_adapters`.
        alpha: As in `fresh_adapters`.
    """

    def start(problem: Problem, view: ClientView, key: Key) -> Variables:
        return _at_own_rank(view, ranks, alpha, lambda path, leaf: leaf, is_rescaled=True)

    return start


def client_ranks(ranks: Sequence[int], clients: Array) -> Array:
    """The ranks of these clients: client i has ranks[i mod len(ranks)]."""
    return jnp.asarray(ranks, jnp.int32)[jnp.asarray(clients) % len(ranks)]


def _at_own_rank(
    view: ClientView,
    ranks: Sequence[int],
    alpha: float,
    choose: Callable[[str, Array], Array],
    *,
    is_rescaled: bool,
) -> Variables:
    """The client's variables with other adapters, whose columns of A and rows of B beyond its rank are zero.

    Both being zero, neither has a gradient: they stay zero in training.
    """
    leaves = tree.leaves_by_path(view.start)
    if _SCALE not in leaves:
        raise InputError("start: the model has no scale of its own. Use fh.models.lora(..., own_scale=True).")
    rank = client_ranks(ranks, jnp.asarray(view.client))
    scale = alpha / rank.astype(leaves[_SCALE].dtype)
    factor = leaves[_SCALE] / scale if is_rescaled else 1.0
    for path, leaf in leaves.items():
        if path.endswith(_A):
            leaves[path] = jnp.where(jnp.arange(leaf.shape[-1]) < rank, choose(path, leaf), 0)
        elif path.endswith(_B):
            is_kept = (jnp.arange(leaf.shape[-2]) < rank)[:, None]
            leaves[path] = jnp.where(is_kept, factor * choose(path, leaf), 0).astype(leaf.dtype)
    return tree.from_paths(leaves | {_SCALE: scale})
