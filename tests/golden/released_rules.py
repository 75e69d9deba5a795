"""NumPy transcriptions, in float64, of released rules that can divide by zero, with what has to stand there instead.

Cases whose stored numbers are such a fault are held against them; where the released code has no fault they give its
numbers, which tests/golden/test_changed_cases.py checks.
"""

import numpy as np


def principal_mean(stack: np.ndarray, fraction: float) -> np.ndarray:
    """FedLD's svd_tools.pcgrad_svd for one tensor [m, d]; a client that sent zeros stays zero, and counts in the mean.

    The side of each axis that a client is on, times its length and the axis's share of all eigenvalues.
    """
    num_kept, lengths = int(fraction * len(stack)), np.linalg.norm(stack, axis=1)
    _, singular, axes = np.linalg.svd(stack, full_matrices=False)
    shares = np.where(singular > 1e-6 * singular[0], singular**2, 0) / np.sum(singular**2)
    along = stack @ axes.T
    sides = np.sign(along) * (np.abs(along) > 1e-14 * lengths[:, None])
    return np.mean(lengths[:, None] * sides[:, :num_kept] * shares[:num_kept], axis=0) @ axes[:num_kept]


def tournament_mean(stack: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """FedDM's main.py pcgrad_hierarchy for one tensor [m, d], m > 1; beside one of length zero, an update stays."""

    def without(update: np.ndarray, other: np.ndarray, product: float) -> np.ndarray:
        return update - product / (other @ other) * other if product < 0 and np.any(other) else update

    rows = list(stack)
    while len(rows) > 2:
        rows.sort(key=lambda row: -(row @ reference))
        half, joined = len(rows) // 2, []
        for best, worst in zip(rows[:half], rows[::-1], strict=False):
            joined.append(without(best, worst, best @ worst) + without(worst, best, best @ worst))
        rows = joined + ([rows[half]] if len(rows) % 2 else [])
    first, second = rows
    lessened = without(first, second, first @ second)
    return (lessened + without(second, lessened, first @ second)) / len(stack)


def adjusted_weights(start: np.ndarray, gaps: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """FedDG-GA's refine_weight_dict_by_GA and weight_clip, [rounds + 1, n]; gaps that are all zero change nothing."""
    path = [start]
    for gap, step in zip(gaps, steps, strict=True):
        largest = np.abs(gap).max()
        moved = np.clip(path[-1] + step / 3 * gap / (largest or 1), 0, 1)
        path.append(moved / moved.sum() if largest else path[-1])
    return np.stack(path)


def guided_weights(start: np.ndarray, layers: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """FedRD's weights [n] of these clients and no others, from their low layer [n, ...] and gaps.

    Gammas that have all underflowed count as equal, and so do distances that are all zero; alone, a client has all.
    """
    distances = np.linalg.norm((layers - start).reshape(len(layers), -1), axis=1)
    if len(gaps) == 1:
        return np.ones(1)
    equal = np.full(len(gaps), 1 / len(gaps))
    beta = distances / distances.sum() if distances.sum() > 1e-8 else equal
    gammas = np.exp(-np.logaddexp(0, -gaps))
    gamma = gammas / gammas.sum() if gammas.sum() > 0 else equal
    return ((1 - beta) / (len(gaps) - 1) + gamma) / 2
