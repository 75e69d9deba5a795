"""Noise that is correlated over rounds, so that it partly cancels in the model, which is the sum of all updates.

A strategy is a lower triangular matrix C. Round t has the noise (C^-1 Z)_t with independent Gaussian rows Z, scaled by
the sensitivity of C: how far one client can move C x, where x are the sums of clipped updates of all rounds. The run is
then as private as one Gaussian mechanism. Except for the tree, C is a Toeplitz matrix, given by its first column c.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # imports its subpackages lazily

from fedjax_het.errors import InputError
from fedjax_het.types import Array
from fedjax_het.validation import Count, refuse_without_effect, validate_arguments

StrategyName = Literal["identity", "optimal", "banded", "buffered", "inverse_root", "tree"]
_DIGITS = 6  # of optimized numbers, which the last digits of an optimizer then do not change


@dataclass(frozen=True, eq=False)
class NoiseStrategy:
    """A strategy for a number of rounds, and the recurrence that computes its noise.

    Args:
        size: The number of earlier trees of noise that the recurrence needs.
        step: (those of one leaf [size, ...], independent normals, round) -> (the correlated noise, the new trees).
        rounds: T.
        separation: The minimum number of rounds from one participation of a client to its next.
        coefficients: The first column of C, [T]; None for the tree.
        scales: The norms of the columns of C by which it is divided, [T]; None: not divided.
    """

    size: int
    step: Callable[[Array, Array, Array], tuple[Array, Array]]
    rounds: int
    separation: int
    coefficients: np.ndarray | None = None
    scales: np.ndarray | None = None

    def sensitivity(self, rounds: int | None = None, participations: int | None = None) -> float:
        """How far one client can move C x over the first rounds, per unit of the norm of its updates.

            |sum_{i < k} C[:, i s]|   for k participations and separation s

        This is exact for bands up to s, and if no entry of c is negative or larger than the one before. Otherwise, it
        is an upper bound, that of the smallest c' >= |c| without an increase; for the tree, a bound level by level.

        Args:
            rounds: The number of rounds. None: all rounds.
            participations: The maximum number k. None: as many as the separation allows.
        """
        length = rounds or self.rounds
        count = min(-(-length // self.separation), participations or length)
        if self.coefficients is None:
            sizes = (1 << level for level in range(length.bit_length()))
            return math.sqrt(sum(_nodes(count, -(-size // self.separation)) for size in sizes))
        if self.scales is not None:
            return math.sqrt(count)
        column, firsts = self.coefficients[:length], range(0, count * self.separation, self.separation)
        if not np.any(column[self.separation :]):  # participations do not overlap
            return math.sqrt(sum(float(np.sum(column[: length - first] ** 2)) for first in firsts))
        column, total = np.maximum.accumulate(np.abs(column)[::-1])[::-1], np.zeros(length)
        for first in firsts:
            total[first:] += column[: length - first]
        return float(np.linalg.norm(total))

    def errors(self) -> np.ndarray:
        """The variance of the noise in the sum of the first t updates, [T], for noise of unit sensitivity."""
        if self.coefficients is None:
            return np.array([float(bin(number).count("1")) for number in range(1, self.rounds + 1)])
        sums = invert_series(self.coefficients)
        if self.scales is None:
            return np.cumsum(np.cumsum(sums) ** 2)
        noise = self.scales[:, None] * scipy.linalg.toeplitz(sums, np.zeros(self.rounds))
        return np.sum(np.cumsum(noise, axis=0) ** 2, axis=1)


@validate_arguments
def noise_strategy(
    name: StrategyName,
    rounds: Count,
    separation: Count,
    bands: Count | None = None,
    num_buffers: Count = 3,
    normalize_columns: bool = False,
) -> NoiseStrategy:
    """Make a strategy.

        identity      c = 1                              independent noise of every round
        optimal       c = 1, 1/2, 3/8, 5/16, ...         least largest error if a client takes part once; T - 1 trees
        banded        b numbers of least mean error      b - 1 trees
        buffered      c_0 = 1, c_k = sum_j w_j a_j^(k-1) of least mean error (BLT), one tree per buffer
        inverse_root  C^-1 has b bands, of the optimal   b - 1 trees
        tree          binary tree of partial sums        one tree per level, without the estimator of Honaker

    Args:
        name: As above.
        rounds: T, the number of rounds of the run.
        separation: s, the minimum number of rounds from one participation of a client to its next.
        bands: b of "banded" and "inverse_root". None: the separation.
        num_buffers: The number of buffers of "buffered".
        normalize_columns: Whether the columns of "banded" are divided by their norms, so that all rounds cost the same.

    Raises:
        InputError: An option has no effect, or more bands than the separation have normalized columns.

    References:
        Kairouz et al., Practical and Private (Deep) Learning without Sampling or Shuffling, ICML 2021.
        arXiv:2103.00039; Choquette-Choo et al., (Amplified) Banded Matrix Factorization, NeurIPS 2023.
        arXiv:2306.08153; Dvijotham et al., Efficient and Near-Optimal Noise Generation for Streaming Differential
        Privacy, FOCS 2024. arXiv:2404.16706; code google-deepmind/jax_privacy.
    """
    if name not in ("banded", "inverse_root"):
        refuse_without_effect(noise_strategy, f"with strategy '{name}'", bands=bands)
    if name != "buffered":
        refuse_without_effect(noise_strategy, f"with strategy '{name}'", num_buffers=num_buffers)
    if name != "banded":
        refuse_without_effect(noise_strategy, f"with strategy '{name}'", normalize_columns=normalize_columns)
    num_bands = min(bands or separation, rounds)
    if name == "tree":
        return tree_strategy(rounds, separation)
    if name == "buffered":
        return buffered_strategy(*_optimize_buffers(num_buffers, rounds, separation), rounds, separation)
    if name == "inverse_root":
        return inverse_strategy(invert_series(root_coefficients(rounds))[:num_bands], rounds, separation)
    if name == "banded":
        return toeplitz_strategy(_optimize_bands(num_bands, rounds), rounds, separation, normalize_columns)
    return toeplitz_strategy(root_coefficients(rounds) if name == "optimal" else np.ones(1), rounds, separation)


def toeplitz_strategy(
    bands: np.ndarray, rounds: int, separation: int, normalize_columns: bool = False
) -> NoiseStrategy:
    """x_t = (z_t - sum_{i >= 1} c_i x_{t-i}) / c_0, times the norm of column t if columns are normalized."""
    column = _pad(bands, rounds)
    if normalize_columns and len(bands) > separation:
        raise InputError(
            f"normalize_columns: {len(bands)} bands exceed the separation, {separation}, so participations of a client "
            "overlap. Use fewer bands, or leave it out."
        )
    scales = np.sqrt(np.cumsum(column**2))[::-1].copy() if normalize_columns else None

    def step(kept: Array, normal: Array, number: Array) -> tuple[Array, Array]:
        value = (normal - _combine(bands[1:], kept)) / float(bands[0])
        moved = _shift(kept, value)
        return value if scales is None else (jnp.asarray(scales, value.dtype)[number] * value), moved

    return NoiseStrategy(len(bands) - 1, step, rounds, separation, column, scales)


def inverse_strategy(noising: np.ndarray, rounds: int, separation: int) -> NoiseStrategy:
    """x_t = sum_i w_i z_{t-i}, where w is the first column of C^-1."""

    def step(kept: Array, normal: Array, number: Array) -> tuple[Array, Array]:
        return float(noising[0]) * normal + _combine(noising[1:], kept), _shift(kept, normal)

    column = invert_series(_pad(noising, rounds))
    return NoiseStrategy(len(noising) - 1, step, rounds, separation, column)


def buffered_strategy(decays: np.ndarray, weights: np.ndarray, rounds: int, separation: int) -> NoiseStrategy:
    """x_t = z_t - sum_j w_j s_j, and s_j <- a_j s_j + x_t."""

    def step(kept: Array, normal: Array, number: Array) -> tuple[Array, Array]:
        value = normal - _combine(weights, kept)
        return value, _broadcast(jnp.asarray(decays, kept.dtype), kept) * kept + value

    return NoiseStrategy(len(decays), step, rounds, separation, buffered_coefficients(decays, weights, rounds))


def tree_strategy(rounds: int, separation: int) -> NoiseStrategy:
    """The noise of a prefix is the sum of those of its nodes; that of round t ends the nodes of lower levels."""

    def step(kept: Array, normal: Array, number: Array) -> tuple[Array, Array]:
        level = jax.lax.population_count((number + 1) ^ number) - 1  # the trailing zeros of t + 1
        is_below = _broadcast(jnp.arange(len(kept)) < level, kept)
        value = normal - jnp.sum(jnp.where(is_below, kept, 0), axis=0)
        return value, jnp.where(is_below, 0, kept).at[level].set(normal)

    return NoiseStrategy(rounds.bit_length(), step, rounds, separation)


# ---- coefficients ----------------------------------------------------------------------------------------------------
def root_coefficients(rounds: int) -> np.ndarray:
    """binom(2k, k) / 4^k, [T]: the square root of the matrix of prefix sums."""
    numbers = np.arange(1, rounds)
    return np.cumprod(np.concatenate([[1.0], (2 * numbers - 1) / (2 * numbers)]))


def buffered_coefficients(decays: np.ndarray, weights: np.ndarray, rounds: int) -> np.ndarray:
    """1, and then sum_j w_j a_j^(k-1), [T]."""
    powers = decays[:, None] ** np.arange(rounds - 1)
    return np.concatenate([[1.0], weights @ powers])


def invert_series(column: np.ndarray) -> np.ndarray:
    """The first column of the inverse of a lower triangular Toeplitz matrix, [T]."""
    first_row, unit = _pad(column[:1], len(column)), _pad(np.ones(1), len(column))
    return np.asarray(scipy.linalg.solve_toeplitz((column, first_row), unit))


def _mean_error(column: np.ndarray) -> tuple[float, np.ndarray]:
    """(The mean of `errors`, its gradient in the column)."""
    length, inverse = len(column), invert_series(column)
    sums, counts = np.cumsum(inverse), np.arange(len(column), 0, -1) / len(column)
    pull = np.cumsum((2 * counts * sums)[::-1])[::-1]  # gradient in the inverse
    square = np.convolve(inverse, inverse)[:length]
    return float(counts @ sums**2), -np.array([pull[i:] @ square[: length - i] for i in range(length)])


@functools.lru_cache(maxsize=64)
def _optimize_bands(num_bands: int, rounds: int) -> np.ndarray:
    """The bands of least mean error times |c|^2, which one participation costs, from the optimal ones."""

    def loss(rest: np.ndarray) -> tuple[float, np.ndarray]:
        bands = np.concatenate([[1.0], rest])
        error, gradient = _mean_error(_pad(bands, rounds))
        norm = float(bands @ bands)
        return math.log(error * norm), (gradient[:num_bands] / error + 2 * bands / norm)[1:]

    start = root_coefficients(num_bands)[1:]
    found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B").x if num_bands > 1 else start
    return np.round(np.concatenate([[1.0], found]), _DIGITS)


@functools.lru_cache(maxsize=64)
def _optimize_buffers(number: int, rounds: int, separation: int) -> tuple[np.ndarray, np.ndarray]:
    """(Decays, weights) of least mean error times squared sensitivity."""

    def read(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scipy.special.expit(values[:number]), np.exp(np.minimum(values[number:], 0.0))

    def loss(values: np.ndarray) -> float:
        decays, weights = read(values)
        strategy = buffered_strategy(decays, weights, rounds, separation)
        return math.log(float(np.mean(strategy.errors()))) + 2 * math.log(strategy.sensitivity())

    lengths = rounds ** (np.arange(1, number + 1) / number)  # of the memory of each buffer, in rounds
    start = np.concatenate([np.log(lengths), np.log(0.5 / lengths / number)])
    found = read(scipy.optimize.minimize(loss, start, method="L-BFGS-B").x)
    return np.round(found[0], _DIGITS), np.round(found[1], _DIGITS)


def _nodes(count: int, limit: int) -> int:
    """The largest sum of squared participations in the nodes of a level, of `count` with at most `limit` in a node."""
    limit = min(count, limit)
    return count // limit * limit**2 + (count % limit) ** 2


def _pad(values: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([values[:length], np.zeros(max(0, length - len(values)))])


def _broadcast(values: Array, kept: Array) -> Array:
    return values.reshape(-1, *[1] * (kept.ndim - 1))


def _combine(weights: np.ndarray, kept: Array) -> Array:
    return jnp.tensordot(jnp.asarray(weights, kept.dtype), kept, axes=1, precision=jax.lax.Precision.HIGHEST)


def _shift(kept: Array, value: Array) -> Array:
    """The newest value first."""
    return jnp.concatenate([value[None], kept])[: len(kept)]
