"""Whole trainings: rounds compiled into one call between evaluations, several seeds side by side."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.engine.diagnose import Diagnostic, DiagnosticValues, compile_diagnostics
from fedjax_het.engine.evaluation.evaluate import Evaluation, has_personal
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.run_spec import AUTO, CLIENT_STATES, EXAMPLES, OffloadPolicy, RunSpec
from fedjax_het.engine.parallel.layout import Layout, vmapped
from fedjax_het.engine.parallel.runs import Sweep
from fedjax_het.engine.planning.memory_budget import build_executor
from fedjax_het.engine.round.participation import Participation, full, uniform
from fedjax_het.engine.round.program import RoundMetrics
from fedjax_het.errors import InputError, NonFiniteError
from fedjax_het.types import Model, State
from fedjax_het.validation import LARGEST_COUNT, Count, Range, Seed, validate_arguments

ON_NONFINITE = ("drop", "raise")
Bytes = Annotated[int, Range(1, 2**63 - 1, is_whole=True)]


class Simulation:
    """A training that is checked and compiled: its rounds, its evaluation, and its diagnostics.

    The leaves of every state, metric and evaluation that come out carry a leading axis of runs, [num_seeds], or
    [values * num_seeds] of a sweep, the seeds of a value beside each other. Seed s of a run is `seed + s`: initial
    weights, cohorts and batches follow from it; who has which data does not. Where client states are kept off the
    device, the `clients` of a state are a ClientStore.
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
        layout: Layout | str = vmapped,
        seed: Seed | Sequence[Seed] = 0,
        num_seeds: Count = 1,
        evaluate_every: Count = 10,
        on_nonfinite: str = "drop",
        personal_on_test: bool | Literal["auto"] = "auto",
        diagnostics: Mapping[str, Diagnostic] | None = None,
        memory_budget: Bytes | None = None,
        client_states: str = AUTO,
        examples: str = AUTO,
        folder: str | Path | None = None,
    ):
        """Check the parts against each other, and compile.

        Args:
            algorithm: One, or a sweep over its hyper-parameters, Sweep(fedprox, {"mu": [0.01, 0.1]}), which is trained
                side by side, as one program.
            model: A network, see `fedjax_het.models`.
            federation: Who has which examples, see `fedjax_het.data.federate`.
            rounds: Of the training.
            cohort_size: Clients per round, drawn uniformly; None is all of them.
            participation: Any other rule of who takes part.
            layout: How many clients run side by side on which devices; "auto" times a few layouts and takes the
                quickest, and `choice` says which and why.
            seed: Of the first run; a list has one for each value of the sweep, or begins as many runs of a single
                algorithm.
            num_seeds: Runs of each, side by side, with the seeds that follow.
            evaluate_every: Rounds between evaluations; there is one after the last round, too.
            on_nonfinite: "drop" leaves out updates that hold NaN or infinity, "raise" stops.
            personal_on_test: Score every client's own model on the common test set too, which takes as many
                evaluations as there are clients. "auto": where clients have no test examples of their own.
            diagnostics: What `diagnose` measures, by name; see `fedjax_het.diagnostics`.
            memory_budget: Bytes on each device; None is what it has. Where it is too little, settings that are "auto"
                keep less on the device.
            client_states: "device", "host" (its memory), "disk" (a file in `folder`), or "auto".
            examples: "device", "stream" (those of one round after the other, from host memory or what is mapped
                there), or "auto". `offload` has what was chosen for both; no result depends on it.
            folder: Of client states on disk; by default where temporary files go.

        Raises:
            InputError: Before anything runs, for what cannot work, a budget in which nothing fits included, and for a
                sweep over what the program depends on.
        """
        sweep = algorithm if isinstance(algorithm, Sweep) else Sweep(lambda: algorithm)
        num_values = len(sweep.algorithms)
        seeds = (seed,) * num_values if isinstance(seed, int) else tuple(seed)
        if not seeds or (sweep.values and len(seeds) != num_values):
            raise InputError(f"seed: {len(seeds)} for {num_values} values of a sweep. Give one for all, or one each.")
        if (last := max(seeds) + num_seeds - 1) > LARGEST_COUNT:
            raise InputError(f"num_seeds: seeds go on from {max(seeds)} to {last}; the last there is {LARGEST_COUNT}.")
        _check_one_of("on_nonfinite", on_nonfinite, ON_NONFINITE)
        _check_one_of("client_states", client_states, CLIENT_STATES)
        _check_one_of("examples", examples, EXAMPLES)
        if isinstance(layout, str) and layout != AUTO:
            raise InputError(f"layout: a Layout or '{AUTO}', not '{layout}'.")
        personal_on_test = is_personal_on_test(personal_on_test, federation)
        if personal_on_test and federation.test is None:
            raise InputError(
                "personal_on_test: there is no common test set. Hold one out (test_fraction), or leave it."
            )
        participation = participation or (full() if cohort_size is None else uniform(cohort_size))
        block, requested_offload = min(evaluate_every, rounds), OffloadPolicy(client_states, examples)
        spec = RunSpec(sweep, model, federation, participation, rounds, block, seeds, num_seeds, personal_on_test)
        folder = Path(folder or tempfile.gettempdir())
        self.federation, self.num_seeds, self.on_nonfinite = federation, num_seeds, on_nonfinite
        self.rounds, self.evaluate_every = rounds, evaluate_every
        self.runner, self.choice = build_executor(spec, layout, requested_offload, memory_budget, folder)
        self.layout, self.offload = self.runner.traced.layout, self.runner.offload
        self._look, peak, self.diagnosis_seconds = None, self.runner.peak_bytes, 0.0
        if diagnostics:
            self._look, at_look, self.diagnosis_seconds = compile_diagnostics(self.runner, diagnostics, memory_budget)
            peak = max(peak, at_look)
        held, seconds = cost.resident_bytes(self.runner.traced, self.offload), self.runner.compile_seconds
        self.facts = cost.run_cost(self.runner.traced, held, peak, seconds)

    @property
    def has_personal(self) -> bool:
        """Whether a part of the model stays with its client."""
        return has_personal(self.runner.traced.shapes.state.clients)

    # ---- running -----------------------------------------------------------------------------------------------------
    def start(self) -> State:
        """The state before round 0."""
        return self.runner.start()

    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        """So many rounds in one call; the given state is consumed. Metrics have leaves [runs, num_rounds, ...].

        Raises NonFiniteError, with round and clients, if an upload was not finite and the run is to stop for that.
        """
        longest = self.runner.traced.spec.block
        if not 1 <= num_rounds <= longest:
            raise ValueError(f"advance takes 1 to {longest} rounds at a time, not {num_rounds}")
        first = int(np.asarray(state.server.round)[0])
        state, metrics = self.runner.advance(state, num_rounds)
        if self.on_nonfinite == "raise":
            _stop_at_nonfinite(metrics, first)
        return state, metrics

    def evaluate(self, state: State) -> Evaluation:
        """Everything that is held out, in numpy."""
        return self.runner.evaluate(state)

    def diagnose(self, state: State) -> DiagnosticValues:
        """{diagnostic: {quantity: in numpy, leaves [runs, ...]}} of the round that comes next; the state stays."""
        return self._look(state)

    def stops(self, done: int = 0, *also_every: int) -> Iterator[int]:
        """The round numbers after `done` at which a run pauses: multiples of every interval, and the end."""
        while done < self.rounds:
            ends = [(done // every + 1) * every for every in (self.evaluate_every, *also_every) if every]
            done = min([*ends, self.rounds])
            yield done

    def is_evaluated(self, round: int) -> bool:
        return round % self.evaluate_every == 0 or round == self.rounds


def is_personal_on_test(setting: bool | str, federation: Federation) -> bool:
    """Whether own models are scored on the common test set: as the setting says, or what "auto" comes to."""
    if setting != AUTO:
        return setting
    return federation.test is not None and not np.any(federation.data.test.count)


def _check_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name}: must be one of {', '.join(allowed)}, not '{value}'.")


def _stop_at_nonfinite(metrics: RoundMetrics, first: int) -> None:
    if not metrics.is_nonfinite.any():
        return
    seed, offset, _ = np.argwhere(metrics.is_nonfinite)[0]
    if metrics.is_rejected[seed, offset]:
        raise NonFiniteError(
            f"round {first + offset}: the clients' updates are finite, what the server made of them holds NaN or "
            "infinity. Lower the learning rates, or let on_nonfinite='drop' leave such a round without effect."
        )
    clients = metrics.cohort[seed, offset][metrics.is_nonfinite[seed, offset]].tolist()
    raise NonFiniteError(
        f"round {first + offset}: clients {clients} sent NaN or infinity. Lower the learning rate, look at their "
        "data, or let on_nonfinite='drop' leave them out."
    )
