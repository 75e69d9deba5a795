"""A Gaussian process over the loss changes of clients, which `fedcor` fits and selects by."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float

from fedjax_het import tree
from fedjax_het._internal.decompositions import cho_solve, cholesky
from fedjax_het.types import Array

NOISE = 0.01  # standard deviation, of the authors' code, which does not fit it
_LEARNING_RATE = 0.01  # of the authors' code


def covariance_of(positions: Float[Array, "clients dimension"]) -> Array:
    """S = X X^T + NOISE^2 I, [clients, clients]."""
    gram = jnp.matmul(positions, positions.T, precision=jax.lax.Precision.HIGHEST)
    return gram + NOISE**2 * jnp.eye(len(positions))


def condition(covariance: Array, client: Array | int) -> Array:
    """The covariance once the loss change of a client is known, whose variance is at least NOISE^2."""
    column = covariance[:, client]
    return covariance - jnp.outer(column, column) / jnp.maximum(column[client], NOISE**2)


def select_correlated(
    covariance: Array, weights: Array, discount: Array, is_candidate: Bool[Array, "clients"], count: int
) -> tuple[Array, Array]:
    """Select clients one after the other, each the most correlated with those that are not selected.

        max_k discount_k sum_i weights_i S_ik / sqrt(S_kk),   S <- S - S_k S_k^T / S_kk

    Args:
        covariance: S, [clients, clients].
        weights, discount: [clients].
        is_candidate: The clients that may be selected.
        count: The number of clients.

    Returns:
        (The ids in the order of selection, [count], in which others may follow the last candidate; the scores of all
        clients, [count, clients], NaN for those that are selected before.)
    """

    def add(progress: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        covariance, is_open = progress
        deviation = jnp.sqrt(jnp.maximum(jnp.diagonal(covariance), NOISE**2))
        scores = jnp.sum(jnp.where(is_open, weights, 0)[:, None] * covariance, axis=0) * discount / deviation
        pick = jnp.argmax(jnp.where(is_open & is_candidate, scores, -jnp.inf))
        after = condition(covariance, pick), is_open.at[pick].set(False)
        return after, (pick, jnp.where(is_open, scores, jnp.nan))

    return jax.lax.scan(add, (covariance, jnp.ones_like(is_candidate)), None, length=count)[1]


def log_likelihood(positions: Array, changes: Array, is_observed: Bool[Array, "clients"]) -> Array:
    """The logarithm of the density N(0, S) of the observed changes [clients].

    With A = X^T X + NOISE^2 I and b = A^-1 X^T y, which needs no matrix of all clients:

        y^T S^-1 y = ||y - X b||^2 / NOISE^2 + ||b||^2,   |S| = |A| NOISE^(2 (clients - dimension))
    """
    size, num = positions.shape[1], jnp.sum(is_observed)
    shown = jnp.where(is_observed[:, None], positions, 0)
    target = jnp.where(is_observed, changes, 0)
    lower = cholesky(shown.T @ shown + NOISE**2 * jnp.eye(size))
    point = cho_solve(lower, shown.T @ target)
    square = jnp.sum((target - shown @ point) ** 2) / NOISE**2 + jnp.sum(point**2)
    log_determinant = 2 * jnp.sum(jnp.log(jnp.diagonal(lower))) + 2 * (num - size) * jnp.log(NOISE)
    return -0.5 * (square + log_determinant + num * jnp.log(2 * jnp.pi))


def fit_positions(
    positions: Float[Array, "clients dimension"],
    changes: Float[Array, "rounds clients"],
    is_observed: Bool[Array, "rounds clients"],
    weights: Float[Array, "rounds"],
    steps: Array | int,
) -> Array:
    """The positions after some steps of Adam on the weighted likelihood of the changes, less their weighted means.

    Adam stops where a step is not finite, as after losses that diverge.
    """
    shares = weights[:, None] * is_observed
    centred = changes - jnp.sum(shares * changes, axis=0) / tree.positive_or_one(jnp.sum(shares, axis=0))
    adam = optax.adam(_LEARNING_RATE)

    def objective(positions: Array) -> Array:
        with jax.default_matmul_precision("highest"):
            own = jax.vmap(log_likelihood, (None, 0, 0))(positions, centred, is_observed)
        return -jnp.sum(weights * own)

    def step(_: Array, progress: tuple[Array, optax.OptState]) -> tuple[Array, optax.OptState]:
        positions, state = progress
        updates, state = adam.update(jax.grad(objective)(positions), state)
        after = optax.apply_updates(positions, updates), state
        return tree.where(tree.is_finite(after), after, progress)

    return jax.lax.fori_loop(0, steps, step, (positions, adam.init(positions)))[0]
