"""Dirichlet proportions and their rounding to integers; every function takes bounded time."""

import numpy as np

_SMALLEST_ALPHA = 1e-12  # smaller values always give one-hot samples, and 1 / alpha would overflow


def sample_log_dirichlet(alpha: float, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Draw logarithms of unnormalized samples of the symmetric Dirichlet(alpha), one per row.

    A sample of Gamma(alpha) underflows to zero for small alpha; its logarithm does not. With G ~ Gamma(alpha + 1) and
    E ~ Exponential(1), the logarithm is distributed as log G - E / alpha.
    """
    alpha = max(alpha, _SMALLEST_ALPHA)
    return np.log(rng.standard_gamma(alpha + 1.0, shape)) - rng.standard_exponential(shape) / alpha


def softmax_rows(logs: np.ndarray) -> np.ndarray:
    """exp(logs), scaled so that each row (last axis) sums to one."""
    values = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return values / values.sum(axis=-1, keepdims=True)


def sample_dirichlet(alpha: float, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Draw samples of the symmetric Dirichlet(alpha), one per row, for any alpha > 0."""
    return softmax_rows(sample_log_dirichlet(alpha, shape, rng))


def round_preserving_sum(proportions: np.ndarray, total: int, start: float = 0.5) -> np.ndarray:
    """Round proportions * total, each to within one, with sum `total`, by rounding the cumulative sum.

    Unbiased for a random `start` in 0..1; with a fixed `start` the same entries are always rounded up.
    """
    ends = np.floor(np.cumsum(proportions)[:-1] * total + start).astype(int)
    return np.diff(np.clip(ends, 0, total), prepend=0, append=total)


def split_evenly(total: int, num_parts: int) -> np.ndarray:
    """Split `total` into parts that differ by at most one, larger parts first."""
    return np.full(num_parts, total // num_parts) + (np.arange(num_parts) < total % num_parts)


def apportion(sizes: np.ndarray, num_seats: int, max_seats: np.ndarray) -> np.ndarray:
    """Apportion `num_seats` to parties of these sizes (Webster's method): at least one and at most `max_seats` each.

    Needs len(sizes) <= num_seats <= sum(max_seats).
    """
    seats = np.ones(len(sizes), int)
    for _ in range(num_seats - len(sizes)):
        claims = np.where(seats < max_seats, sizes / (seats + 0.5), -1.0)
        seats[np.argmax(claims)] += 1
    return seats


def fill_quotas(logs: np.ndarray, quotas: np.ndarray, supplies: np.ndarray) -> np.ndarray:
    """[client, class] whole numbers with row sums `quotas` and column sums `supplies`, near the proportions exp(logs).

    Every client requests its quota in its proportions. A class with fewer examples than are requested is divided in
    proportion to the requests and is then exhausted; clients request the rest from the other classes. Each iteration
    exhausts a class or is the last, so there are at most [class] of them. Needs sum(quotas) == sum(supplies).
    """
    amounts, missing, left = np.zeros(logs.shape), quotas.astype(float), supplies.astype(float)
    is_open = supplies > 0
    while is_open.any():
        requests = missing[:, None] * softmax_rows(np.where(is_open, logs, -np.inf))
        demand = requests.sum(axis=0)
        granted = requests * np.where(demand > left, left / np.maximum(demand, 1e-300), 1.0)
        amounts += granted
        missing = np.maximum(missing - granted.sum(axis=1), 0.0)
        is_exhausted = is_open & (demand >= left)
        if not is_exhausted.any():
            break
        left -= granted.sum(axis=0)
        is_open &= ~is_exhausted
    return controlled_rounding(amounts, quotas, supplies)


def controlled_rounding(amounts: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Round `amounts` to whole numbers with exactly these row and column sums.

    All amounts are rounded down. Then entries, in the order of falling fractions, gain one where their row and column
    sums are both too small. A second pass gives all that is missing without that limit, after which both sums hold.
    """
    counts = np.floor(amounts + 1e-9).astype(int)
    missing, left = (rows - counts.sum(axis=1)).tolist(), (columns - counts.sum(axis=0)).tolist()
    order = np.argsort(counts - amounts, axis=None, kind="stable")
    entries = list(zip(*(axis.tolist() for axis in np.unravel_index(order, counts.shape)), strict=True))
    for max_seats in (1, sum(missing)):
        for row, column in entries:
            added = min(max_seats, missing[row], left[column])
            if added > 0:
                counts[row, column] += added
                missing[row] -= added
                left[column] -= added
    return counts


def enforce_minimum(parts: list[np.ndarray], minimum: int) -> list[np.ndarray]:
    """Move entries, one at a time, from the end of the largest part to every part that has fewer than `least`.

    Needs least * len(parts) <= the number of entries; makes at most least * len(parts) moves.
    """
    lists = [part.tolist() for part in parts]
    sizes = np.array([len(items) for items in lists])
    for small in np.flatnonzero(sizes < minimum):
        while sizes[small] < minimum:
            largest = int(np.argmax(sizes))
            lists[small].append(lists[largest].pop())
            sizes[small] += 1
            sizes[largest] -= 1
    return [np.array(items, int) for items in lists]
