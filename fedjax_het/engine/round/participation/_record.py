"""The record of a participation rule, and what a rule remembers of the clients' reports."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from fedjax_het import tree
from fedjax_het.algorithm import Measure
from fedjax_het.types import Array, HostArray, Key, PyTree, Variables

REPORT = "participation"
"""The name of what clients report to the participation rule, beside the reports of the algorithm."""
POLL_BYTES = 4  # the answer of a polled client, one number in float32


class Told(NamedTuple):
    """What the server learns in a round about the clients of its cohort, from a poll before it, or from the uploads."""

    number: Int[Array, ""]  # of the round, from 1
    cohort: Int[Array, "cohort"]  # client ids
    is_used: Bool[Array, "cohort"]  # the server used the upload; after a poll, the client has answered
    values: PyTree  # the reports or answers, leaves [cohort, ...]; zeros unless used; None without any
    seconds: Float[Array, "cohort"] | None = None  # of the client's round on the virtual clock; None without a timing


class Poll(NamedTuple):
    """A question to all clients of a cohort before they train, whose answers choose the clients that do.

    Args:
        measure: (problem, view before training) -> a number, the client's answer.
        choose: (state, what the server was told) -> (whether a client trains; the state after the poll).
    """

    measure: Measure
    choose: Callable[[PyTree, Told], tuple[Bool[Array, "cohort"], PyTree]]


class Participation(NamedTuple):
    """A rule that draws the cohort of a round.

    A rule with a state, `init`, reads what clients have reported. The cohort of a round is then drawn after the round
    before it, and examples and client states are streamed one round at a time.

    Args:
        size: Number of clients -> cohort size, with polled clients.
        draw: (key, number of clients, round number[, state]) -> (ids; whether they are available).
        is_everyone: Whether the cohort is all clients in order, so no states are gathered.
        mean_size: Number of clients -> mean number of clients that train. None: size.
        overflow: (the key of `draw`, number of clients) -> number of drawn clients left out because the cohort was
            full.
        depends_on_round: Whether `draw` reads the round number in addition to its key.
        init: (numbers of training examples [clients], shared variables, key) -> the state before the first round. None:
            no state.
        update: (state, what the server was told in a round) -> the state of the next round. None: the state stays.
        report: (problem, view after training) -> what a client reports to the rule. None: nothing.
        poll: A question before training. None: all available clients of the cohort train.
        min_separation: The minimum number of rounds from one participation of a client to its next.
        check_run: Raises InputError for a number of rounds in which the rule has no effect.
    """

    size: Callable[[int], int]
    draw: Callable[..., tuple[Int[Array, "cohort"], Bool[Array, "cohort"]]]
    is_everyone: bool = False
    mean_size: Callable[[int], float] | None = None
    overflow: Callable[[Key, int], Int[Array, ""]] | None = None
    depends_on_round: bool = False
    init: Callable[[Int[Array, "clients"], Variables, Key], PyTree] | None = None
    update: Callable[[PyTree, Told], PyTree] | None = None
    report: Measure | None = None
    poll: Poll | None = None
    min_separation: int = 1
    check_run: Callable[[int], None] = lambda rounds: None

    def expected_size(self, num_clients: int) -> float:
        """The mean number of clients that train per round."""
        return float((self.mean_size or self.size)(num_clients))

    @property
    def reads_reports(self) -> bool:
        """Whether the clients that train depend on what clients report."""
        return self.report is not None or self.poll is not None


def derive_keys(key: Key, number: HostArray) -> Key:
    """Derive (the cohort key, the client key) of a round from the key of the run, [2]."""
    return jax.random.split(jax.random.fold_in(key, number))


def count_draws(rule: Participation, num_clients: int, rounds: int, keys: Key) -> np.ndarray:
    """Count the rounds in which each client is drawn and available, or can be, if draws depend on earlier rounds.

    Args:
        rule: The participation rule.
        num_clients: The number of clients.
        rounds: The number of rounds.
        keys: The keys of the runs, [runs].

    Returns:
        [runs, clients].
    """
    if rule.init is not None:
        return np.full((len(keys), num_clients), -(-rounds // rule.min_separation))

    def count(key: Key) -> Array:
        def add(number: Array, counts: Array) -> Array:
            cohort, is_here = rule.draw(derive_keys(key, number)[0], num_clients, number)
            return counts.at[cohort].add(is_here.astype(counts.dtype))

        return jax.lax.fori_loop(0, rounds, add, jnp.zeros(num_clients, jnp.int32))

    return np.asarray(jax.jit(lambda keys: jax.lax.map(count, keys))(keys))


class Known(NamedTuple):
    """What a rule knows about all clients."""

    num_examples: Float[Array, "clients"]  # training examples
    value: Float[Array, "clients"]  # the last report; 0 before
    last: Int[Array, "clients"]  # the round of the last report, from 1; 0: none
    count: Int[Array, "clients"]  # the number of reports
    seconds: Float[Array, "clients"]  # of the last round on the virtual clock; 0 before, or without a timing


def know_nothing(num_examples: Array, shared: Variables | None = None, key: Key | None = None) -> Known:
    """The state before the first report."""
    none = jnp.zeros(len(num_examples), jnp.int32)
    zeros = jnp.zeros(len(num_examples), float)
    return Known(jnp.asarray(num_examples, float), zeros, none, none, zeros)


def remember(known: Known, told: Told) -> Known:
    """The state after a round of reported numbers; clients whose uploads were not used keep their entries."""
    before = tree.take(known, told.cohort)
    now = before._replace(
        value=told.values.astype(before.value.dtype),
        last=jnp.full_like(before.last, told.number),
        count=before.count + 1,
        seconds=before.seconds if told.seconds is None else told.seconds.astype(before.seconds.dtype),
    )
    return tree.put(known, told.cohort, tree.where(told.is_used, now, before))
