"""Drift: rules by which the data of clients change with the round."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np
from jaxtyping import Int

from fedjax_het.data.exemplars import choose_exemplars
from fedjax_het.data.listing import listed
from fedjax_het.data.patterns import Pattern, alternate, logistic, ramp, switch
from fedjax_het.data.phases import ABSENT
from fedjax_het.data.timeline import Concepts, Drift, Entries, Timeline, count_concepts, select_domain
from fedjax_het.errors import InputError
from fedjax_het.validation import (
    Count,
    CountOrZero,
    Positive,
    PositiveFraction,
    refuse_without_effect,
    validate_arguments,
)


# ---- a new concept replaces the old one ------------------------------------------------------------------------------
def replace_concept(
    pattern: Pattern,
    start: int | Sequence[int],
    stagger: int,
    fraction: float,
    concepts: Concepts,
) -> Drift:
    """A drift in which concept 0 is replaced by another; see `sudden` for the arguments besides `pattern`."""
    if isinstance(start, Sequence) and (stagger or fraction != 1):
        raise InputError("stagger: a start for each client leaves no choice. Leave out stagger and fraction.")

    def drift(entries: Entries, rng: np.random.Generator) -> Timeline:
        num_clients = entries.num_clients
        num_concepts = count_concepts(concepts, entries)
        place = np.argsort(rng.permutation(num_clients))  # of each client in a random order
        num_drifting = max(1, round(fraction * num_clients))
        if isinstance(start, Sequence):
            if len(start) != num_clients:
                raise InputError(
                    f"start: {len(start)} rounds for {num_clients} clients. Give one for each, or a number."
                )
            starts = np.asarray(start)
        else:
            starts = start + stagger * place // num_drifting
        is_drifting, new = place < num_drifting, 1 + place % (num_concepts - 1)
        rounds = {0, *(int(s) + e for s in np.unique(starts[is_drifting]) for e in pattern.changes if s + e > 0)}
        rounds = sorted(rounds)

        def concept(phase: int) -> np.ndarray:
            share = np.where(is_drifting, pattern.share(rounds[phase] - starts), 0)
            is_new = entries.uniform < share[entries.clients]
            return select_domain(np.where(is_new, new[entries.clients], 0), concepts, entries)

        return Timeline(rounds, concept, concepts)

    return drift


@validate_arguments
def sudden(
    start: CountOrZero | Sequence[CountOrZero] = 50,
    stagger: CountOrZero = 0,
    fraction: PositiveFraction = 1.0,
    concepts: Concepts = None,
) -> Drift:
    """Clients change from concept 0 to another concept from one round to the next.

    With more than two concepts, the others are dealt to the clients at random.

    Args:
        start: The first round with the new concept; or a round for each client.
        stagger: The drift of the last client begins almost this many rounds after that of the first. Clients follow
            one another at equal intervals in random order.
        fraction: The fraction of clients that drift, drawn at random.
        concepts: The concepts, see `Concept`, or a family such as `concept.rotated(2)`. None: the domains of the data
            set are the concepts, and a client has the examples of one domain at a time.

    Raises:
        InputError: There are fewer than two concepts, or a round for each client with stagger or fraction.
    """
    return replace_concept(switch(), start, stagger, fraction, concepts)


@validate_arguments
def incremental(
    start: CountOrZero | Sequence[CountOrZero] = 50,
    width: Count = 20,
    stagger: CountOrZero = 0,
    fraction: PositiveFraction = 1.0,
    concepts: Concepts = None,
) -> Drift:
    """The share of examples with the new concept rises by 1 / width per round, for the first time at the start.

    Args:
        start: See `sudden`.
        width: The number of rounds until all examples have the new concept.
        stagger: See `sudden`.
        fraction: See `sudden`.
        concepts: See `sudden`.
    """
    return replace_concept(ramp(width), start, stagger, fraction, concepts)


@validate_arguments
def sigmoid(
    start: CountOrZero | Sequence[CountOrZero] = 50,
    width: Positive = 20.0,
    stagger: CountOrZero = 0,
    fraction: PositiveFraction = 1.0,
    concepts: Concepts = None,
) -> Drift:
    """The share of examples with the new concept is 1 / (1 + exp(-4 (t - start) / width)) in round t.

    Shares below 0.001 are 0, and those above 0.999 are 1.

    Args:
        start: The round in which half of the examples have the new concept; see `sudden`.
        width: The number of rounds that the rise would take at its steepest slope.
        stagger: See `sudden`.
        fraction: See `sudden`.
        concepts: See `sudden`.
    """
    return replace_concept(logistic(width), start, stagger, fraction, concepts)


@validate_arguments
def recurring(
    start: CountOrZero | Sequence[CountOrZero] = 50,
    period: Count = 20,
    repeats: Count = 2,
    stagger: CountOrZero = 0,
    fraction: PositiveFraction = 1.0,
    concepts: Concepts = None,
) -> Drift:
    """The new concept comes for `period` rounds, the old one returns for `period` rounds, and so on.

    Args:
        start: See `sudden`.
        period: The number of rounds of each concept.
        repeats: How often the new concept comes; afterwards the old one stays.
        stagger: See `sudden`.
        fraction: See `sudden`.
        concepts: See `sudden`.
    """
    return replace_concept(alternate(period, repeats), start, stagger, fraction, concepts)


# ---- phases of any kind ----------------------------------------------------------------------------------------------
@validate_arguments
def table(
    numbers: Sequence[Sequence[CountOrZero]],
    rounds_per_phase: Count = 20,
    concepts: Concepts = None,
) -> Drift:
    """The concept of each client in each phase is given, as in the change points of FedDrift.

    Args:
        numbers: [phase][client], the number of the concept.
        rounds_per_phase: The number of rounds of each phase; the last phase does not end. FedDrift: 200.
        concepts: See `sudden`.

    Raises:
        InputError: There are no phases, a row does not have an entry for every client, or a concept does not exist.

    References:
        Jothimurugesan et al., Federated Learning under Distributed Concept Drift, AISTATS 2023; code
        microsoft/FedDrift, data/changepoints.
    """

    def drift(entries: Entries, rng: np.random.Generator) -> Timeline:
        del rng
        num_clients, num_concepts = entries.num_clients, count_concepts(concepts, entries)
        if not numbers or any(len(row) != num_clients for row in numbers):
            raise InputError(f"numbers: needs rows of {num_clients} concepts, one for each client.")
        rows = np.asarray(numbers)
        if rows.max() >= num_concepts:
            raise InputError(f"numbers: there is no concept {rows.max()}; the last is {num_concepts - 1}.")
        starts = [rounds_per_phase * phase for phase in range(len(rows))]
        return Timeline(starts, lambda phase: select_domain(rows[phase][entries.clients], concepts, entries), concepts)

    return drift


@validate_arguments
def tasks(
    num_tasks: Count = 5,
    rounds_per_task: Count = 20,
    first: CountOrZero = 0,
    by: Literal["class", "domain"] = "class",
    exemplars: CountOrZero = 0,
    choice: Literal["random", "herding"] = "random",
) -> Drift:
    """A sequence of tasks: in each phase, clients have the examples of some classes, or domains, in random order.

    Clients also train on their exemplars of earlier tasks. The test examples are those of the task alone.

    Args:
        num_tasks: The number of tasks.
        rounds_per_task: The number of rounds of each task; the last one does not end.
        first: The number of classes of the first task; the others are divided equally. 0: all tasks are equal.
        by: "class" (class-incremental), or "domain" (domain-incremental).
        exemplars: The number of training examples of each class or domain that a client keeps after its task.
        choice: The choice of exemplars: "random", or "herding" (see `exemplars.herd`) of the stored inputs; GLFC herds
            the features of the current model.

    Raises:
        InputError: There are fewer classes than tasks, or they cannot be divided equally; a choice without exemplars.
    """
    if not exemplars:
        refuse_without_effect(tasks, "without exemplars", choice=choice)

    def drift(entries: Entries, rng: np.random.Generator) -> Timeline:
        number, groups = (
            (entries.num_classes, entries.labels) if by == "class" else (entries.num_domains, entries.domains)
        )
        task = divide_tasks(rng.permutation(number), num_tasks, first)[groups]
        kept = choose_exemplars(entries, groups, exemplars, choice == "herding")
        starts = [rounds_per_task * phase for phase in range(num_tasks)]
        return Timeline(starts, lambda phase: np.where((task == phase) | (kept & (task < phase)), 0, ABSENT))

    return drift


def divide_tasks(order: np.ndarray, num_tasks: int, first: int = 0) -> Int[np.ndarray, "class"]:
    """The task of each class, given the order in which classes arrive.

    Raises:
        InputError: The classes cannot be divided equally.
    """
    rest, num_others = len(order) - first, num_tasks - bool(first)
    if num_tasks < 2 or rest < num_others or (num_others and rest % num_others):
        raise InputError(
            f"num_tasks: {len(order)} classes cannot be divided over {num_tasks} tasks"
            f"{f', {first} of them in the first' if first else ''}. Give a number of tasks that divides them."
        )
    sizes = [first] * bool(first) + [rest // num_others] * num_others
    task = np.zeros(len(order), np.int32)
    task[order] = np.repeat(np.arange(num_tasks), sizes)
    return task


def none() -> None:
    """The data of clients never change."""


DRIFTS: Mapping[str, Callable[..., Drift | None]] = MappingProxyType(
    {
        "none": none,
        "sudden": sudden,
        "incremental": incremental,
        "sigmoid": sigmoid,
        "recurring": recurring,
        "table": table,
        "tasks": tasks,
        "listed": listed,
    }
)
"""Rules of drift by their config names."""
