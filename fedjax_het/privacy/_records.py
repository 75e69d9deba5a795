"""Record-level privacy: the noise on gradients of single examples, and its accounting for each client."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # imports its subpackages lazily

from fedjax_het.errors import InputError
from fedjax_het.privacy._accountant import Accountant, PoissonSampling, epsilon
from fedjax_het.validation import (
    Count,
    NonNegative,
    OpenFraction,
    Positive,
    Seed,
    check_constraints,
    constraints,
    validate_arguments,
)

_MAX_OVERFLOW = 1e-30  # probability per step that more examples are drawn than there are slots
_OVERFLOW_SHARE = 1e-3  # of delta, for such steps
_TOLERANCE = 5e-4  # of the epsilon that the noise is found for, relative


@dataclass(frozen=True)
class RecordPrivacy:
    """DP-SGD on every client: each step's gradient is private for every single example.

        g = (sum_b g_b min(1, C / |g_b|) + N(0, (z_i C)^2)) / (q_i n_i),   q_i = min(1, B / n_i)

    g_b is the gradient of the algorithm's objective at one example, whose augmented view is drawn once per step. Each
    of the n_i examples of client i is in the batch of a step with probability q_i, independently of the others. B is
    the algorithm's batch_size, now the expected number of examples; the divisor is constant, and a step without
    examples adds noise.
    The algorithm needs `steps`, since there are no epochs. Its clients may send whatever follows from their noisy
    steps; what reads examples otherwise raises an error. The numbers of examples n_i count as known, as in Opacus.

    Args:
        norm: C, the maximum norm of the gradient of an example; 0.1 to 10.
        noise_multiplier: z, in units of C, for all clients or one number per client. None: config.record_privacy
            computes it from target_epsilon.
        per_layer: Whether each of the l trained tensors is clipped separately to C / sqrt(l).
        slots: Maximum number of examples per step; if more are drawn, a random subset is left out, and epsilon is that
            of truncated Poisson sampling. None: a number that is exceeded with a probability below 10^-30 per step,
            which is taken from delta.
        chunk_size: Number of examples whose gradients are in memory at the same time, for each client that is trained
            in parallel.
        noise_seed: A secret number, so that the noise cannot be derived from the run's seed alone.

    Raises:
        InputError: A number is out of range.

    References:
        Abadi et al., Deep Learning with Differential Privacy, CCS 2016. arXiv:1607.00133; third-party code Opacus,
        which divides by |g_b| + 1e-6.
    """

    norm: Positive
    noise_multiplier: NonNegative | Sequence[NonNegative] | None = None
    per_layer: bool = False
    slots: Count | None = None
    chunk_size: Count = 16
    noise_seed: Seed | None = None

    def __post_init__(self):
        check_constraints(constraints(RecordPrivacy), vars(self))
        if isinstance(self.noise_multiplier, Sequence):
            object.__setattr__(self, "noise_multiplier", tuple(self.noise_multiplier))  # hashable, as algorithms are

    def num_slots(self, batch_size: int) -> int:
        """The number of slots of a step, for any number of examples: at most those of a Poisson number of mean B."""
        if self.slots is not None:
            return self.slots
        numbers = batch_size + np.arange(20 * math.isqrt(batch_size) + 100)
        return int(numbers[scipy.stats.poisson.sf(numbers, batch_size) <= _MAX_OVERFLOW][0])

    def multipliers(self, num_clients: int) -> np.ndarray:
        """The noise multiplier of each client.

        Raises:
            InputError: There is another number of them.
        """
        given = np.asarray(self.noise_multiplier, float)
        if given.ndim and len(given) != num_clients:
            raise InputError(
                f"record_privacy: noise_multiplier has {len(given)} numbers for {num_clients} clients. Give one number "
                "per client, or one for all."
            )
        return np.broadcast_to(given, num_clients)


@validate_arguments
def record_epsilons(
    privacy: RecordPrivacy,
    batch_size: Count,
    num_examples: Sequence[int] | np.ndarray,
    steps: Sequence[int] | np.ndarray,
    delta: OpenFraction,
    accountant: Accountant = "auto",
) -> np.ndarray:
    """Compute the epsilon of each client, for adding or removing one of its examples.

    An example belongs to one client, so the epsilon of the federation is the largest of these. Which clients take part
    in which rounds counts as known.

    Args:
        privacy: The mechanism, with its noise multiplier.
        batch_size: B.
        num_examples: Training examples of each client.
        steps: Steps of each client over all rounds in which it took part.
        delta: The delta of the guarantee; below one over the largest number of examples.
        accountant: As in `epsilon`.

    Returns:
        [clients]; 0 for clients without steps.

    Raises:
        InputError: See `epsilon`; delta is too large, or there is not one noise multiplier per client.
    """
    _check_delta(delta, num_examples)
    noise = privacy.multipliers(len(num_examples))
    rows = list(zip(noise.tolist(), np.asarray(num_examples).tolist(), np.asarray(steps).tolist(), strict=True))
    known = {
        (z, count, total): _epsilon(privacy, batch_size, z, count, total, delta, accountant)
        for z, count, total in set(rows)
        if count and total
    }
    return np.array([known.get(row, 0.0) for row in rows])


@validate_arguments
def record_noise(
    privacy: RecordPrivacy,
    target_epsilon: Positive,
    batch_size: Count,
    num_examples: Sequence[int] | np.ndarray,
    steps: Sequence[int] | np.ndarray,
    delta: OpenFraction,
    accountant: Accountant = "auto",
) -> tuple[float, ...]:
    """Find the noise multiplier of each client whose epsilon is at most the target, within 0.05 percent below it.

    Args:
        privacy: The mechanism; its noise multiplier is not read.
        target_epsilon: The largest epsilon of a client.
        batch_size: B.
        num_examples: Training examples of each client.
        steps: Steps of each client, as in `record_epsilons`.
        delta: The delta of the guarantee.
        accountant: As in `epsilon`.

    Returns:
        A number per client; 0 for clients without steps.

    Raises:
        InputError: See `noise_multiplier`; or delta is too large.
    """
    _check_delta(delta, num_examples)
    rows = list(zip(np.asarray(num_examples).tolist(), np.asarray(steps).tolist(), strict=True))
    known: dict[tuple[int, int], float] = {}
    correction = 1.0
    for count, total in sorted(set(rows)):
        known[count, total] = 0.0
        if count and total:
            estimate = _estimate_noise(target_epsilon, min(1.0, batch_size / count), total, delta)

            def evaluate(z: float, count: int = count, total: int = total) -> float:
                return _epsilon(privacy, batch_size, z, count, total, delta, accountant)

            known[count, total] = _refine(evaluate, target_epsilon, correction * estimate)
            correction = known[count, total] / estimate
    return tuple(known[row] for row in rows)


def _epsilon(
    privacy: RecordPrivacy, batch_size: int, z: float, count: int, steps: int, delta: float, accountant: Accountant
) -> float:
    """The epsilon of a client with this noise multiplier and number of examples."""
    rate, slots = min(1.0, batch_size / count), privacy.num_slots(batch_size)
    if privacy.slots is None:
        found = epsilon(z, PoissonSampling(rate, unit="example"), steps, delta * (1 - _OVERFLOW_SHARE), accountant)
        # Without overflows, events have the probabilities of Poisson sampling, so these suffice for (found, delta).
        overflow = steps * float(scipy.stats.binom.sf(slots, count, rate))
        if overflow == 0 or found + math.log(2 * overflow) <= math.log(_OVERFLOW_SHARE * delta):
            return found
    return epsilon(z, PoissonSampling(rate, count, min(slots, count), "example"), steps, delta, accountant)


def _estimate_noise(target: float, rate: float, steps: int, delta: float) -> float:
    """The noise multiplier by the central limit theorem: Gaussian privacy mu = q sqrt(T (exp(z^-2) - 1))."""
    width = math.sqrt(2 * math.log(1 / delta))
    mu = math.sqrt(width**2 + 2 * target) - width
    return math.log1p(mu**2 / (rate**2 * steps)) ** -0.5


def _refine(evaluate: Callable[[float], float], target: float, guess: float) -> float:
    """Find z whose epsilon is just below the target, by secants in logarithms."""
    z, found, slope = guess, evaluate(guess), -1.5
    while not target * (1 - _TOLERANCE) <= found <= target:
        following = z * math.exp(min(max(math.log(target * (1 - _TOLERANCE / 2) / found) / slope, -0.7), 0.7))
        again = evaluate(following)
        slope = min(math.log(again / found) / math.log(following / z), -0.2)
        z, found = following, again
    return z


def _check_delta(delta: float, num_examples: Sequence[int] | np.ndarray) -> None:
    largest = int(np.max(num_examples, initial=0))
    if delta * largest >= 1:
        raise InputError(
            f"delta: {delta:g} allows the release of single examples of a client with {largest}. Set it below "
            f"{1 / largest:.2g}."
        )
