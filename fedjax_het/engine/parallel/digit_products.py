"""Inner products of float32 rows by exact products of digits, for devices without float64.

TPUs multiply matrices in bfloat16 with float32 accumulation, and emulate float64 by pairs of float32. Rows are split
into eight-bit digits, which are exact in bfloat16. Products of digits and their sums over 512 columns are integers
below 2^24, which are exact in float32, so no product is rounded, in any order of summation; only the few sums of
digits are combined in float64.
"""

import jax.numpy as jnp
import numpy as np

from fedjax_het.types import Array

NUM_DIGITS = 5
EXACT_COLUMNS = 512  # columns per exact sum: 512 products of up to 128 * 128 are 2^23
_RESULTS = 1 << 22  # sums of digit products held at a time


def block_size(num_left: int, num_right: int) -> int:
    """The number of columns to multiply at a time, for these numbers of rows."""
    return EXACT_COLUMNS * max(1, _RESULTS // (NUM_DIGITS**2 * num_left * num_right))


def multiply_by_digits(
    left: Array, right: Array, groups: Array | None = None, *, num_groups: int = 0, num_digits: int = NUM_DIGITS
) -> Array:
    """Compute the inner products <x_i, y_j> of float32 rows, [m, n], [k, n] -> [m, k] float64.

        x = 2^e sum_a d_a 2^(-7 - 8 a),   d_a integers in [-128, 128],   2^e above the row's largest among 512 columns

    Args:
        left: x.
        right: y. More columns than `block_size` take more memory.
        groups: [1, n], the group of each column; each group begins at a multiple of `EXACT_COLUMNS`. Products are then
            computed for each group separately, [num_groups, m, k].
        num_groups: The number of groups, which are numbered from 0.
        num_digits: S. Entries have precision 2^(-8 S) relative to the largest entry of their row among 512 columns.
            With 4 digits, a Gram matrix resolves singular values of 1e-5 of the largest as well as float64.

    References:
        Ozaki, Ogita, Oishi, Rump: Error-free transformations of matrix multiplication, Numerical Algorithms 59, 2012
    """
    (x, x_scales), (y, y_scales) = _split(left, num_digits), _split(right, num_digits)
    products = jnp.einsum("bik,bjk->bij", x, y, preferred_element_type=jnp.float32).astype(jnp.int32)
    products = products.reshape(-1, num_digits, len(left), num_digits, len(right))
    orders = [_pairs_of_order(order, num_digits) for order in range(2 * num_digits - 1)]
    exact = jnp.stack([sum(products[:, first, :, second, :] for first, second in pairs) for pairs in orders])
    weights = 2.0 ** (-14 - 8 * np.arange(len(orders)))
    scales = x_scales[:, :, None] * y_scales[:, None, :]
    sums = jnp.sum(exact.astype(float) * (weights[:, None, None, None] * scales), axis=0)
    if groups is None:
        return jnp.sum(sums, axis=0)
    is_of_group = groups[0, ::EXACT_COLUMNS] == jnp.arange(num_groups)[:, None]
    return jnp.sum(jnp.where(is_of_group[:, :, None, None], sums, 0), axis=1)


def _split(rows: Array, num_digits: int) -> tuple[Array, Array]:
    """Digits [block, digit * row, column] in bfloat16, and 2^e [block, row] in float64; NaN where not finite."""
    padded = jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % EXACT_COLUMNS)))
    blocks = padded.reshape(len(rows), -1, EXACT_COLUMNS).transpose(1, 0, 2)
    largest = jnp.max(jnp.abs(blocks), axis=2)
    exponents = jnp.frexp(largest)[1]
    rest, digits = jnp.ldexp(blocks, 7 - exponents[..., None]), []
    for _ in range(num_digits):
        digits.append(jnp.round(rest).astype(jnp.bfloat16))
        rest = (rest - digits[-1].astype(jnp.float32)) * 256
    scales = jnp.where(jnp.isfinite(largest), jnp.ldexp(jnp.ones_like(largest), exponents), jnp.nan)
    return jnp.stack(digits, axis=1).reshape(-1, num_digits * len(rows), EXACT_COLUMNS), scales.astype(float)


def _pairs_of_order(order: int, num_digits: int) -> list[tuple[int, int]]:
    return [(first, order - first) for first in range(num_digits) if 0 <= order - first < num_digits]
