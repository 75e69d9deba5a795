"""Simulations: training runs for several seeds at once."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.engine.diagnose import Diagnostic, DiagnosticValues, compile_diagnostics
from fedjax_het.engine.evaluation.evaluate import Evaluation, has_own_models
from fedjax_het.engine.evaluation.metrics import check_metrics
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.run_spec import AUTO, OffloadPolicy, RunSpec
from fedjax_het.engine.parallel.layout import Layout, vmapped
from fedjax_het.engine.parallel.runs import Sweep
from fedjax_het.engine.planning.memory_budget import build_executor
from fedjax_het.engine.round import uplink
from fedjax_het.engine.round.asynchronous import Asynchronous
from fedjax_het.engine.round.event_schedule import EventSchedule
from fedjax_het.engine.round.participation import Participation, full, uniform
from fedjax_het.engine.round.records import RoundMetrics
from fedjax_het.engine.round.timing import Timing
from fedjax_het.errors import InputError, NonFiniteError
from fedjax_het.types import Array, Key, Model, State
from fedjax_het.validation import LARGEST_COUNT, Count, Range, Seed, validate_arguments

Bytes = Annotated[int, Range(1, 2**63 - 1, is_whole=True)]


class Simulation:
    """A validated and compiled training run, with its evaluation.

    The leaves of all states, metrics and evaluations have a leading run axis: [num_seeds], or [values * num_seeds]
    for a sweep, grouped by value. The s-th run has the seed `seed + s`, which determines initial weights, cohorts
    and batches, but not the partition of the data. If client states are kept off the device, the `clients` of a
    state are a ClientStore.

    Attributes:
        cost: The RunCost.
        layout: The layout in use.
        choice: The timings behind layout "auto", and the reason; None if the layout was given.
        offload: The location of client states and examples.
        executor: The compiled rounds and evaluation.
        diagnosis_seconds: The compilation time of the diagnostics in seconds.
    """

    @validate_arguments
    def __init__(
        self,
        algorithm: Algorithm | Sweep,
        model: Model,
        federation: Federation,
        *,
        rounds: Count,
        cohort_size: Count | None = None,
        participation: Participation | None = None,
        timing: Timing | None = None,
        asynchronous: Asynchronous | None = None,
        layout: Layout | str = vmapped,
        seed: Seed | Sequence[Seed] = 0,
        num_seeds: Count = 1,
        evaluate_every: Count = 10,
        on_nonfinite: Literal["drop", "raise"] = "drop",
        personal_on_test: bool | Literal["auto"] = "auto",
        metrics: Sequence[str] = (),
        diagnostics: Mapping[str, Diagnostic] | None = None,
        memory_budget: Bytes | None = None,
        client_states: Literal["auto", "device", "host", "disk"] = AUTO,
        examples: Literal["auto", "device", "stream"] = AUTO,
        folder: str | Path | None = None,
    ):
        """Trace, validate and compile.

        Args:
            algorithm: The algorithm, or a sweep over its hyperparameters, such as
                Sweep(fedprox, {"mu": [0.01, 0.1]}), which trains all values in one program.
            model: The model.
            federation: The clients and their data.
            rounds: The number of rounds.
            cohort_size: The number of clients per round, sampled uniformly (default None, all clients).
            participation: Another sampling rule, used instead of `cohort_size`.
            timing: Client durations on a virtual clock and the round deadline (default None, no clock).
            asynchronous: The rule of asynchronous rounds, see `fedjax_het.asynchronous`. A round is then a server step,
                and `cohort_size` the number of clients that start together. None: synchronous rounds.
            layout: The layout of the client axis; "auto" times several layouts and uses the fastest.
            seed: The seed of the first run. A list has one seed per value of the sweep; for a single algorithm, each
                entry starts a group of runs.
            num_seeds: The number of runs per value and first seed.
            evaluate_every: The number of rounds between evaluations.
            on_nonfinite: "drop" ignores uploads with NaN or infinity, "raise" stops at the first one.
            personal_on_test: Whether each personal model is also scored on the common test set, which takes one
                evaluation per client. "auto" does so if clients have no test examples of their own.
            metrics: Metrics to compute besides loss and accuracy, see `METRICS`. Evaluations then copy the predictions
                for all held-out examples to the host: a number per class, or per pixel of a mask.
            diagnostics: The diagnostics of `diagnose` by name; see `fedjax_het.diagnostics`.
            memory_budget: Bytes per device (default None, the memory of the device).
            client_states: "device", "host" (host memory) or "disk" (a file in `folder`); "auto" leaves the device only
                if the memory budget is too small. Results do not depend on it.
            examples: "device", or "stream" from host memory or mapped files, round by round; "auto" as above.
            folder: The folder for client states on disk (default None, the temporary folder).

        Raises:
            InputError: A combination is invalid, the memory budget is too small, or a sweep varies a value that the
                program depends on. Raised before anything runs.
        """
        sweep = algorithm if isinstance(algorithm, Sweep) else Sweep(lambda: algorithm)
        num_values = len(sweep.algorithms)
        seeds = (seed,) * num_values if isinstance(seed, int) else tuple(seed)
        if not seeds or (sweep.values and len(seeds) != num_values):
            raise InputError(
                f"seed: got {len(seeds)} seeds for {num_values} values of a sweep. Pass one seed, or one per value."
            )
        if (last := max(seeds) + num_seeds - 1) > LARGEST_COUNT:
            raise InputError(f"num_seeds: seeds run from {max(seeds)} to {last}; the largest seed is {LARGEST_COUNT}.")
        if isinstance(layout, str) and layout != AUTO:
            raise InputError(f"layout: expected a Layout or '{AUTO}', got '{layout}'.")
        personal_on_test = is_personal_on_test(personal_on_test, federation)
        if personal_on_test and federation.test is None:
            raise InputError("personal_on_test: there is no common test set. Hold one out (test_fraction), or omit it.")
        names = (metrics,) if isinstance(metrics, str) else metrics
        metrics = check_metrics(names, federation.examples.labels, federation.units)
        participation = participation or (full() if cohort_size is None else uniform(cohort_size))
        block, requested_offload = min(evaluate_every, rounds), OffloadPolicy(client_states, examples)
        spec = RunSpec(
            sweep,
            model,
            federation,
            participation,
            rounds,
            block,
            seeds,
            num_seeds,
            personal_on_test,
            timing,
            metrics=metrics,
        ).with_events(asynchronous)
        folder = Path(folder or tempfile.gettempdir())
        self.federation, self.num_seeds, self.on_nonfinite = federation, num_seeds, on_nonfinite
        self.rounds, self.evaluate_every = rounds, evaluate_every
        self.executor, self.choice = build_executor(spec, layout, requested_offload, memory_budget, folder)
        self.layout, self.offload = self.executor.traced.layout, self.executor.offload
        self._diagnose, peak, self.diagnosis_seconds = None, self.executor.peak_bytes, 0.0
        if diagnostics:
            self._diagnose, diagnosis_peak, self.diagnosis_seconds = compile_diagnostics(
                self.executor, diagnostics, memory_budget
            )
            peak = max(peak, diagnosis_peak)
        held, seconds = cost.resident_bytes(self.executor.traced, self.offload), self.executor.compile_seconds
        self.cost = cost.run_cost(self.executor.traced, held, peak, seconds)

    @property
    def has_personal(self) -> bool:
        """Whether clients have personal models: part of the model is local, or a rule builds them."""
        traced = self.executor.traced
        return has_own_models(traced.shapes.state.clients, traced.round.algorithm)

    # ---- running -----------------------------------------------------------------------------------------------------
    def start(self) -> State:
        """The state before round 0."""
        return self.executor.start()

    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        """Run several rounds in one call.

        Args:
            state: The state; it must not be used afterwards.
            num_rounds: The number of rounds, at most `evaluate_every`.

        Returns:
            (The new state, metrics [runs, num_rounds, ...].)

        Raises:
            NonFiniteError: An upload is not finite and `on_nonfinite` is "raise".
        """
        longest = self.executor.traced.spec.block
        if not 1 <= num_rounds <= longest:
            raise ValueError(f"advance takes 1 to {longest} rounds at a time, not {num_rounds}")
        first = int(np.asarray(state.server.round)[0])
        state, metrics = self.executor.advance(state, num_rounds)
        if self.on_nonfinite == "raise":
            _stop_at_nonfinite(metrics, first)
        return state, metrics

    def evaluate(self, state: State) -> Evaluation:
        """Evaluate on all held-out examples; the results are NumPy arrays."""
        return self.executor.evaluate(state)

    def diagnose(self, state: State) -> DiagnosticValues:
        """Diagnose the next round; the state stays valid.

        Returns:
            {diagnostic: {quantity: NumPy arrays [runs, ...]}}.
        """
        if self._diagnose is None:
            raise ValueError("this simulation has no diagnostics. Pass some: Simulation(..., diagnostics={...})")
        return self._diagnose(state)

    def count_overflow(self, first: int, end: int) -> np.ndarray | None:
        """Count the clients drawn in rounds `first` to `end - 1` that exceeded the slots of their round.

        Returns:
            [runs]; None if the participation rule has no limit on slots.
        """
        traced = self.executor.traced
        if (overflow := traced.round.overflow) is None:
            return None
        overflow_of_runs = jax.vmap(overflow, in_axes=(None, 0))
        counts = jax.jit(jax.vmap(overflow_of_runs, in_axes=(0, None)))(traced.spec.keys(), np.arange(first, end))
        return np.asarray(counts).sum(axis=1)

    def count_attackers(self) -> np.ndarray | None:
        """Count the attackers among the sampled and available clients of each round.

        Returns:
            [runs, rounds]; None if no uplink stage is an attack, or if cohorts depend on what clients report.
        """
        traced, spec = self.executor.traced, self.executor.traced.spec
        stages = spec.algorithm.uplink
        if not any(stage.attackers for stage in stages) or spec.participation.init:
            return None

        def count(key: Key, schedule: EventSchedule | None) -> Array:
            def count_in_round(number: Array) -> Array:
                cohort = traced.round.draw(key, number, schedule, ())
                is_attacker = uplink.is_lying(stages, jnp.asarray(cohort.ids), spec.num_clients)
                assert is_attacker is not None  # a stage is an attack
                return jnp.sum(jnp.asarray(cohort.is_here) & is_attacker)

            return jax.lax.map(count_in_round, jnp.arange(spec.rounds))

        return np.asarray(jax.jit(jax.vmap(count))(spec.keys(), spec.schedule))

    def stops(self, done: int = 0, *also_every: int) -> Iterator[int]:
        """Yield the round counts at which a run pauses: multiples of each interval, and the end.

        Args:
            done: The number of rounds done.
            *also_every: Intervals besides `evaluate_every`; 0 is ignored.
        """
        while done < self.rounds:
            ends = [(done // interval + 1) * interval for interval in (self.evaluate_every, *also_every) if interval]
            done = min([*ends, self.rounds])
            yield done

    def is_evaluated(self, round: int) -> bool:
        """Whether a run is evaluated after this many rounds."""
        return round % self.evaluate_every == 0 or round == self.rounds


def is_personal_on_test(setting: bool | str, federation: Federation) -> bool:
    """Whether personal models are scored on the common test set, as set or as "auto" decides."""
    if isinstance(setting, bool):
        return setting
    return federation.test is not None and not np.any(federation.data.test.count)


def _stop_at_nonfinite(metrics: RoundMetrics, first: int) -> None:
    if not metrics.is_nonfinite.any():
        return
    seed, offset, _ = np.argwhere(metrics.is_nonfinite)[0]
    if metrics.is_rejected[seed, offset]:
        raise NonFiniteError(
            f"round {first + offset}: the clients' updates are finite, but the server's result contains NaN or "
            "infinity. Lower the learning rates, or set on_nonfinite='drop' to skip such rounds."
        )
    clients = metrics.cohort[seed, offset][metrics.is_nonfinite[seed, offset]].tolist()
    raise NonFiniteError(
        f"round {first + offset}: clients {clients} sent NaN or infinity. Lower the learning rate, check their data, "
        "or set on_nonfinite='drop' to skip them."
    )
