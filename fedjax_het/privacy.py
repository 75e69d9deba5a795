"""Privacy accounting: the epsilon of a training from its noise, and the noise from an epsilon.

Privacy is that of a whole client: (epsilon, delta) bounds how well anybody who sees all models of a training can tell
it from one in which one client is another, or is not there. Nothing here runs on a device. The accountant is
dp-accounting, of the extra `privacy`, which is imported when it is first needed.

    epsilon(3.0, PoissonSampling(0.1), rounds=512, delta=1e-6)                  # 3.77
    noise_multiplier(2.0, PoissonSampling(1e-3), rounds=1500, delta=1e-6)       # 0.616
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal

from fedjax_het.errors import InputError
from fedjax_het.validation import (
    Count,
    CountOrZero,
    NonNegative,
    OpenFraction,
    Positive,
    PositiveFraction,
    check_constraints,
    constraints,
    validate_arguments,
)

Accountant = Literal["auto", "pld", "rdp"]
_INTERVAL = 1e-4  # of the grid of privacy losses; a coarser one gives a larger epsilon, never a smaller one
_LARGEST_EPSILON = 1e5  # beyond it the accountants run out of memory, and nobody is protected
_LEAST_MULTIPLIER, _LARGEST_MULTIPLIER, _FIRST_GUESS, _TOLERANCE = 0.1, 1e6, 2.0, 1e-6  # of the search for a multiplier


@dataclass(frozen=True)
class PoissonSampling:
    """Every client takes part in a round with the same probability, independently of the others.

    Args:
        probability: q; 1 is everyone in every round.
        num_clients: N; needed with `slots` alone.
        slots: The number of places of a round; of more clients that were drawn, some are left out at random. None is
            as many as there are clients.

    Raises:
        InputError: A number is out of range, or one of `num_clients` and `slots` is given without the other.
    """

    probability: PositiveFraction
    num_clients: Count | None = None
    slots: Count | None = None

    def __post_init__(self):
        check_constraints(constraints(PoissonSampling), vars(self))
        if (self.slots is None) != (self.num_clients is None):
            raise InputError("num_clients: give it together with slots, or neither of them.")

    @property
    def is_truncated(self) -> bool:
        """Whether a client can be left out because the round is full."""
        return self.slots is not None and self.num_clients is not None and self.slots < self.num_clients

    @property
    def neighbors(self) -> str:
        return "add or remove one client"

    def __str__(self) -> str:
        slots = f", {self.slots} places" if self.is_truncated else ""
        return f"Poisson sampling (q = {self.probability:g}{slots})"


@dataclass(frozen=True)
class FixedSizeSampling:
    """A fixed number of clients, drawn without replacement in every round.

    Its guarantee is for replacing one client by another, which moves a sum of updates by up to 2 C, and is much weaker
    than that of Poisson sampling.

    Args:
        num_clients: N.
        cohort_size: The number of clients of a round, at most N.

    Raises:
        InputError: A number is out of range.
    """

    num_clients: Count
    cohort_size: Count

    def __post_init__(self):
        check_constraints(constraints(FixedSizeSampling), vars(self))
        if self.cohort_size > self.num_clients:
            raise InputError(f"cohort_size: must be at most num_clients, {self.num_clients}, not {self.cohort_size}.")

    @property
    def neighbors(self) -> str:
        return "replace one client"

    def __str__(self) -> str:
        return f"a fixed {self.cohort_size} of {self.num_clients} clients"


@dataclass(frozen=True)
class LocalNoise:
    """Noise at the clients: each message by itself, seen by somebody who knows whose it is.

    Who takes part is no secret then, so that sampling protects nobody, and a client may take part in every round.
    """

    @property
    def neighbors(self) -> str:
        return "replace one client's data"

    def __str__(self) -> str:
        return "noise at the clients, each message by itself"


Sampling = PoissonSampling | FixedSizeSampling | LocalNoise


@validate_arguments
def epsilon(
    noise_multiplier: NonNegative,
    sampling: Sampling,
    rounds: CountOrZero,
    delta: OpenFraction,
    accountant: Accountant = "auto",
) -> float:
    """Compute the epsilon of some rounds.

    Args:
        noise_multiplier: z, the standard deviation of the noise on the sum of updates over their bound C; of noise at
            clients, that on each update.
        sampling: How clients are drawn.
        rounds: The number of rounds.
        delta: Of the guarantee; well below one over the number of clients.
        accountant: "pld" (privacy loss distributions), "rdp" (Rényi), or "auto", the tighter that there is.

    Returns:
        An upper bound; infinity without noise.

    Raises:
        InputError: dp-accounting is missing, it has no such bound for this sampling, or epsilon exceeds 10^5.
    """
    if noise_multiplier == 0 or rounds == 0:
        return 0.0 if rounds == 0 else float("inf")
    found = _epsilon(float(noise_multiplier), sampling, rounds, delta, resolve_accountant(sampling, accountant))
    if found > _LARGEST_EPSILON:
        raise InputError(
            f"noise_multiplier: {noise_multiplier:g} over {rounds} rounds gives an epsilon above "
            f"{_LARGEST_EPSILON:g}, which protects nobody and is out of reach of the accountant. Raise it, or "
            "train for fewer rounds."
        )
    return found


@validate_arguments
def noise_multiplier(
    epsilon: Positive, sampling: Sampling, rounds: Count, delta: OpenFraction, accountant: Accountant = "auto"
) -> float:
    """Find the least noise multiplier with which some rounds stay within epsilon.

    Args:
        epsilon: Of the guarantee.
        sampling: How clients are drawn.
        rounds: The number of rounds.
        delta: Of the guarantee.
        accountant: As in `epsilon`.

    Returns:
        z, to 1e-6.

    Raises:
        InputError: dp-accounting is missing, has no such bound for this sampling, or the least z is not between
            0.1 and 10^6.
    """
    kind = resolve_accountant(sampling, accountant)
    accounting = _import_accounting()

    def exceeds(z: float) -> bool:
        return _epsilon(z, sampling, rounds, delta, kind) > epsilon

    # The bracket is sought from the middle: for small z the accountants take long.
    high = _FIRST_GUESS
    while exceeds(high):
        high *= 2
        if high > _LARGEST_MULTIPLIER:
            raise InputError(
                f"epsilon: {epsilon:g} needs a noise_multiplier above {_LARGEST_MULTIPLIER:g}. "
                "Ask for a larger epsilon."
            )
    while not exceeds(high / 2):
        high /= 2
        if high < _LEAST_MULTIPLIER:
            raise InputError(
                f"epsilon: {epsilon:g} needs a noise_multiplier below {_LEAST_MULTIPLIER:g}, which protects nobody. "
                "Ask for a smaller epsilon, or set noise_multiplier itself."
            )
    with _silenced():
        found = accounting.calibrate_dp_mechanism(
            lambda: _make_accountant(sampling, kind, epsilon),
            lambda z: accounting.SelfComposedDpEvent(_make_event(sampling, z, kind), rounds),
            epsilon,
            delta,
            accounting.ExplicitBracketInterval(high / 2, high),
            tol=_TOLERANCE,
        )
    return float(found)


def resolve_accountant(sampling: Sampling, accountant: Accountant) -> Literal["pld", "rdp"]:
    """The accountant that is used for a sampling.

    Raises:
        InputError: There is no such bound for it.
    """
    if isinstance(sampling, FixedSizeSampling):
        if accountant == "pld":
            raise InputError(
                "accountant: 'pld' has no bound for cohorts of a fixed size; 'rdp' has. Or draw clients by Poisson "
                "sampling."
            )
        return "rdp"
    if accountant == "rdp" and isinstance(sampling, PoissonSampling) and sampling.is_truncated:
        raise InputError(
            "accountant: 'rdp' has no bound for Poisson sampling into a fixed number of places; 'pld' has. Or give "
            "every client a place."
        )
    return "pld" if accountant == "auto" else accountant


@lru_cache(maxsize=1024)
def _epsilon(noise_multiplier: float, sampling: Sampling, rounds: int, delta: float, kind: str) -> float:
    """Epsilon; infinity where it is out of reach, as Rényi's epsilon tells in milliseconds."""
    estimate = 0.0
    if kind == "pld":
        plain = PoissonSampling(sampling.probability) if isinstance(sampling, PoissonSampling) else sampling
        estimate = _epsilon(noise_multiplier, plain, rounds, delta, "rdp")
        if estimate > _LARGEST_EPSILON:
            return float("inf")
    with _silenced():
        accountant = _make_accountant(sampling, kind, estimate)
        accountant.compose(_make_event(sampling, noise_multiplier, kind), rounds)
        return float(accountant.get_epsilon(delta))


def _make_accountant(sampling: Sampling, kind: str, epsilon: float) -> Any:
    """An accountant for an epsilon of this size; above 11 a coarser grid of privacy losses saves minutes."""
    accounting = _import_accounting()
    is_added = isinstance(sampling, PoissonSampling)
    relation = accounting.NeighboringRelation
    relation = relation.ADD_OR_REMOVE_ONE if is_added else relation.REPLACE_ONE
    if kind == "rdp":
        return accounting.rdp.RdpAccountant(neighboring_relation=relation)
    interval = _INTERVAL * min(max(1.0, epsilon - 10), 1e3)
    return accounting.pld.PLDAccountant(relation, value_discretization_interval=interval)


def _make_event(sampling: Sampling, noise_multiplier: float, kind: str) -> Any:
    """One round. Of neighbors by replacement, the RDP accountant takes z in units of the sensitivity 2 C; PLD in C."""
    accounting = _import_accounting()
    if isinstance(sampling, FixedSizeSampling):
        halved = accounting.GaussianDpEvent(noise_multiplier / 2)
        return accounting.SampledWithoutReplacementDpEvent(sampling.num_clients, sampling.cohort_size, halved)
    if isinstance(sampling, LocalNoise):
        return accounting.GaussianDpEvent(noise_multiplier / 2 if kind == "rdp" else noise_multiplier)
    if sampling.is_truncated:
        return accounting.dp_event.TruncatedSubsampledGaussianDpEvent(
            sampling.num_clients, sampling.probability, sampling.slots, noise_multiplier
        )
    return accounting.PoissonSampledDpEvent(sampling.probability, accounting.GaussianDpEvent(noise_multiplier))


def _import_accounting() -> ModuleType:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise InputError(
            "privacy: epsilon is computed by dp-accounting, which is not installed. Install it: pip install "
            "'fedjax-het[privacy]'."
        ) from error
    return dp_accounting


@contextmanager
def _silenced() -> Iterator[None]:
    """Silence the accountant's warnings about Rényi orders that it leaves out."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
