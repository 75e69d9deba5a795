"""Opening rounds, see `Algorithm.survey_first`: all clients answer the survey once, block by block; nobody trains."""

import jax.numpy as jnp

from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.round.client_step import CohortMember
from fedjax_het.engine.round.participation import Participation
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key, PyTree


def count_opening_rounds(algorithm: Algorithm, participation: Participation, num_clients: int) -> int:
    """The number of rounds in which all clients answer the survey, with as many clients per round as later."""
    return -(-num_clients // participation.size(num_clients)) if algorithm.survey_first else 0


def check_opening(algorithm: Algorithm, participation: Participation) -> None:
    """Raise InputError if all clients cannot answer the survey before the first training."""
    if algorithm.survey_first and not algorithm.survey:
        raise InputError("survey_first: the algorithm has no survey. Leave it out.")
    if algorithm.survey_first and participation.poll:
        raise InputError(
            "participation: this rule polls clients, and the algorithm surveys all clients in rounds without training. "
            "Choose a rule without a poll."
        )


def check_rounds(algorithm: Algorithm, participation: Participation, num_clients: int, rounds: int) -> None:
    """Raise InputError for a run that ends before the first training."""
    if (num_opening := count_opening_rounds(algorithm, participation, num_clients)) >= rounds:
        raise InputError(
            f"survey_first: all clients are surveyed in the first {num_opening} rounds, and the run has {rounds}. "
            "Raise rounds or cohort_size, or leave it out."
        )


def with_opening(participation: Participation, num_opening: int) -> Participation:
    """The same rule after rounds in which all clients, in their order, are the cohorts."""
    if not num_opening:
        return participation

    def draw(key: Key, num_clients: int, number: Array, *known: PyTree) -> tuple[Array, Array]:
        drawn, is_available = participation.draw(key, num_clients, number, *known)
        size = participation.size(num_clients)
        first = number * size
        block = jnp.minimum(first, num_clients - size) + jnp.arange(size)  # the last block begins among those before it
        is_opening = number < num_opening
        return jnp.where(is_opening, block, drawn), jnp.where(is_opening, block >= first, is_available)

    return participation._replace(draw=draw, depends_on_round=True)


def keep_members(members: CohortMember, is_kept: Array) -> CohortMember:
    """The members of a cohort, or, unless they are kept, as many without examples."""
    train, valid = (part._replace(count=jnp.where(is_kept, part.count, 0)) for part in members.rows)
    return members._replace(rows=(train, valid), is_here=jnp.logical_and(members.is_here, is_kept))
