"""Schedules of the local learning rate: functions of the round, from 0, to the factor that multiplies it.

Any optax schedule that begins with 1 is one: `sgd(0.1, learning_rate_schedule=optax.cosine_decay_schedule(1.0, 100))`.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from fedjax_het.annotations import RunSetting
from fedjax_het.errors import InputError
from fedjax_het.types import Array, ClientView
from fedjax_het.validation import Count, CountOrZero, NonNegative, Positive, validate_arguments

Schedule = optax.Schedule
_CHECKED_ROUNDS = 1024


def rate(learning_rate: float, schedule: Schedule | None, view: ClientView) -> float | Array:
    """The client's learning rate in this round."""
    return learning_rate if schedule is None else jnp.multiply(learning_rate, schedule(view.received.round))


def published_factor(name: str) -> Callable[[ClientView], Array]:
    """The number `published[name]`, as the `factor` of `local_updates.sgd`."""
    return lambda view: view.received.published[name]


def check_schedule(schedule: Schedule | None) -> None:
    """Raise InputError if one of the first 1,024 values of a schedule is not a finite number of at least 0."""
    if schedule is None:
        return
    with jax.ensure_compile_time_eval():
        factors = jax.vmap(schedule)(jnp.arange(_CHECKED_ROUNDS))
    if isinstance(factors, jax.core.Tracer):
        return
    is_wrong = ~(np.isfinite(factors) & (np.asarray(factors) >= 0))
    if is_wrong.any():
        round = int(np.argmax(is_wrong.reshape(_CHECKED_ROUNDS, -1).any(axis=1)))
        raise InputError(
            "learning_rate_schedule: expected finite numbers of at least 0, got "
            f"{np.asarray(factors)[round]} in round {round}."
        )


def constant() -> None:
    """Use the same learning rate in all rounds."""


@validate_arguments
def steps(milestones: Sequence[Count], factor: NonNegative = 0.1) -> Schedule:
    """Multiply by `factor` at each milestone, like PyTorch's MultiStepLR with one epoch per round.

    FedRD and FedGA: a tenth after 80 % of the rounds, steps((32,)) for 40 rounds.

    Args:
        milestones: Rounds in ascending order.
        factor: Factor that is applied at each milestone.

    Raises:
        InputError: Rounds below 1 or not in ascending order, or a negative factor.
    """
    if len(milestones) == 0 or list(milestones) != sorted(set(milestones)):
        raise InputError(f"milestones: expected rounds of at least 1 in ascending order, got {tuple(milestones)}.")
    return optax.piecewise_constant_schedule(1.0, dict.fromkeys(milestones, factor))


@validate_arguments
def exponential(factor: Positive = 0.99, every: Count = 1) -> Schedule:
    """factor^floor(round / every).

    Args:
        factor: Base of the power, above 0.
        every: Number of rounds between two changes.

    Raises:
        InputError: A number is out of range.
    """
    return optax.exponential_decay(1.0, every, factor, staircase=True)


@validate_arguments
def cosine(rounds: Annotated[Count, RunSetting("rounds")], final: NonNegative = 0.0) -> Schedule:
    """Decay from 1 to `final` over `rounds` rounds: final + (1 - final) (1 + cos(pi round / rounds)) / 2; then `final`.

    Args:
        rounds: Number of rounds of the decay; in a config, the rounds of the run by default.
        final: The last factor.

    Raises:
        InputError: Rounds below 1, or a negative `final`.
    """
    return optax.cosine_decay_schedule(1.0, rounds, alpha=final)


@validate_arguments
def warm_up(rounds: Count = 5, first: NonNegative = 0.0) -> Schedule:
    """Increase from `first` to 1 over `rounds` rounds: first + (1 - first) round / rounds; then 1.

    warm_up(5) is the schedule of FedLD's released code, regardless of its flag; in round 0, the model does not change.

    Args:
        rounds: Number of rounds until the factor is 1.
        first: The factor of round 0.

    Raises:
        InputError: Rounds below 1, or a negative `first`.
    """
    return lambda round: first + (1 - first) * jnp.minimum(round / rounds, 1.0)


@validate_arguments
def cyclic(start: CountOrZero, period: Count = 10, final: NonNegative = 0.01) -> Schedule:
    """From round `start`, decrease repeatedly to `final`.

        1 - t (1 - final),   t = (round mod period + 1) / period

    Use it with `with_model_average` (SWA); cycles begin at multiples of the period.

    Args:
        start: Round of the first cycle. The factor is 1 before.
        period: Number of rounds per cycle. 1 gives the factor 1 throughout, as in FedASAM's code.
        final: Last factor of a cycle (FedASAM: 1e-4 for a rate of .01).

    Raises:
        InputError: A number is out of range.
    """

    def factor(round: ArrayLike) -> Array:
        round = jnp.asarray(round)
        share = (round % period + 1) / period
        return jnp.where((round >= start) & (period > 1), 1 - share * (1 - final), 1.0)

    return factor


SCHEDULES = {
    "constant": constant,
    "steps": steps,
    "exponential": exponential,
    "cosine": cosine,
    "warm_up": warm_up,
    "cyclic": cyclic,
}
