"""How the local learning rate changes from round to round: functions of the round, from 0, to what multiplies it.

Any optax schedule that begins with 1 is one: `sgd(0.1, learning_rate_schedule=optax.cosine_decay_schedule(1.0, 100))`.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import jax.numpy as jnp
import optax

from fedjax_het.algorithm import OfRun
from fedjax_het.errors import InputError
from fedjax_het.types import Array, ClientView

Schedule = Callable[[Array], Array]


def rate(learning_rate: float, schedule: Schedule | None, view: ClientView) -> float | Array:
    """The learning rate of this client's round."""
    return learning_rate if schedule is None else learning_rate * schedule(view.received.round)


def constant() -> None:
    """The same rate in all rounds."""


def steps(at: Sequence[int], factor: float = 0.1) -> Schedule:
    """Multiplied by `factor` once more from each round in `at` on; PyTorch's MultiStepLR, a round an epoch.

    FedRD and FedGA: a tenth after 80 % of the rounds, steps((32,)) of 40.
    Raises InputError for rounds below 1 or not in ascending order, and a negative factor.
    """
    if not at or min(at) < 1 or list(at) != sorted(set(at)):
        raise InputError(f"at: rounds of 1 and more, each later than the one before, not {tuple(at)}.")
    _check_least("factor", factor, 0)
    return optax.piecewise_constant_schedule(1.0, dict.fromkeys(at, factor))


def exponential(factor: float = 0.99, every: int = 1) -> Schedule:
    """factor^floor(round / every).   Raises InputError for a factor that is not above 0, and `every` below 1."""
    _check_least("every", every, 1)
    if isinstance(factor, int | float) and not factor > 0:
        raise InputError(f"factor: must be above 0, not {factor}.")
    return optax.exponential_decay(1.0, every, factor, staircase=True)


def cosine(rounds: Annotated[int, OfRun("rounds")], final: float = 0.0) -> Schedule:
    """From 1 to `final` in so many rounds: final + (1 - final) (1 + cos(pi round / rounds)) / 2; `final` after them.

    In a config `rounds` are those of the run unless it sets others.
    Raises InputError for rounds below 1 and a negative `final`.
    """
    _check_least("rounds", rounds, 1)
    _check_least("final", final, 0)
    return optax.cosine_decay_schedule(1.0, rounds, alpha=final)


def warm_up(rounds: int = 5, first: float = 0.0) -> Schedule:
    """From `first` to 1 in so many rounds: first + (1 - first) round / rounds; 1 after them.

    warm_up(5) is what FedLD's released code does, whatever its flag says; in its round 0 nothing moves.
    Raises InputError for rounds below 1 and a negative `first`.
    """
    _check_least("rounds", rounds, 1)
    _check_least("first", first, 0)
    return lambda round: first + (1 - first) * jnp.minimum(round / rounds, 1.0)


def _check_least(name: str, value: float, least: float) -> None:
    if isinstance(value, int | float) and not least <= value < float("inf"):
        raise InputError(f"{name}: must be {least} or more, not {value}.")


SCHEDULES = {"constant": constant, "steps": steps, "exponential": exponential, "cosine": cosine, "warm_up": warm_up}
