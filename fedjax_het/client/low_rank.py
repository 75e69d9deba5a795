"""Low-rank adapters at the client's own rank: the adapters that it starts from, and ranks that shrink in training."""

import math
import zlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import LocalUpdate, Personalization, Problem, StartRule, Term
from fedjax_het.client.local_updates import wrap_training
from fedjax_het.errors import InputError
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Array, ClientView, Key, Trained, Variables

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


def cut_adapters(ranks: Sequence[int]) -> StartRule:
    """Start from the first r_i columns of A and rows of B, with the scale of the server (HetLoRA).

    Reads: memory["rank"], if a client has one; see `self_pruning`.

    Args:
        ranks: As in `fresh_adapters`.
    """

    def start(problem: Problem, view: ClientView, key: Key) -> Variables:
        return _cut(view.start, _current_rank(view, ranks))

    return start


def tail_penalty(ranks: Sequence[int], weight: float, decay: float) -> Term:
    """Penalize the columns of A and rows of B that `self_pruning` would remove.

        weight sum_layers |A[:, c:]| |B[c:]|,   c = floor(decay r_i)

    The gradient of a norm is 0 where it is 0. Reads: memory["rank"], if a client has one.

    Args:
        ranks: As in `fresh_adapters`.
        weight: The paper's lambda.
        decay: The paper's gamma.
    """

    def tail_penalty(forward: ForwardPass) -> Array:
        kept = _pruned_rank(_current_rank(forward.view, ranks), decay)
        return weight * _tail_norms({"params": forward.params}, kept)

    return tail_penalty


def self_pruning(local_update: LocalUpdate, ranks: Sequence[int], decay: float) -> LocalUpdate:
    """Train, and reduce the client's rank to c for good if the tail of its adapters has shrunk.

        r_i <- max(1, c)   if   sum_layers |A[:, c:]| |B[c:]|   is smaller than before training,   c = floor(decay r_i)

    Pruned columns of A and rows of B are zero in what is sent. The result "rank" is the new rank, for the memory
    "rank", which begins as the largest of `ranks`.

    Args:
        local_update: Local update of the adapters.
        ranks: As in `fresh_adapters`.
        decay: The paper's gamma.
    """

    def train(rule: Callable[..., Trained], problem: Problem, view: ClientView, key: Key) -> Trained:
        trained = rule(problem, view, key)
        rank = _current_rank(view, ranks)
        smaller = _pruned_rank(rank, decay)
        has_shrunk = _tail_norms(trained.variables, smaller) < _tail_norms(view.start, smaller)
        rank = jnp.where(has_shrunk, jnp.maximum(smaller, 1), rank)
        return trained._replace(variables=_cut(trained.variables, rank), results={**trained.results, "rank": rank})

    return wrap_training(local_update, train)


def mixed_adapters(mix: float | Array, scale: float) -> StartRule:
    """The client's variables, in which its own adapter and the shared one are mixed; see `models.dual_lora`.

        W + (1 - mix) s A B + mix s A' B'

    Args:
        mix: Share of the client's own adapter.
        scale: Scale s of both.
    """
    return lambda problem, view, key: _at_scales(view.local, (1 - mix) * scale, mix * scale)


def adapters_mixed_by_input(mix: float | Array, scale: float, num_references: int) -> Personalization:
    """The client's variables, in which each input determines the share of the client's own adapter.

        W + (1 - mix c) s A B + mix c s A' B',   c: mean cosine of the input's features to those of training examples

    Features are those of the model with W and A' B' alone, see `models.dual_lora`.

    Args:
        mix: Largest share of the client's own adapter.
        scale: Scale s of both.
        num_references: The number of training examples, which are drawn with replacement.
    """

    def personalize(problem: Problem, view: ClientView, key: Key) -> Variables:
        rows = view.data.train
        drawn = rows.index[jax.random.randint(key, (num_references,), 0, jnp.maximum(rows.count, 1))]
        batch = problem.batch(view.data, drawn, jnp.asarray(num_references), 0, num_references)
        variables = _at_scales(view.local, scale, mix * scale)
        return variables | {"adapter": variables["adapter"] | {"references": batch.inputs}}

    return personalize


def at_mixture(local_update: LocalUpdate, mix: float, scale: float) -> LocalUpdate:
    """Train the variables of `mixed_adapters` with these arguments."""
    mixed = mixed_adapters(mix, scale)

    def train(rule: Callable[..., Trained], problem: Problem, view: ClientView, key: Key) -> Trained:
        return rule(problem, view._replace(local=mixed(problem, view, key)), key)

    return wrap_training(local_update, train)


def _at_scales(variables: Variables, scale: float | Array, local_scale: float | Array) -> Variables:
    dtype, scales = variables["adapter"]["scale"].dtype, {"scale": scale, "local_scale": local_scale}
    return variables | {"adapter": {name: jnp.asarray(value, dtype) for name, value in scales.items()}}


def _current_rank(view: ClientView, ranks: Sequence[int]) -> Array:
    """The client's rank: its own, or the smaller one that it has been pruned to."""
    rank = client_ranks(ranks, jnp.asarray(view.client))
    return jnp.minimum(rank, view.memory["rank"]) if "rank" in view.memory else rank


def _pruned_rank(rank: Array, decay: float) -> Array:
    return jnp.floor(decay * rank).astype(rank.dtype)


def _tail_norms(variables: Variables, kept: Array) -> Array:
    """sum_layers |A[:, kept:]| |B[kept:]|"""
    leaves = tree.leaves_by_path(variables)
    tails = {path: tree.norm(leaf - _cut_leaf(path, leaf, kept)) for path, leaf in leaves.items()}
    pairs = [path.removesuffix(_A) for path in leaves if path.endswith(_A)]
    return sum((tails[path + _A] * tails[path + _B] for path in pairs), jnp.zeros(()))


def _cut(variables: Variables, rank: Array) -> Variables:
    leaves = tree.leaves_by_path(variables)
    return tree.from_paths({path: _cut_leaf(path, leaf, rank) for path, leaf in leaves.items()})


def _cut_leaf(path: str, leaf: Array, rank: Array) -> Array:
    """A leaf, whose columns of A or rows of B from `rank` on are zero."""
    if path.endswith(_A):
        return jnp.where(jnp.arange(leaf.shape[-1]) < rank, leaf, 0)
    return jnp.where((jnp.arange(leaf.shape[-2]) < rank)[:, None], leaf, 0) if path.endswith(_B) else leaf


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

    Since both are zero, neither has a gradient, and they stay zero in training.
    """
    leaves = tree.leaves_by_path(view.start)
    if _SCALE not in leaves:
        raise InputError(
            "start: the model does not store the scale of its adapters. Use fh.models.lora(..., own_scale=True)."
        )
    rank = client_ranks(ranks, jnp.asarray(view.client))
    scale = alpha / rank.astype(leaves[_SCALE].dtype)
    factor = leaves[_SCALE] / scale if is_rescaled else 1.0
    for path, leaf in leaves.items():
        if path.endswith((_A, _B)):
            own = choose(path, leaf) * (factor if path.endswith(_B) else 1.0)
            leaves[path] = _cut_leaf(path, own, rank).astype(leaf.dtype)
    return tree.from_paths(leaves | {_SCALE: scale})
