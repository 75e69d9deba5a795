"""Proportions, and whole numbers that follow them: what the partitions are made of. Bounded in time, all of it."""

import numpy as np

_SMALLEST_ALPHA = 1e-12  # below it a draw is one-hot for certain, and 1 / alpha would overflow


def sample_log_dirichlet(alpha: float, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """log of unnormalised draws from the symmetric Dirichlet(alpha), one a row.

    A gamma draw of a tiny alpha is zero in floating point; its logarithm is not. With G ~ Gamma(alpha + 1) and
    E ~ Exponential(1), log Gamma(alpha) is distributed as log G - E / alpha.
    """
    alpha = max(alpha, _SMALLEST_ALPHA)
    return np.log(rng.standard_gamma(alpha + 1.0, shape)) - rng.standard_exponential(shape) / alpha


def softmax_rows(logs: np.ndarray) -> np.ndarray:
    """exp(logs), scaled so that each row (last axis) sums to one."""
    values = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return values / values.sum(axis=-1, keepdims=True)


def sample_dirichlet(alpha: float, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Draws from the symmetric Dirichlet(alpha), one a row, for any alpha > 0."""
    return softmax_rows(sample_log_dirichlet(alpha, shape, rng))


def round_preserving_sum(proportions: np.ndarray, total: int, start: float = 0.5) -> np.ndarray:
    """Whole numbers that sum to `total`, each within one of its proportion: the cumulative sum, rounded.

    A random `start` in 0..1 makes each right on average; else small proportions would favour the same places always.
    """
    ends = np.floor(np.cumsum(proportions)[:-1] * total + start).astype(int)
    return np.diff(np.clip(ends, 0, total), prepend=0, append=total)


def split_evenly(total: int, num_parts: int) -> np.ndarray:
    """`total` in parts that differ by at most one, the larger first."""
    return np.full(num_parts, total // num_parts) + (np.arange(num_parts) < total % num_parts)


def apportion(sizes: np.ndarray, num_seats: int, most: np.ndarray) -> np.ndarray:
    """`num_seats` over parties of these sizes (Webster's method): at least one each, at most `most` each.

    Needs len(sizes) <= num_seats <= sum(most).
    """
    seats = np.ones(len(sizes), int)
    for _ in range(num_seats - len(sizes)):
        claims = np.where(seats < most, sizes / (seats + 0.5), -1.0)
        seats[np.argmax(claims)] += 1
    return seats


def fill_quotas(logs: np.ndarray, quotas: np.ndarray, supplies: np.ndarray) -> np.ndarray:
    """[clients, class] whole numbers with row sums `quotas` and column sums `supplies`, near the wishes exp(logs).

    Every client asks for its quota in the proportions it wishes. A class that is asked for more than it has is shared
    out in proportion to the askings and is then closed; what a client lacks, it asks from the open classes. Each turn
    closes a class or ends, so there are at most [class] turns. Needs sum(quotas) == sum(supplies).
    """
    amounts, lacking, left = np.zeros(logs.shape), quotas.astype(float), supplies.astype(float)
    is_open = supplies > 0
    while is_open.any():
        asked = lacking[:, None] * softmax_rows(np.where(is_open, logs, -np.inf))
        demand = asked.sum(axis=0)
        granted = asked * np.where(demand > left, left / np.maximum(demand, 1e-300), 1.0)
        amounts += granted
        lacking = np.maximum(lacking - granted.sum(axis=1), 0.0)
        is_closing = is_open & (demand >= left)
        if not is_closing.any():
            break
        left -= granted.sum(axis=0)
        is_open &= ~is_closing
    return controlled_rounding(amounts, quotas, supplies)


def controlled_rounding(amounts: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Whole numbers near `amounts` with exactly these row and column sums.

    Everything is rounded down; then, by falling fraction, each entry takes one more where its row and its column both
    still lack; a second pass takes what is left without that limit, which always ends with both sums met.
    """
    counts = np.floor(amounts + 1e-9).astype(int)
    lacking, left = (rows - counts.sum(axis=1)).tolist(), (columns - counts.sum(axis=0)).tolist()
    order = np.argsort(counts - amounts, axis=None, kind="stable")
    entries = list(zip(*(axis.tolist() for axis in np.unravel_index(order, counts.shape)), strict=True))
    for most in (1, sum(lacking)):
        for row, column in entries:
            more = min(most, lacking[row], left[column])
            if more > 0:
                counts[row, column] += more
                lacking[row] -= more
                left[column] -= more
    return counts


def enforce_minimum(parts: list[np.ndarray], least: int) -> list[np.ndarray]:
    """Move entries, one at a time, from the end of the largest part to every part with fewer than `least`.

    Needs least * len(parts) <= the number of entries; makes at most least * len(parts) moves.
    """
    lists = [part.tolist() for part in parts]
    sizes = np.array([len(each) for each in lists])
    for poor in np.flatnonzero(sizes < least):
        while sizes[poor] < least:
            rich = int(np.argmax(sizes))
            lists[poor].append(lists[rich].pop())
            sizes[poor] += 1
            sizes[rich] -= 1
    return [np.array(each, int) for each in lists]
