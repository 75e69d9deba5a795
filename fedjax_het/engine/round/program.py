"""Composition of an algorithm's slots into a round, a pure function; `make_round` is algorithm-independent."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.data.augmentation import Augmentation
from fedjax_het.data.phases import Phases
from fedjax_het.engine.parallel.layout import Layout, vmapped
from fedjax_het.engine.round import client_step, initialization, mixing, model_choice, opening, selection, uplink
from fedjax_het.engine.round.asynchronous import Asynchronous
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.engine.round.event_schedule import EventSchedule
from fedjax_het.engine.round.participation import Participation, derive_keys, full
from fedjax_het.engine.round.phases import train_cohort
from fedjax_het.engine.round.records import RoundMessages, RoundMetrics, RoundSpec
from fedjax_het.engine.round.timing import Timing
from fedjax_het.placeholders import seal
from fedjax_het.problem import Problem
from fedjax_het.types import Array, ClientData, HostArray, Key, Model, PyTree, State


class Round(NamedTuple):
    """One algorithm's round.

    algorithm, problem: the algorithm, and the problem of its clients.
    initial_state: (key, stored inputs) -> the state before the first round, with `clients` of a single client.
    draw: (key, round number, schedule of the run if it is asynchronous, the server's state of the participation) -> the
        cohort. It depends on nothing else, and can be drawn in advance if the participation has no state.
    overflow: (key, round number) -> the number of drawn clients without a slot in the cohort; None: always 0.
    train: the round of a cohort. Its state and data contain only the clients of the cohort, states with leaves
    [slots, ...] before and [cohort, ...] after, data with leaves [slots, ...].
    init, step, step_with_messages: the same for the state and data of all clients; `step`, (state, data, key, schedule
    or None), draws and trains, and `step_with_messages` also returns the messages.
    """

    algorithm: Algorithm
    problem: Problem
    cohort_size: int
    initial_state: Callable[[Key, HostArray], State]
    draw: Callable[[Key, Array, EventSchedule | None, PyTree], Cohort]
    overflow: Callable[[Key, Array], Array] | None
    train: Callable[[State, Cohort, ClientData, Key], tuple[State, RoundMetrics, RoundMessages]]
    init: Callable[[Key, ClientData], State]
    step: Callable[..., tuple[State, RoundMetrics]]
    step_with_messages: Callable[..., tuple[State, RoundMetrics, RoundMessages]]


def make_round(
    algorithm: Algorithm,
    model: Model,
    num_clients: int,
    *,
    num_training: int | None = None,
    num_examples: HostArray | None = None,
    participation: Participation | None = None,
    timing: Timing | None = None,
    asynchronous: Asynchronous | None = None,
    layout: Layout = vmapped,
    prepare: Callable[[Array], Array] = lambda inputs: inputs,
    augment: Augmentation | None = None,
    phases: Phases | None = None,
) -> Round:
    """Compose an algorithm's slots into `init(key, data)` and `step(state, data, key)`, and the functions inside them.

    The key of `step` is the run's; round keys are folded from the round number, client keys from the client id. Up to
    rounding, results therefore do not depend on other participants, order, padding, or layout.

    Args:
        algorithm: The algorithm.
        model: The model.
        num_clients: The number of clients.
        num_training: The number of clients with training examples, the papers' N; other clients are excluded from means
            over all clients (default None, all clients).
        num_examples: The clients' numbers of training examples, which participation rules may read (default None, 1
            each).
        participation: The rule that samples cohorts (default None, all clients in every round).
        timing: Client durations and the round deadline; None: no clock. Asynchronous rounds need no timing, since their
            schedule has the times.
        asynchronous: The rule of asynchronous rounds; `participation` then applies to server steps.
        layout: The layout of the client axis on devices.
        prepare: Stored inputs [batch, ...] -> inputs of the model; it runs inside the step that reads them.
        augment: (key, stored inputs, labels) -> inputs of the model and labels in training; None: `prepare`.
        phases: The phases of the clients' data, which broadcasts name; None: data never change.

    Returns:
        The round.

    Raises:
        InputError: The cohort is larger than the number of clients; a participation that reads reports meets clients
            that must not send any, or no server; when traced, a sharing rule selects no leaf, or a
            slot reads a quantity that no slot provides.
    """
    uplink.check_stages(algorithm)
    if timing:
        timing.check(num_clients)
    participation = participation or full()
    selection.check_selection(algorithm, participation)
    opening.check_opening(algorithm, participation)
    algorithm = selection.add_report(algorithm, participation)
    num_opening = opening.count_opening_rounds(algorithm, participation, num_clients)
    if phases and uplink.hides_examples(algorithm.uplink):
        phases = replace(phases, has_class=None)
    spec = RoundSpec(
        algorithm,
        Problem(algorithm.adapt(model), algorithm.objective, prepare, augment, algorithm.evaluated),
        num_clients,
        num_clients if num_training is None else num_training,
        jnp.ones(num_clients, int) if num_examples is None else jnp.asarray(num_examples),
        opening.with_opening(participation, num_opening),
        timing,
        asynchronous,
        layout,
        phases,
        num_opening,
    )
    mixing.check_mixing(algorithm, num_clients, is_asynchronous=asynchronous is not None)
    model_choice.check_models(algorithm, is_asynchronous=asynchronous is not None)
    train = partial(train_cohort if algorithm.record_privacy is None else train_privately, spec)

    # Traced once for the shapes and the program that initializes a run.
    initial_state = jax.jit(partial(initialization.initial_state, spec), inline=True)

    def init(key: Key, data: ClientData) -> State:
        return initialization.broadcast_clients(initial_state(key, data.examples.inputs[:1]), num_clients)

    def step_with_messages(
        state: State, data: ClientData, key: Key, schedule: EventSchedule | None = None
    ) -> tuple[State, RoundMetrics, RoundMessages]:
        cohort = draw_cohort(spec, key, state.server.round, schedule, state.server.participation)
        train_population = with_population(train, spec.participation.is_everyone, layout)
        return train_population(state, cohort, client_step.cohort_data(data, cohort), key)

    def step(
        state: State, data: ClientData, key: Key, schedule: EventSchedule | None = None
    ) -> tuple[State, RoundMetrics]:
        return step_with_messages(state, data, key, schedule)[:2]

    def in_round(count: Callable[[Key, int], Array]) -> Callable[[Key, Array], Array]:
        return lambda key, number: count(derive_keys(key, number)[0], num_clients)

    overflow = spec.participation.overflow
    return Round(
        algorithm=algorithm,
        problem=spec.problem,
        cohort_size=spec.cohort_size,
        initial_state=initial_state,
        draw=partial(draw_cohort, spec),
        overflow=in_round(overflow) if overflow else None,
        train=train,
        init=init,
        step=step,
        step_with_messages=step_with_messages,
    )


def draw_cohort(
    spec: RoundSpec, key: Key, number: Array, schedule: EventSchedule | None = None, state: PyTree = ()
) -> Cohort:
    """Draw the cohort of a round, padded to the layout; asynchronous rounds read it from the schedule."""
    size = spec.cohort_size
    padded = lambda x: jnp.pad(x, (0, spec.layout.round_up(size) - size))  # noqa: E731
    if schedule is None:
        known = () if spec.participation.init is None else (state,)
        drawn = spec.participation.draw(derive_keys(key, number)[0], spec.num_clients, number, *known)
        return Cohort(*map(padded, drawn))
    events = schedule.step(number)
    is_here = padded(jnp.ones(size, bool))
    slots = padded(events.clients), is_here, padded(events.start), padded(events.draw)
    return Cohort(*slots, events.num_late, events.seconds)


def train_privately(
    spec: RoundSpec, state: State, cohort: Cohort, data: ClientData, key: Key
) -> tuple[State, RoundMetrics, RoundMessages]:
    """Run one round in which only noisy gradients read the examples; otherwise as `train_cohort`."""
    examples, problem = data.examples, spec.problem._replace(privacy=spec.algorithm.record_privacy)
    inputs, labels = seal((examples.inputs, examples.labels))
    sealed = examples._replace(inputs=inputs, labels=labels)
    return train_cohort(spec._replace(problem=problem), state, cohort, data._replace(examples=sealed), key)


def with_population(train: Callable, is_everyone: bool, layout: Layout) -> Callable:
    """Turn a round of a cohort into a round whose state contains all clients.

    Args:
        train: (state with the cohort's clients, cohort, ...) -> (the same state after the round, metrics, ...).
        is_everyone: Whether the cohort is all clients in order; then nothing is copied.
        layout: The layout of the client axis.

    Returns:
        A function with the same arguments and results except for the clients in the state.
    """

    def train_population(state: State, cohort: Cohort, *arguments: PyTree) -> tuple:
        all_clients, num_slots = state.clients, len(cohort.ids)
        is_whole = is_everyone and len(all_clients.rounds) == num_slots
        own = all_clients if is_whole else layout.take(all_clients, cohort.ids)
        after, metrics, *messages = train(state._replace(clients=own), cohort, *arguments)
        trained = tree.take(after.clients, slice(len(metrics.cohort)))
        population = trained if is_everyone else tree.put(all_clients, metrics.cohort, trained)
        return after._replace(clients=population), metrics, *messages

    return train_population
