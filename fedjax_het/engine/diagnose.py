"""Diagnostics of the next round, which is trained exactly as it will be and then discarded."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.executor import Executor
from fedjax_het.engine.execution.loading import CohortBatch
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round import uplink
from fedjax_het.errors import InputError
from fedjax_het.placeholders import unseal
from fedjax_het.problem import Problem
from fedjax_het.types import Array, ClientData, Examples, Key, Named, RoundSnapshot, ServerView, State

Diagnostic = Callable[[Problem, RoundSnapshot], Named]
DiagnosticValues = dict[str, Named]


def compile_diagnostics(
    executor: Executor, diagnostics: Mapping[str, Diagnostic], budget: int | None
) -> tuple[Callable[[State], DiagnosticValues], int, float]:
    """Compile the diagnostics of a run.

    Args:
        executor: The executor of the run.
        diagnostics: The diagnostics by name.
        budget: Bytes per device; None: no limit.

    Returns:
        (A function of the state, its peak bytes per device, its compilation time in seconds.)

    Raises:
        InputError: The budget is too small.
    """
    start_time, traced = time.perf_counter(), executor.traced
    measure, peak = executor.compile_measures(make_diagnosis(traced.spec, traced.layout, diagnostics))
    if budget is not None and peak > budget:
        needed, allowed, rounds = (f"{cost.format_megabytes(size)} MB" for size in (peak, budget, executor.peak_bytes))
        raise InputError(
            f"memory_budget: {', '.join(diagnostics)} need {needed} on each device, but {allowed} are allowed (rounds: "
            f"{rounds}). Use fewer diagnostics, a smaller cohort_size or layout chunked(1), or raise it."
        )
    return measure, peak, time.perf_counter() - start_time


def make_diagnosis(
    spec: RunSpec, layout: Layout, diagnostics: Mapping[str, Diagnostic]
) -> Callable[..., DiagnosticValues]:
    """Build the function that diagnoses the next round, with the same cohort, batches and noise.

    The models of the whole cohort are in memory at once. Updates have the precision in which they are sent.

    Args:
        spec: The run.
        layout: The layout of the client axis.
        diagnostics: The diagnostics by name.

    Returns:
        (Hyperparameters, state with the clients of the cohort, its batch with test rows, examples, key of the run) ->
        the values of each diagnostic.
    """
    has_tests = bool(np.any(spec.federation.data.test.count))

    def measure(
        hyper_parameters: Mapping[str, Array], state: State, batch: CohortBatch, examples: Examples, key: Key
    ) -> DiagnosticValues:
        if spec.algorithm.models or spec.model.groups:
            raise InputError(
                f"diagnostics: {', '.join(diagnostics)} compare clients with one model of the server, and there are "
                "several. Leave diagnostics out; per_client.csv has the model of each client."
            )
        algorithm = _report_drift(spec.sweep.build(hyper_parameters))
        round = spec.round(layout, algorithm)
        after, metrics, messages = round.train(state, batch.cohort, batch.with_examples(examples), key)
        is_present = messages.uploads.num_examples > 0  # the others sent zeros
        updates, uploads = StackedUpdates(messages.uploads.update, layout), messages.uploads._replace(update={})
        view = ServerView(messages.received, uploads, metrics.cohort, is_present, spec.num_clients, updates)
        test = batch.test if has_tests else None
        rows = tree.take((batch.train, batch.valid, test), slice(round.cohort_size))
        snapshot = RoundSnapshot(
            view=view,
            data=ClientData(examples, *rows),
            personal=tree.take(after.clients.personal, slice(round.cohort_size)),
            shared=after.server.shared,
            gram_edit=algorithm.aggregator.gram_edit,
            key=jax.random.fold_in(key, state.server.round),
            is_attacker=uplink.is_lying(algorithm.uplink, metrics.cohort, spec.num_clients),
        )
        problem = round.problem.bind(state.server.frozen, state.server.base)
        values = {name: diagnostic(problem, snapshot) for name, diagnostic in diagnostics.items()}
        return {"cohort": {"ids": metrics.cohort, "is_present": is_present}, **values}

    return measure


def _report_drift(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm, reporting client drift if its local update can measure it."""
    local_update = algorithm.local_update
    if local_update.train_with_drift is None:
        return algorithm
    return replace(
        algorithm,
        local_update=local_update._replace(train=local_update.train_with_drift),
        reports={**algorithm.reports, "drift": lambda problem, view: jnp.asarray(unseal(view.metrics["drift"]))},
    )
