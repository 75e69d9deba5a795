"""The bound on epsilon that follows from an attack that looks for planted clients or examples."""

import numpy as np
import scipy.stats


def lower_bound(is_guessed: np.ndarray, is_there: np.ndarray, delta: float) -> float:
    """A lower bound on epsilon, with 95 % confidence, from guesses of who of many was there, half of them at random."""
    found, missed = np.sum(is_guessed & is_there), np.sum(~is_guessed & is_there)
    wrong, right = np.sum(is_guessed & ~is_there), np.sum(~is_guessed & ~is_there)
    min_found = scipy.stats.beta.ppf(0.025, found, missed + 1) if found else 0.0
    max_wrong = scipy.stats.beta.ppf(0.975, wrong + 1, right) if right else 1.0
    return float(np.log(max(min_found - delta, 1e-9) / max_wrong))
