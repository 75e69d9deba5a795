"""Specification of a run: algorithm, model, federation, seeds, and data placement between rounds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het._internal.target_platform import target_platform
from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.engine.parallel.layout import Layout, vmapped
from fedjax_het.engine.parallel.runs import Axes, Sweep, map_over_runs
from fedjax_het.engine.round.asynchronous import Asynchronous
from fedjax_het.engine.round.event_schedule import EventSchedule, make_schedule
from fedjax_het.engine.round.participation import Participation
from fedjax_het.engine.round.program import Round, make_round
from fedjax_het.engine.round.timing import Timing
from fedjax_het.engine.storage.checkpoint import Checkpoints
from fedjax_het.engine.storage.client_store import ClientStore
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key, Model, State

AUTO = "auto"


class OffloadPolicy(NamedTuple):
    """The placement of client states and examples between rounds."""

    client_states: str  # "device", "host" (its memory) or "disk" (a file)
    examples: str  # "device", or "stream" from host memory or mapped files, round by round

    def __str__(self) -> str:
        return f"client states: {self.client_states}, examples: {self.examples}"


ALL_ON_DEVICE = OffloadPolicy("device", "device")


@dataclass(frozen=True)
class RunSpec:
    """The runs of one program.

    Runs are an array axis: the sweep's i-th values with num_seeds seeds seeds[i], seeds[i] + 1, ..., then the next
    values. A sweep without values has num_seeds runs for each of `seeds`.

    Args:
        sweep: The algorithm, or a sweep over its hyperparameters.
        model: The model.
        federation: The clients and their data.
        participation: The rule that samples cohorts.
        rounds: The number of rounds of a run.
        block: The maximum number of rounds per call.
        seeds: The first seed of each value.
        num_seeds: The number of seeds of each value.
        personal_on_test: Whether personal models are scored on the common test set.
        timing: Client durations; None: no clock.
        asynchronous: The rule of asynchronous rounds; None: synchronous rounds.
        schedule: The events of asynchronous rounds, leaves [num_runs, rounds, ...].
        metrics: The names of the metrics to compute besides loss, accuracy and overlaps.
    """

    sweep: Sweep
    model: Model
    federation: Federation
    participation: Participation
    rounds: int
    block: int
    seeds: tuple[int, ...] = (0,)
    num_seeds: int = 1
    personal_on_test: bool = False
    timing: Timing | None = None
    asynchronous: Asynchronous | None = None
    schedule: EventSchedule | None = None
    metrics: tuple[str, ...] = ()

    @property
    def algorithm(self) -> Algorithm:
        """The first algorithm of the sweep; the others have the same slots."""
        return self.sweep.algorithms[0]

    @property
    def num_runs(self) -> int:
        return len(self.seeds) * self.num_seeds

    @property
    def runs_at_once(self) -> int:
        """The number of runs trained at the same time.

        On a CPU, runs are sequential: batched products are not faster there, and runs with different seeds, whose
        clients take different numbers of steps, would wait for each other. Several processes cannot cut their arrays on
        the host, and train all runs at once.
        """
        return 1 if target_platform() == "cpu" and jax.process_count() == 1 else self.num_runs

    @property
    def num_calls(self) -> int:
        """The number of calls of a program that compute all runs; see `runs.RunLoop`."""
        return self.num_runs // self.runs_at_once

    @property
    def num_clients(self) -> int:
        return self.federation.num_clients

    @property
    def cohort_size(self) -> int:
        return self.participation.size(self.num_clients)

    def max_examples(self, with_test: bool = False) -> int:
        """The number of training, validation and perhaps test examples in the largest cohorts of the runs."""
        parts = ("train", "valid", "test")[: 3 if with_test else 2]
        largest = (self.federation.largest_counts(part) for part in parts)
        counts = np.sort(sum(largest, start=np.zeros(self.num_clients, int)))
        return self.num_runs * int(counts[-self.cohort_size :].sum())

    def keys(self) -> Key:
        """The key of each run, [num_runs]."""
        return jax.vmap(make_key)(np.add.outer(self.seeds, np.arange(self.num_seeds)).reshape(-1))

    def hyper_parameters(self, layout: Layout) -> dict[str, Array]:
        """The values of a sweep on the devices of a layout, leaves [num_runs]; {} for a single algorithm."""
        if not self.sweep.values:
            return {}
        return layout.jit(lambda: self.sweep.hyper_parameters(self.num_seeds), layout.sharding)()

    def round(self, layout: Layout, algorithm: Algorithm | None = None) -> Round:
        """The round of this algorithm (default: the first of the sweep)."""
        return make_round(
            algorithm or self.algorithm,
            self.model,
            self.num_clients,
            num_training=int(np.count_nonzero(self.federation.largest_counts("train"))),
            num_examples=self.federation.largest_counts("train"),
            participation=self.participation,
            timing=None if self.asynchronous else self.timing,
            asynchronous=self.asynchronous,
            layout=layout,
            prepare=self.federation.prepare,
            augment=self.federation.augment,
            phases=self.federation.phases,
        )

    def restore(self, checkpoints: Checkpoints, *, is_on_device: bool = True) -> State:
        """Restore the newest checkpoint of these runs on the first device. Nothing is compiled.

        Args:
            checkpoints: The checkpoints of the runs.
            is_on_device: Whether the runs keep their client states on the device.

        Returns:
            The state with the states of all clients, leaves [num_runs, ...].

        Raises:
            InputError: There is no checkpoint, it is damaged, or it was written by another version, run or algorithm.
        """
        round, data, keys = self.round(vmapped), self.federation.data, self.keys()
        if is_on_device:
            shapes = jax.eval_shape(jax.vmap(round.init, (0, None)), keys, data)
            device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), shapes)
            return checkpoints.restore(like)
        like = jax.vmap(round.initial_state, (0, None))(keys, data.examples.inputs[:1])
        state = checkpoints.restore(like._replace(clients=ClientStore(like.clients, self.num_clients, None)))
        return state._replace(clients=state.clients.take_all())

    def with_events(self, asynchronous: Asynchronous | None) -> "RunSpec":
        """The same runs with asynchronous rounds, whose clients `participation` samples; None: synchronous.

        Raises:
            InputError: The runs do not support asynchronous rounds.
        """
        if asynchronous is None:
            return self
        train_counts = np.asarray(self.federation.data.train.count, np.int64)
        if self.federation.phases and not self.federation.phases.keeps_counts:
            raise InputError(
                "asynchronous: the schedule follows from clients' numbers of examples, which this drift changes. "
                "Choose synchronous rounds, or a drift of concepts, which keeps the numbers."
            )
        num_training = int(np.count_nonzero(train_counts))
        asynchronous.check(self.algorithm, self.participation, self.timing, self.num_clients, num_training)
        assert self.timing is not None
        timing, num_clients, schedules = self.timing, self.num_clients, []
        measure = jax.vmap(lambda client, num_steps: timing.measure(client, num_clients, num_steps))
        for number, key in enumerate(self.keys()):
            algorithm = self.sweep.algorithms[number // self.num_seeds if self.sweep.values else 0]
            num_steps = jnp.asarray(algorithm.local_update.num_steps(train_counts))
            durations = np.array(measure(jnp.arange(num_clients), num_steps), float)
            durations[train_counts == 0] = np.inf
            schedules.append(make_schedule(asynchronous, self.participation, key, num_clients, durations, self.rounds))
        schedule = jax.tree.map(lambda *leaves: np.stack(leaves), *schedules)
        if asynchronous.max_staleness is None:
            oldest = np.max(np.arange(self.rounds)[:, None] - schedule.start)
            asynchronous = asynchronous._replace(max_staleness=int(oldest))
        participation = asynchronous.arrivals(self.participation)
        return replace(self, participation=participation, asynchronous=asynchronous, schedule=schedule)

    def map_over_runs(self, function: Callable, axes: Axes) -> Callable:
        """Map a function over the runs of one call; see `runs.map_over_runs`."""
        return map_over_runs(function, axes, self.runs_at_once)
