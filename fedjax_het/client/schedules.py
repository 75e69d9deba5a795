"""Schedules of the local learning rate: functions of the round, from 0, to the factor that multiplies it.

Any optax schedule that begins with 1 is one: `sgd(0.1, learning_rate_schedule=optax.cosine_decay_schedule(1.0, 100))`.
"""

from collections.abc import Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from fedjax_het.algorithm import OfRun
from fedjax_het.errors import InputError
from fedjax_het.types import Array, ClientView
from fedjax_het.validation import Count, CountOrZero, NonNegative, Positive, validate_arguments

Schedule = optax.Schedule
_CHECKED_ROUNDS = 1024


def rate(learning_rate: float, schedule: Schedule | None, view: ClientView) -> float | Array:
    """The learning rate of this client's round."""
    return learning_rate if schedule is None else jnp.multiply(learning_rate, schedule(view.received.round))


def check_schedule(schedule: Schedule | None) -> None:
    """Raise InputError for a schedule of which one of the first 1,024 values is no finite number of at least 0."""
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
            "learning_rate_schedule: must give finite numbers of at least 0, not "
            f"{np.asarray(factors)[round]} in round {round}."
        )


def constant() -> None:
    """The same rate in all rounds."""


@validate_arguments
def steps(at: Sequence[Count], factor: NonNegative = 0.1) -> Schedule:
    """Multiplied by `factor` once more from each round in `at` on; PyTorch's MultiStepLR, one epoch per round.

    FedRD and FedGA: a tenth after 80 % of the rounds, steps((32,)) of 40.

    Args:
        at: Rounds, each later than the one before.
        factor: What each of them multiplies the rate by.

    Raises:
        InputError: Rounds below 1 or not in ascending order, or a negative factor.
    """
    if len(at) == 0 or list(at) != sorted(set(at)):
        raise InputError(f"at: rounds of 1 and more, each later than the one before, not {tuple(at)}.")
    return optax.piecewise_constant_schedule(1.0, dict.fromkeys(at, factor))


@validate_arguments
def exponential(factor: Positive = 0.99, every: Count = 1) -> Schedule:
    """factor^floor(round / every).

    Args:
        factor: Above 0.
        every: Rounds between two changes.

    Raises:
        InputError: A number is out of range.
    """
    return optax.exponential_decay(1.0, every, factor, staircase=True)


@validate_arguments
def cosine(rounds: Annotated[Count, OfRun("rounds")], final: NonNegative = 0.0) -> Schedule:
    """From 1 to `final` in so many rounds: final + (1 - final) (1 + cos(pi round / rounds)) / 2; `final` after them.

    Args:
        rounds: Their number; in a config that of the run unless it sets another.
        final: The last factor.

    Raises:
        InputError: Rounds below 1, or a negative `final`.
    """
    return optax.cosine_decay_schedule(1.0, rounds, alpha=final)


@validate_arguments
def warm_up(rounds: Count = 5, first: NonNegative = 0.0) -> Schedule:
    """From `first` to 1 in so many rounds: first + (1 - first) round / rounds; 1 after them.

    warm_up(5) is what FedLD's released code does, whatever its flag says; in its round 0 nothing moves.

    Args:
        rounds: Their number until the factor is 1.
        first: The factor of round 0.

    Raises:
        InputError: Rounds below 1, or a negative `first`.
    """
    return lambda round: first + (1 - first) * jnp.minimum(round / rounds, 1.0)


@validate_arguments
def cyclic(start: CountOrZero, period: Count = 10, final: NonNegative = 0.01) -> Schedule:
    """From round `start` on, down to `final` again and again.

        1 - t (1 - final),   t = (round mod period + 1) / period

    The rates between which `with_model_average` takes models (SWA); cycles begin at multiples of the period.

    Args:
        start: The first round with a cycle; before it the factor is 1.
        period: Rounds per cycle; 1 is the factor 1 throughout, as in FedASAM's code.
        final: The last factor of a cycle: FedASAM's 1e-4 of a rate of .01.

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
