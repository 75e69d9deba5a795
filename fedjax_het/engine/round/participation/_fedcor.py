"""FedCor: select clients by the correlations of their losses, which a Gaussian process learns."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_het import tree
from fedjax_het.engine.round.participation._loss_covariance import covariance_of, fit_positions, select_correlated
from fedjax_het.engine.round.participation._record import Participation, Poll, Told
from fedjax_het.engine.round.participation._selection import draw_in_order, fixed_size, received_loss
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key, Variables
from fedjax_het.validation import LARGEST_COUNT, Count, CountOrZero, PositiveFraction, Range, validate_arguments

Interval = Annotated[int, Range(2, LARGEST_COUNT, is_whole=True)]


class Correlations(NamedTuple):
    """The state of `fedcor`."""

    num_examples: Float[Array, "clients"]
    positions: Float[Array, "clients dimension"]
    discount: Float[Array, "clients"]
    losses: Float[Array, "clients"]  # the answers of the last round
    has_answered: Bool[Array, "clients"]
    changes: Float[Array, "memory clients"]  # of the losses by one round, the newest last
    is_observed: Bool[Array, "memory clients"]
    rounds: Int[Array, "memory"]  # the rounds of the changes, from 1


@validate_arguments
def fedcor(
    cohort_size: CountOrZero,
    warm_up: Count = 15,
    interval: Interval = 10,
    discount: PositiveFraction = 0.95,
    *,
    dimension: Count = 15,
    decay: PositiveFraction = 0.95,
    window: Count = 100,
    first_steps: Count = 1000,
    steps: Count = 100,
) -> Participation:
    """FedCor: select the clients whose training is expected to lower the losses of all clients the most.

        loss changes of a round ~ N(mu, S),   S = X X^T + .01^2 I,   row i of X: the position of client i
        one after the other   max_k alpha_k sum_i p_i S_ik / sqrt(S_kk)   over the clients i, k that are not selected,
        S <- S - S_k S_k^T / S_kk;   alpha_k <- discount * alpha_k after each round in which client k trains

    The first `warm_up` rounds and, later, all rounds whose number (from 0) is a multiple of `interval` train uniform
    cohorts. All clients are polled for their losses before and after such a round, and the differences are the loss
    changes. After the warm-up and after each later uniform round, Adam maximizes the likelihood of all changes, where
    those of a round have the weight decay^age and mu is their mean with these weights; then alpha = 1.

    Cost: each client that receives the model makes a pass forward over its examples, and sends a number before it
    trains; in the warm-up, and in two rounds of `interval`, all clients receive it. The server holds the covariance of
    all clients. With layouts that train clients side by side, the places of clients that do not train stay idle.

    Deviations from the code: updates of uniform cohorts are used, while the code, after the warm-up, discards them and
    trains a selected cohort beside them; its warm-up has one round more. Changes of clients that do not answer are left
    out. Of the code's kernels, likelihoods and means, only those of its scripts are available: the linear kernel, the
    marginal likelihood and the weighted mean. As in the code, the sum is over the clients that are not selected.

    Args:
        cohort_size: The number of clients that train per round.
        warm_up: Rounds before the first selection (default 15; 20 for CIFAR-10), fewer than those of the run.
        interval: Rounds from one fit to the next, the paper's Δt, at least 2 (default 10; 50 for CIFAR-10).
        discount: The paper's β (default .95; .9 for CIFAR-10).
        dimension: Size of a position.
        decay: γ (default .95; .99 for CIFAR-10).
        window: Rounds after which a change is forgotten (default 100; 500 for CIFAR-10).
        first_steps: Steps of Adam after the warm-up.
        steps: Steps of Adam in later fits.

    Raises:
        InputError: A number is out of range; when a round is built, there are fewer clients than cohort_size; when a
            run is built, it ends before the first selection.

    References:
        Tang et al., FedCor: Correlation-Based Active Client Selection Strategy for Heterogeneous Federated Learning,
        CVPR 2022. arXiv:2103.13822; code Yoruko-Tang/FedCor.
    """
    memory = min(warm_up, window + 1) + window // interval + 1
    sized = fixed_size(fedcor, cohort_size)

    def size(num_clients: int) -> int:
        sized(num_clients)
        return num_clients

    def check_run(rounds: int) -> None:
        if warm_up >= rounds:
            raise InputError(
                f"fedcor: the first {warm_up} rounds (warm_up) train uniform cohorts, and the run has {rounds}. Lower "
                "warm_up, or raise rounds."
            )

    def init(num_examples: Array, shared: Variables, key: Key) -> Correlations:
        num, none = len(num_examples), jnp.zeros((memory, len(num_examples)), float)
        own = jax.vmap(lambda client: jax.random.normal(jax.random.fold_in(key, client), (dimension,)))(jnp.arange(num))
        return Correlations(
            num_examples=jnp.asarray(num_examples, float),
            positions=own / jnp.sqrt(dimension),
            discount=jnp.ones(num),
            losses=none[0],
            has_answered=none[0] > 0,
            changes=none,
            is_observed=none > 0,
            rounds=jnp.zeros(memory, jnp.int32),
        )

    def is_uniform(number: Array) -> Array:
        return (number < warm_up) | ((number > warm_up) & (number % interval == 0))

    def is_selected(known: Correlations, is_candidate: Array) -> Array:
        matrix = covariance_of(known.positions)
        picks = select_correlated(matrix, known.num_examples, known.discount, is_candidate, cohort_size)[0]
        return is_candidate & jnp.zeros_like(is_candidate).at[picks].set(True)

    def draw(key: Key, num_clients: int, number: Array, known: Correlations) -> tuple[Array, Array]:
        has_examples, number = known.num_examples > 0, jnp.asarray(number)
        cohort = draw_in_order(key, jnp.zeros(num_clients), ~has_examples)  # of which uniform cohorts are the first
        is_survey = is_uniform(number) | is_uniform(number - 1)
        return cohort, (is_survey | is_selected(known, has_examples))[cohort]

    def choose(known: Correlations, told: Told) -> tuple[Array, Correlations]:
        known = learn(known, told)
        is_first = told.is_used & (jnp.cumsum(told.is_used) <= cohort_size)
        is_best = is_selected(known, known.has_answered)[told.cohort]
        return jnp.where(is_uniform(told.number - 1), is_first, is_best), known

    def learn(known: Correlations, told: Told) -> Correlations:
        number = told.number - 1
        losses = jnp.zeros_like(known.losses).at[told.cohort].set(told.values.astype(known.losses.dtype))
        has_answered = jnp.zeros_like(known.has_answered).at[told.cohort].set(told.is_used)
        recorded = known._replace(
            changes=jnp.append(known.changes[1:], (losses - known.losses)[None], axis=0),
            is_observed=jnp.append(known.is_observed[1:], (has_answered & known.has_answered)[None], axis=0),
            rounds=jnp.append(known.rounds[1:], number),
        )
        is_recorded = (number > 0) & is_uniform(number - 1)
        is_due = is_recorded & (number >= warm_up)
        known = tree.where(is_recorded, recorded, known)
        age = number - known.rounds
        weights = jnp.where(age <= window, jnp.asarray(decay, float) ** age, 0)
        num_steps = jnp.where(is_due, jnp.where(number == warm_up, first_steps, steps), 0)
        return known._replace(
            positions=fit_positions(known.positions, known.changes, known.is_observed, weights, num_steps),
            discount=jnp.where(is_due, 1, known.discount),
            losses=losses,
            has_answered=has_answered,
        )

    def update(known: Correlations, told: Told) -> Correlations:
        return known._replace(discount=known.discount.at[told.cohort].multiply(jnp.where(told.is_used, discount, 1)))

    return Participation(
        size,
        draw,
        mean_size=sized,
        depends_on_round=True,
        init=init,
        update=update,
        poll=Poll(received_loss, choose),
        check_run=check_run,
    )
