"""Pairwise conflict removal in a tournament (FedGH in FedLD's tables)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from fedjax_het import geometry, tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.server.aggregators._conflict import drop_rounding
from fedjax_het.server.aggregators._gram_space import Buffers
from fedjax_het.server.weightings import uniform
from fedjax_het.types import Aggregate, Array, ServerView, Variables, WeightedSum
from fedjax_het.validation import Fraction, NonNegative, validate_arguments


class Reference(NamedTuple):
    """The moving average of past aggregates, tensor by tensor."""

    average: Variables
    is_begun: Bool[Array, ""]


def hierarchical_weights(gram: Array, scores: Array, is_present: Array, eps: float) -> Array:
    """[m]: the factor of each update in the aggregate of one tensor; see `hierarchical_mean`.

    Shapes: gram [m, m], scores [m] (g_i . r), is_present [m].
    """
    num_present, place = jnp.sum(is_present), jnp.arange(gram.shape[0] + 1)

    def level(running: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, count = running
        measured = _measure(rows, gram, scores)
        order = jnp.argsort(jnp.where(place < count, -measured.scores, jnp.inf), stable=True)
        rows, measured = rows[order], tree.take(measured, order)
        partner = jnp.where(place < count, count - 1 - place, place)
        products = jnp.sum(measured.products * rows[partner], axis=1)
        reduced = _subtract_projections(rows, products, rows[partner], measured.squares[partner], eps)
        pairs = jnp.where((partner == place)[:, None], rows, reduced + reduced[partner])
        half = (count + 1) // 2
        return jnp.where((place < half)[:, None], pairs, 0), half

    rows = jnp.where(is_present[:, None], jnp.eye(gram.shape[0]), 0)[jnp.argsort(~is_present, stable=True)]
    rows = jnp.pad(rows, ((0, 1), (0, 0)))  # a single client is paired with zeros
    rows, _ = jax.lax.while_loop(lambda running: running[1] > 2, level, (rows, num_present))
    measured = _measure(rows[:2], gram, scores)
    first, second = rows[:1], rows[1:2]
    product = jnp.sum(measured.products[:1] * second, axis=1)
    reduced = _subtract_projections(first, product, second, measured.squares[1:], eps)
    total = reduced + _subtract_projections(second, product, reduced, _measure(reduced, gram, scores).squares, eps)
    return jnp.sum(total, axis=0) / jnp.maximum(num_present, 1)


class _Measured(NamedTuple):
    """Inner products of the combinations sum_j c_j g_j."""

    products: Array  # [n, m], with each g_j
    squares: Array  # [n], their squared norms; 0 if the parts cancel to rounding
    scores: Array  # [n], with r


def _measure(rows: Array, gram: Array, scores: Array) -> _Measured:
    """Measure combinations [n, m] in one matrix product: TPUs lack float64 products, and each compiles to hundreds
    of operations."""
    combined = jnp.concatenate([rows, jnp.abs(rows)]) @ jnp.column_stack([gram, scores, geometry.lengths(gram)])
    products, others = combined[: len(rows), :-2], combined[:, -2:]
    squares = drop_rounding(jnp.sum(products * rows, axis=1), others[len(rows) :, 1])
    return _Measured(products, squares, others[: len(rows), 0])


def _subtract_projections(rows: Array, products: Array, others: Array, squares: Array, eps: float) -> Array:
    """rows - <row, other>/(|other|^2 + eps) other if they conflict, as coefficients [n, m]."""
    squares = squares + eps
    share = jnp.where((products < 0) & (squares > 0), products / tree.positive_or_one(squares), 0)
    return rows - share[:, None] * others


@validate_arguments
def hierarchical_mean(
    eps: NonNegative = 1e-7, decay: Fraction = 0.99, *, buffers: Buffers = "weighted_mean"
) -> Aggregator:
    """Combine updates in a tournament that pairs those that agree most and least with past aggregates.

        first round:   u = 1/m sum_i g_i,   r = u
        then, tensor by tensor:   sort by <g_i, r>; pair best with worst, the second with the last but one, ...
            each pair in conflict:   a' = a - a.b/(|b|^2 + eps) b,   b' = b - a.b/(|a|^2 + eps) a;   a' + b' advances,
            an odd update advances unchanged, until two are left:
            a' = a - a.b/(|b|^2 + eps) b,   b' = b - a.b/(|a'|^2 + eps) a'
        u = (a' + b')/m,   r <- decay r + (1 - decay) u

    Differences from the released code: the sum is divided by the number of present clients, not of all clients; if
    r = 0, updates are ordered by id (released: sorts NaN); a single client's update is kept (released: fails); and with
    eps = 0 the second of a last pair in exact opposition is kept (FedDM: NaN). As in the released code, the last step
    is unbounded: |b'| grows like 1/sin(a, b) as the last pair approaches opposition.
    This is not the method of the FedGH paper (`harmonized_mean`).

    Args:
        eps: 1e-7 in FedLD's code, which makes the result depend on the scale of the updates | 0 in FedDM's.
        decay: .99 in both.
        buffers: Treatment of collections besides params: "weighted_mean" (here with equal weights), "keep_server", or
            "in_vector": edited tensor by tensor like the parameters, as in both.

    Returns:
        An aggregator of leaves [cohort, ...] -> [...]; unweighted. Gram matrices [m, m] in float64, tensor by tensor.

    Raises:
        InputError: The option for buffers is unknown.

    References:
        Zhu et al., FedDM; official code CityU-AIM-Group/FedDM, main.py, and Zeng-Shuang/FedLD, svd_tools.py.
    """

    def is_edited(path: str) -> bool:
        return buffers == "in_vector" or tree.is_parameter(path)

    rest = WeightedSum(uniform.per_client, lambda path: not is_edited(path))

    def update(problem: Problem, state: Reference, view: ServerView) -> tuple[Aggregate, Reference]:
        equal, _ = uniform.update((), view)
        edited = view.updates.select(is_edited).by_tensor()
        weigh = jax.vmap(lambda gram, scores: hierarchical_weights(gram, scores, view.is_present, eps))
        weights = jnp.where(state.is_begun, weigh(edited.gram(), edited.products(state.average)), equal)
        joined = edited.combine(weights)
        moved = tree.add(tree.scale(decay, state.average), tree.scale(1 - decay, joined))
        average = tree.where(state.is_begun, moved, joined)
        kept = equal * (buffers != "keep_server")
        update = {**view.updates.weighted_sum(kept, rest), **joined}
        return Aggregate(update, {}), Reference(average, jnp.array(True))

    def init(shared: Variables, num_clients: int) -> Reference:
        return Reference(tree.zeros_like(tree.partition(shared, is_edited)[1]), jnp.array(False))

    return Aggregator(init, update, "gram", (rest,))
