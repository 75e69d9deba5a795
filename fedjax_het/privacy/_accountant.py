"""The accountant: epsilon from the noise multiplier, and the noise multiplier from epsilon."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
Unit = Literal["client", "example"]
_INTERVAL = 1e-4  # of the grid of privacy losses; a coarser one gives a larger epsilon, never a smaller one
_STEP_INTERVAL = 1e-3  # the same for steps on examples, for which there is an epsilon of every client
_LARGEST_EPSILON = 1e5  # beyond it the accountants run out of memory, and there is no protection
_MIN_MULTIPLIER, _MAX_MULTIPLIER, _FIRST_GUESS, _TOLERANCE = 0.1, 1e6, 2.0, 1e-6  # of the search for a multiplier


@dataclass(frozen=True)
class PoissonSampling:
    """Each client takes part in a round with the same probability, independently of the others.

    With unit="example", it is the sampling of a client's examples for a step, and the rounds of the accountant are
    steps.

    Args:
        probability: q. 1: all clients in every round.
        num_clients: N; only with `slots`.
        slots: The number of slots per round; if more clients are drawn, a random subset is left out (default None, as
            many slots as clients).
        unit: What is protected: a "client", or an "example" of a client.

    Raises:
        InputError: A number is out of range, or only one of `num_clients` and `slots` is given.
    """

    probability: PositiveFraction
    num_clients: Count | None = None
    slots: Count | None = None
    unit: Unit = "client"

    def __post_init__(self):
        check_constraints(constraints(PoissonSampling), vars(self))
        if (self.slots is None) != (self.num_clients is None):
            raise InputError("num_clients: give it together with slots, or neither of them.")

    @property
    def is_truncated(self) -> bool:
        """Whether clients can be left out because all slots are taken."""
        return self.slots is not None and self.num_clients is not None and self.slots < self.num_clients

    @property
    def neighbors(self) -> str:
        return f"add or remove one {self.unit}"

    def __str__(self) -> str:
        slots = f", {self.slots} places" if self.is_truncated else ""
        return f"Poisson sampling (q = {self.probability:g}{slots})"


@dataclass(frozen=True)
class FixedSizeSampling:
    """A fixed number of clients, sampled without replacement in every round.

    The guarantee is for replacing one client by another, which changes a sum of updates by up to 2 C. It is much
    weaker than with Poisson sampling.

    Args:
        num_clients: N.
        cohort_size: The number of clients per round, at most N.

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
    """Noise added by the clients: each message is private against an observer who knows its sender.

    The cohort is then public, so sampling does not amplify privacy, and a client may take part in every round.
    """

    @property
    def neighbors(self) -> str:
        return "replace one client's data"

    def __str__(self) -> str:
        return "noise at the clients, each message separately"


Sampling = PoissonSampling | FixedSizeSampling | LocalNoise


@validate_arguments
def epsilon(
    noise_multiplier: NonNegative,
    sampling: Sampling,
    rounds: CountOrZero,
    delta: OpenFraction,
    accountant: Accountant = "auto",
) -> float:
    """Compute the epsilon of a number of rounds.

    Args:
        noise_multiplier: z, the standard deviation of the noise on the sum of updates divided by their bound C; for
            noise at clients, of the noise on each update.
        sampling: The sampling of clients.
        rounds: The number of rounds.
        delta: The delta of the guarantee; well below one over the number of clients.
        accountant: "pld" (privacy loss distributions), "rdp" (Rényi), or "auto", the tightest available.

    Returns:
        An upper bound on epsilon; infinity without noise.

    Raises:
        InputError: dp-accounting is missing or does not support this sampling, or epsilon exceeds 10^5.
    """
    if noise_multiplier == 0 or rounds == 0:
        return 0.0 if rounds == 0 else float("inf")
    found = _epsilon(float(noise_multiplier), sampling, rounds, delta, resolve_accountant(sampling, accountant))
    if found > _LARGEST_EPSILON:
        raise InputError(
            f"noise_multiplier: {noise_multiplier:g} over {rounds} rounds gives an epsilon above "
            f"{_LARGEST_EPSILON:g}, which gives no protection and is too large for the accountant. Raise it, "
            "or train for fewer rounds."
        )
    return found


@validate_arguments
def noise_multiplier(
    epsilon: Positive, sampling: Sampling, rounds: Count, delta: OpenFraction, accountant: Accountant = "auto"
) -> float:
    """Find the smallest noise multiplier for which a number of rounds stays within epsilon.

    Args:
        epsilon: The epsilon of the guarantee.
        sampling: The sampling of clients.
        rounds: The number of rounds.
        delta: The delta of the guarantee.
        accountant: As in `epsilon`.

    Returns:
        z, to 1e-6.

    Raises:
        InputError: dp-accounting is missing or does not support this sampling, or the smallest z is not between
            0.1 and 10^6.
    """
    kind = resolve_accountant(sampling, accountant)
    accounting = _import_accounting()

    def exceeds(z: float) -> bool:
        return _epsilon(z, sampling, rounds, delta, kind) > epsilon

    # The bracket search starts in the middle because accountants are slow for small z.
    high = _FIRST_GUESS
    while exceeds(high):
        high *= 2
        if high > _MAX_MULTIPLIER:
            raise InputError(
                f"epsilon: {epsilon:g} needs a noise_multiplier above {_MAX_MULTIPLIER:g}. Ask for a larger epsilon."
            )
    while not exceeds(high / 2):
        high /= 2
        if high < _MIN_MULTIPLIER:
            raise InputError(
                f"epsilon: {epsilon:g} needs a noise_multiplier below {_MIN_MULTIPLIER:g}, which gives no protection. "
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
    """The accountant used for a sampling rule.

    Raises:
        InputError: The accountant does not support the sampling.
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
    """Epsilon; infinity if it is too large, which the fast Rényi accountant detects."""
    estimate = 0.0
    if kind == "pld":
        is_poisson = isinstance(sampling, PoissonSampling)
        plain = replace(sampling, num_clients=None, slots=None) if is_poisson else sampling
        estimate = _epsilon(noise_multiplier, plain, rounds, delta, "rdp")
        if estimate > _LARGEST_EPSILON:
            return float("inf")
    with _silenced():
        accountant = _make_accountant(sampling, kind, estimate)
        accountant.compose(_make_event(sampling, noise_multiplier, kind), rounds)
        return float(accountant.get_epsilon(delta))


def _make_accountant(sampling: Sampling, kind: str, epsilon: float) -> Any:
    """An accountant for an epsilon of this size; above 11, a coarser grid of privacy losses saves minutes."""
    accounting = _import_accounting()
    relation, unit = accounting.NeighboringRelation.REPLACE_ONE, "client"
    if isinstance(sampling, PoissonSampling):
        relation, unit = accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, sampling.unit
    if kind == "rdp":
        return accounting.rdp.RdpAccountant(neighboring_relation=relation)
    interval = _INTERVAL * min(max(1.0, epsilon - 10), 1e3)
    if unit == "example":
        interval = _STEP_INTERVAL * min(max(1.0, epsilon / 20), 1e2)
    return accounting.pld.PLDAccountant(relation, value_discretization_interval=interval)


def _make_event(sampling: Sampling, noise_multiplier: float, kind: str) -> Any:
    """One round. For replacement neighbors, z is in units of the sensitivity 2 C for the RDP accountant, C for PLD."""
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
    """Silence the accountant's warnings about skipped Rényi orders."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
