"""Oort: select clients by statistical utility, speed and age."""

from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.engine.round.participation._record import Known, Participation, Told, know_nothing, remember
from fedjax_het.engine.round.participation._selection import BATCH, draw_in_order, is_among_largest, select
from fedjax_het.labels import example_losses, mean_per_example
from fedjax_het.problem import Problem
from fedjax_het.types import Array, Batch, ClientView, Key, Variables
from fedjax_het.validation import Count, CountOrZero, Fraction, NonNegative, PositiveFraction, Range, validate_arguments

Percentile = Annotated[float, Range(0, 100)]
ClipOver = Literal["tried", "all"]
_SMALL = 1e-4  # of the authors' code: the smallest range of utilities, and the weight of an empty mean
_ROUNDING = 1e-6
_CUT_OFF_PLACES = 10  # utilities below the cut-off are kept up to so many times the number of places


class Pace(NamedTuple):
    """The state of `oort`."""

    known: Known
    threshold: Float[Array, ""]  # percentile of the preferred duration
    utilities: Float[Array, "rounds"]  # of the exploited clients in the last rounds, the newest last


class Settings(NamedTuple):
    """The arguments of `oort`."""

    cohort_size: int
    exploration: float
    decay: float
    smallest: float
    penalty: float
    pacer_step: int
    pacer_delta: float
    clip: float
    clip_over: ClipOver
    cut_off: float
    window: float
    max_rounds: int | None
    blacklist: float


class Plan(NamedTuple):
    """The probabilities and numbers of a round's selection."""

    scores: Float[Array, "clients"]  # 0 for clients that were never tried
    exploit: Float[Array, "clients"]  # proportional to the probability of a draw, 0 for those that cannot be drawn
    explore: Float[Array, "clients"]
    num_exploit: Int[Array, ""]
    num_explore: Int[Array, ""]
    preferred: Float[Array, ""]  # T, infinity without durations
    clip: Float[Array, ""]


def statistical_utility(problem: Problem, view: ClientView) -> Array:
    """n_i sqrt(1/n_i sum_j l_j^2) over the client's training examples, at the received model."""
    params, state = tree.split_params(view.start)
    rows = view.data.train

    def add(total: Array, batch: Batch, number: Array) -> Array:
        key = jax.random.fold_in(make_key(0), number)
        logits = problem.forward(params, state, batch, view, key, is_training=False).outputs.logits
        losses = mean_per_example(example_losses(logits, batch.labels), batch.labels)
        return total + jnp.sum(jnp.where(batch.mask > 0, jnp.square(losses), 0).astype(total.dtype))

    total = problem.fold(view.data, rows, BATCH, add, jnp.zeros((), float))
    return root_of_squares(jnp.asarray(rows.count), total)


def root_of_squares(count: Array | int, total: Array) -> Array:
    """The utility n sqrt(total / n) of n examples, whose squared losses sum to `total`."""
    return jnp.sqrt(count * total)


@validate_arguments
def oort(
    cohort_size: CountOrZero,
    exploration: Fraction = 0.9,
    decay: PositiveFraction = 0.98,
    smallest: Fraction = 0.3,
    *,
    threshold: Percentile = 30.0,
    penalty: NonNegative = 2.0,
    pacer_step: Count = 20,
    pacer_delta: Percentile = 5.0,
    clip: Fraction = 0.9,
    clip_over: ClipOver = "tried",
    cut_off: Fraction = 0.05,
    window: NonNegative = 5.0,
    max_rounds: Count | None = None,
    blacklist: Fraction = 0.3,
) -> Participation:
    """Oort: exploit clients of large utility and speed, and explore the others.

        U_i = n_i sqrt(1/n_i sum_j l_j^2)                             as reported when client i last took part
        s_i = (min(U_i, c) - min U) / range U + sqrt(.1 ln t / t_i)   t: this round, t_i: its last, from 1
        s_i <- s_i (T / seconds_i)^penalty if seconds_i > T           T: a percentile of the durations

    m - int(e m) clients are drawn in proportion to s_i among those that were tried; the others in proportion to n_i
    among the largest that were not; e decays every round. A pacer raises the percentile by `pacer_delta` when the
    utility of two spans of `pacer_step` rounds differs by less than a tenth, and lowers it when it differs fivefold.

    Cost: a number more per upload, and one pass forward over a client's training examples.

    Without a timing there is no T. With one, durations are known for clients that have taken part. Deviations from the
    code: U_i is over all training examples at the received model, not over the last batch; once all clients were tried,
    exploited clients fill the cohort, where the code repeats its last list of explored ones; of stragglers, nothing is
    learned. clip_over="all" also counts n_i of clients that were never tried among the utilities, as in the code.

    Args:
        cohort_size: The number m of clients per round.
        exploration: Initial e.
        decay: Factor of e per round, from the second.
        smallest: Smallest e.
        threshold: Percentile of the durations. 100: no penalty.
        penalty: Exponent of the penalty.
        pacer_step: Rounds per span of the pacer.
        pacer_delta: Step of the percentile.
        clip: Quantile c of the utilities.
        clip_over: Utilities that c, min and range are taken of: of clients "tried", or of "all".
        cut_off: Clients with scores below this share of the score at the last place are left out beyond ten times as
            many candidates as places.
        window: Clients are explored among so many times as many of the largest.
        max_rounds: Clients that have reported more often are left out. None: no limit.
        blacklist: Largest share of clients that are left out.

    Raises:
        InputError: A number is out of range, or, when a round is built, m is larger than the number of clients.

    References:
        Lai et al., Oort: Efficient Federated Learning via Guided Participant Selection, OSDI 2021. arXiv:2010.06081;
        code SymbioticLab/FedScale, thirdparty/oort.
    """

    settings = Settings(
        cohort_size,
        exploration,
        decay,
        smallest,
        penalty,
        pacer_step,
        pacer_delta,
        clip,
        clip_over,
        cut_off,
        window,
        max_rounds,
        blacklist,
    )

    def init(num_examples: Array, shared: Variables, key: Key) -> Pace:
        return Pace(know_nothing(num_examples), jnp.asarray(threshold, float), jnp.zeros(2 * pacer_step, float))

    def choose(key: Key, num_clients: int, number: Array, pace: Pace) -> Array:
        return draw_planned(key, plan(settings, pace, jnp.asarray(number) + 1), pace.known, cohort_size)

    def update(pace: Pace, told: Told) -> Pace:
        return keep_pace(settings, pace, told)

    return select(oort, cohort_size, choose, report=statistical_utility, init=init, update=update)


def plan(settings: Settings, pace: Pace, time: Array) -> Plan:
    """Plan the selection of a round; rounds are numbered from 1."""
    known, count = pace.known, settings.cohort_size
    is_tried, has_examples = known.count > 0, known.num_examples > 0
    is_banned = jnp.zeros_like(is_tried)
    if settings.max_rounds is not None:
        is_often = known.count > settings.max_rounds
        limit = jnp.floor(settings.blacklist * len(is_often) + _ROUNDING)
        is_banned = is_among_largest(known.count, is_often, limit)
    is_open, is_new = is_tried & ~is_banned, has_examples & ~is_tried

    preferred = preferred_duration(known.seconds, pace.threshold)
    is_slow = known.seconds > preferred
    factor = jnp.where(is_slow, (preferred / jnp.where(is_slow, known.seconds, 1)) ** settings.penalty, 1)

    is_all = settings.clip_over == "all"
    utilities = jnp.where(is_new, known.num_examples, known.value) if is_all else known.value
    is_counted = ((is_open | is_new) if is_all else is_open) & (utilities > 0)
    ordered, num = jnp.sort(jnp.where(is_counted, utilities, jnp.inf)), jnp.sum(is_counted)
    last = jnp.maximum(num - 1, 0)
    place = jnp.floor(num * settings.clip + _ROUNDING).astype(int)
    bound, low, high = jnp.where(num > 0, ordered[jnp.stack([jnp.minimum(place, last), 0 * last, last])], 0)
    low = 0.999 * low
    bonus = jnp.sqrt(0.1 * jnp.log(time) / jnp.maximum(known.last, 1))
    score = (jnp.minimum(known.value, bound) - low) / jnp.maximum(high - low, _SMALL) + bonus
    scores = jnp.where(is_open, jnp.abs(score * factor), 0)

    share = settings.exploration * jnp.asarray(settings.decay, float) ** (time - 1)
    share, num_tried = jnp.maximum(share, settings.smallest), jnp.sum(is_open)
    num_exploit = jnp.minimum(count - jnp.floor(count * share + _ROUNDING).astype(int), num_tried)
    num_explore = jnp.minimum(jnp.sum(is_new), count - num_exploit)
    cut = settings.cut_off * jnp.sort(scores)[::-1][jnp.minimum(num_exploit, len(scores) - 1)]
    is_kept = (scores >= cut) | is_among_largest(scores, is_open, _CUT_OFF_PLACES * num_exploit + 1)
    size = jnp.where(is_new, known.num_examples * factor, 0)
    is_best = is_among_largest(size, is_new, jnp.floor(settings.window * num_explore + _ROUNDING))
    return Plan(
        scores=scores,
        exploit=jnp.where(is_open & is_kept, scores, 0),
        explore=jnp.where(is_best, size, 0),
        num_exploit=jnp.minimum(count - num_explore, num_tried),
        num_explore=num_explore,
        preferred=preferred,
        clip=bound,
    )


def preferred_duration(seconds: Array, threshold: Array) -> Array:
    """A percentile of the known durations; infinity for the percentile 100, or if none is known."""
    num = jnp.sum(seconds > 0)
    ranked = jnp.sort(jnp.where(seconds > 0, seconds, jnp.inf))
    place = jnp.floor(num * threshold / 100 + _ROUNDING).astype(int)
    return jnp.where(threshold < 100, ranked[jnp.minimum(place, jnp.maximum(num - 1, 0))], jnp.inf)


def draw_planned(key: Key, plan: Plan, known: Known, cohort_size: int) -> Array:
    """Draw the clients of a plan; places that it leaves empty are filled from both lists."""
    has_examples, num_clients = known.num_examples > 0, len(known.count)
    explore = jnp.where(jnp.any(known.count > 0), plan.explore, has_examples)  # the first round is uniform
    place = jnp.full(num_clients, 4 * num_clients)
    parts = ((plan.exploit, plan.num_exploit), (explore, plan.num_explore))
    for number, (own, (weights, count)) in enumerate(zip(jax.random.split(key), parts, strict=True)):
        later = jnp.where(has_examples, 1, 2)
        order = draw_in_order(own, jnp.log(weights.astype(float)), jnp.where(weights > 0, 0, later))
        turn = jnp.zeros(num_clients, int).at[order].set(jnp.arange(num_clients))
        place = jnp.minimum(place, turn + num_clients * jnp.where(turn < count, number, 2 + number))
    return jnp.argsort(place, stable=True)[:cohort_size]


def keep_pace(settings: Settings, pace: Pace, told: Told) -> Pace:
    """The state after a round: what the clients reported, and the percentile of the next round."""
    is_exploited = told.is_used & (pace.known.count[told.cohort] > 0)
    utility = jnp.sum(jnp.where(is_exploited, told.values, 0)) / (jnp.sum(is_exploited) + _SMALL)
    utilities = jnp.append(pace.utilities[1:], utility.astype(pace.utilities.dtype))
    step, delta, time = settings.pacer_step, settings.pacer_delta, told.number + 1
    before, now = jnp.sum(utilities[:step]), jnp.sum(utilities[step:])
    change, is_due = jnp.abs(now - before), (time >= 2 * step) & (time % step == 0)
    raised, lowered = jnp.minimum(100, pace.threshold + delta), jnp.maximum(delta, pace.threshold - delta)
    moved = jnp.where(change <= 0.1 * before, raised, jnp.where(change >= 5 * before, lowered, pace.threshold))
    threshold = jnp.where(is_due, moved, pace.threshold).astype(pace.threshold.dtype)
    return Pace(remember(pace.known, told), threshold, utilities)
