"""Rules that select clients by what they report: Power-of-Choice and active federated learning.

Random numbers are functions of the key and the client's id. Clients without training examples are never selected while
there are others.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het._internal.whole_data import mean_objective
from fedjax_het.algorithm import Measure
from fedjax_het.engine.round.participation._record import Known, Participation, Poll, Told, know_nothing, remember
from fedjax_het.errors import InputError
from fedjax_het.problem import Problem
from fedjax_het.types import Array, ClientView, Key, PyTree, Variables
from fedjax_het.validation import Count, CountOrZero, Fraction, FractionBelowOne, NonNegative, validate_arguments

CandidateWeighting = Literal["samples", "uniform"]
_ROUNDING = 1e-6  # so that .9 of 10 clients is 9 in float32
BATCH = 50  # examples per step of an evaluation; does not affect results


def draw_in_order(key: Key, logits: Array, place: Array | int = 0) -> Array:
    """Draw all clients one after the other without replacement, in proportion to exp(logits): their ids in this order.

    Clients with a smaller `place` precede all others. The Gumbel noise of a client follows from the key and its id.
    """
    noise = jax.vmap(lambda client: jax.random.gumbel(jax.random.fold_in(key, client)))(jnp.arange(len(logits)))
    return jnp.lexsort((-(logits + noise), jnp.broadcast_to(place, logits.shape)))


def largest_first(values: Array, is_allowed: Array) -> Array:
    """The places of values in descending order, in their order if equal, and then those that are not allowed."""
    return jnp.lexsort((-values, ~is_allowed))


def is_among_largest(values: Array, is_allowed: Array, count: Array | int) -> Array:
    """Whether a value is among the `count` largest allowed ones; of equal ones, those that come first."""
    return is_allowed & (jnp.argsort(largest_first(values, is_allowed)) < count)


def fixed_size(rule: Callable, cohort_size: int, candidates: int = 0) -> Callable[[int], int]:
    """The size of a rule that trains a fixed number of clients, perhaps of some candidates."""

    def size(num_clients: int) -> int:
        name = rule.__name__
        if not 1 <= cohort_size <= num_clients:
            raise InputError(
                f"{name}: cohort_size must be 1 to {num_clients}, the number of clients, not {cohort_size}."
            )
        if candidates and not cohort_size <= candidates <= num_clients:
            raise InputError(
                f"{name}: candidates must be {cohort_size}, the cohort size, to {num_clients}, the number of clients, "
                f"not {candidates}."
            )
        return cohort_size

    return size


def training_loss(problem: Problem, view: ClientView) -> Array:
    """The mean loss while a client trained, which costs nothing to measure."""
    return view.metrics["loss"]


def received_loss(problem: Problem, view: ClientView) -> Array:
    """The loss of the received model on all the client's training examples."""
    return mean_objective(problem, view, view.start, BATCH)


def select(
    rule: Callable,
    cohort_size: int,
    choose: Callable[[Key, int, Array, PyTree], Array],
    *,
    report: Measure = training_loss,
    init: Callable[[Array, Variables, Key], PyTree] = know_nothing,
    update: Callable[[PyTree, Told], PyTree] = remember,
) -> Participation:
    """A rule that chooses a fixed number of clients from its state.

    Args:
        rule: The factory of the rule, which messages name.
        cohort_size: The number of clients per round.
        choose: (key, number of clients, round, state) -> ids [cohort_size].
        report, init, update: See `Participation`.
    """

    def draw(key: Key, num_clients: int, number: Array, state: PyTree) -> tuple[Array, Array]:
        cohort = jnp.sort(choose(key, num_clients, number, state))
        return cohort, jnp.ones(cohort.shape, bool)

    return Participation(fixed_size(rule, cohort_size), draw, init=init, update=update, report=report)


# ---- Power-of-Choice -------------------------------------------------------------------------------------------------
def _candidates(key: Key, known: Known, count: int, weighting: CandidateWeighting) -> Array:
    """The candidates in the order in which they are drawn, without replacement."""
    weights = known.num_examples if weighting == "samples" else known.num_examples > 0
    return draw_in_order(key, jnp.log(weights.astype(float)))[:count]


@validate_arguments
def pow_d(cohort_size: CountOrZero, candidates: Count, weighting: CandidateWeighting = "samples") -> Participation:
    """Power-of-Choice: poll the losses of some candidates, and train the clients with the largest.

    d candidates are drawn without replacement with probabilities p_i. They receive the model, measure F_i on all their
    training examples, and send this number; the m largest train. The mean of the method is unweighted (fedavg with
    weighting="uniform").

    Cost: each round, d clients receive the model, make one pass forward over their examples, and send a number; m train
    and send an update. Client states and examples of d clients are read. With layouts that train clients side by side,
    the places of the others stay idle.

    Args:
        cohort_size: The number m of clients that train.
        candidates: The number d of candidates, from m (a draw by p_i) to all (the largest losses).
        weighting: The probabilities p_i: "samples", the shares of the examples (paper), or "uniform".

    Raises:
        InputError: When a round is built, if m or d is larger than the number of clients, or d is below m.

    References:
        Cho, Wang and Joshi, Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022.
        arXiv:2010.01243
    """
    sized = fixed_size(pow_d, cohort_size, candidates)

    def size(num_clients: int) -> int:
        sized(num_clients)
        return candidates

    def draw(key: Key, num_clients: int, number: Array, known: Known) -> tuple[Array, Array]:
        cohort = _candidates(key, known, candidates, weighting)  # equal losses are ordered by the draw
        return cohort, jnp.ones(cohort.shape, bool)

    def choose(known: Known, told: Told) -> tuple[Array, Known]:
        return is_among_largest(told.values, told.is_used, cohort_size), known

    return Participation(size, draw, mean_size=sized, init=know_nothing, poll=Poll(received_loss, choose))


@validate_arguments
def rpow_d(cohort_size: CountOrZero, candidates: Count, weighting: CandidateWeighting = "samples") -> Participation:
    """Power-of-Choice without polls: the last training losses stand for those of the candidates.

    d candidates are drawn without replacement with probabilities p_i; the m train that reported the largest mean loss
    when they last trained. Clients that have never reported come first, in the order of the draw.

    Cost: a number more per upload.

    Args:
        cohort_size: The number m of clients that train.
        candidates: The number d of candidates, from m to all.
        weighting: The probabilities p_i: "samples", the shares of the examples (paper), or "uniform".

    Raises:
        InputError: When a round is built, if m or d is larger than the number of clients, or d is below m.

    References:
        Cho, Wang and Joshi, AISTATS 2022. arXiv:2010.01243
    """

    def choose(key: Key, num_clients: int, number: Array, known: Known) -> Array:
        order = _candidates(key, known, candidates, weighting)
        losses = jnp.where(known.count > 0, known.value, jnp.inf)
        return order[largest_first(losses[order], known.num_examples[order] > 0)[:cohort_size]]

    return select(rpow_d, cohort_size, choose)._replace(size=fixed_size(rpow_d, cohort_size, candidates))


# ---- active federated learning ---------------------------------------------------------------------------------------
def count_by_value(cohort_size: int, uniform: float) -> int:
    """The number of clients that are drawn by their values."""
    return int((1 - uniform) * cohort_size + _ROUNDING)


def is_dropped(values: Array, is_known: Array, dropped: float) -> Array:
    """Whether the value of a client is among the floor(dropped N) smallest of N; of equal ones, the first are."""
    return is_among_largest(-values, is_known, jnp.floor(dropped * len(values) + _ROUNDING))


@validate_arguments
def active_fl(
    cohort_size: CountOrZero,
    dropped: FractionBelowOne = 0.75,
    sharpness: NonNegative = 0.01,
    uniform: Fraction = 0.1,
) -> Participation:
    """Active federated learning: sample clients by the values of their losses.

        v_i = sqrt(n_i) l_i,   l_i: the mean loss when client i last trained
        the floor(alpha1 N) smallest v_i are dropped; floor((1 - alpha3) m) clients are drawn without replacement in
        proportion to exp(alpha2 v_i) from the others, and the rest uniformly from all that are not drawn yet

    Clients that have never reported have the largest value, so that all are explored first. If too few clients remain
    for the first draw, it continues uniformly among those dropped.

    Cost: a number more per upload.

    Args:
        cohort_size: The number m of clients per round.
        dropped: The paper's α1 (default .75).
        sharpness: The paper's α2 (default .01).
        uniform: The paper's α3 (default .1), the share of clients that are drawn uniformly.

    Raises:
        InputError: A number is out of range, or, when a round is built, m is larger than the number of clients.

    References:
        Goetz et al., Active Federated Learning, 2019. arXiv:1909.12641
    """

    def choose(key: Key, num_clients: int, number: Array, known: Known) -> Array:
        by_value, evenly = jax.random.split(key)
        has_examples, is_known = known.num_examples > 0, known.count > 0
        values = jnp.sqrt(known.num_examples) * known.value
        is_low = is_dropped(values, is_known, dropped)
        place = jnp.where(has_examples, jnp.where(is_known, 1 + is_low, 0), 3)
        num_by_value = count_by_value(cohort_size, uniform)
        logits = jnp.where(is_known & ~is_low, sharpness * values, 0)
        first = draw_in_order(by_value, logits, place)[:num_by_value]
        place = jnp.where(has_examples, 0, 1).at[first].set(2)
        rest = draw_in_order(evenly, jnp.zeros(num_clients), place)
        return jnp.concatenate([first, rest[: cohort_size - num_by_value]])

    return select(active_fl, cohort_size, choose)
