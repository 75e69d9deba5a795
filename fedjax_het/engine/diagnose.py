"""A whole round for the eyes of diagnostics: trained as the next round will be, and then forgotten."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.on_device import OnDeviceExecutor
from fedjax_het.engine.execution.run_spec import ALL_ON_DEVICE, RunSpec
from fedjax_het.engine.execution.streaming import StreamingExecutor
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round import client_step
from fedjax_het.engine.round.population import gather_cohort
from fedjax_het.engine.round.problem import LocalProblem
from fedjax_het.errors import InputError
from fedjax_het.types import Array, ClientData, Key, Named, PyTree, RoundSnapshot, ServerView, State

Diagnostic = Callable[[LocalProblem, RoundSnapshot], Named]
DiagnosticValues = dict[str, Named]


def compile_diagnostics(
    runner: OnDeviceExecutor | StreamingExecutor, diagnostics: Mapping[str, Diagnostic], budget: int | None
) -> tuple[Callable[[State], DiagnosticValues], int, float]:
    """The look of a run, the bytes that lie on each device at the most while it lasts, and the seconds to compile it.

    Raises InputError where things are not on the device, and where they would not fit beside the look.
    """
    begun, offload = time.perf_counter(), runner.offload
    if offload != ALL_ON_DEVICE:
        where = f"client states are on '{offload.client_states}', examples on '{offload.examples}'"
        raise InputError(f"diagnostics: they need both on the device, and {where}. Leave them out, or stream nothing.")
    traced = runner.traced
    look, peak = runner.compile_measures(make_diagnosis(traced.spec, traced.layout, diagnostics))
    if budget is not None and peak > budget:
        needed, allowed, rounds = (f"{cost.format_megabytes(size)} MB" for size in (peak, budget, runner.peak_bytes))
        raise InputError(
            f"memory_budget: {', '.join(diagnostics)} would take {needed} on each device, where {allowed} are allowed "
            f"(rounds: {rounds}). Look at less, take a smaller cohort_size or layout chunked(1), or raise it."
        )
    return look, peak, time.perf_counter() - begun


def make_diagnosis(
    spec: RunSpec, layout: Layout, diagnostics: Mapping[str, Diagnostic]
) -> Callable[[Mapping[str, Array], State, ClientData, Key], DiagnosticValues]:
    """(the run's hyper-parameters, state, everyone's data, its key) -> what each diagnostic says of the round that
    comes next.

    It is that round: the same cohort, batches and noise. Client models are kept side by side until all is measured.
    Updates are looked at as the server has them: in bfloat16, where they are sent so.
    """
    is_everyone, has_tests = spec.participation.is_everyone, bool(np.any(spec.federation.data.test.count))

    def measure(hyper_parameters: Mapping[str, Array], state: State, data: ClientData, key: Key) -> DiagnosticValues:
        algorithm = _report_drift(spec.sweep.build(hyper_parameters))
        round = spec.round(layout, algorithm)
        cohort = round.draw(key, state.server.round)
        seen, clients = client_step.cohort_data(data, cohort), gather_cohort(state.clients, cohort.ids, is_everyone)
        test = tree.take(data.test, cohort.ids) if has_tests else None
        after, metrics, messages = round.train(state._replace(clients=clients), cohort, seen, key)
        is_present = messages.uploads.num_examples > 0  # whoever is not sent zeros
        updates, uploads = StackedUpdates(messages.uploads.update, layout), messages.uploads._replace(update={})
        view = ServerView(messages.received, uploads, metrics.cohort, is_present, spec.num_clients, updates)
        look = RoundSnapshot(
            view=view,
            data=ClientData(seen.examples, *_take_first((seen.train, seen.valid, test), round.cohort_size)),
            personal=_take_first(after.clients.personal, round.cohort_size),
            shared=after.server.shared,
            gram_edit=algorithm.aggregator.gram_edit,
            key=jax.random.fold_in(key, state.server.round),
        )
        found = {name: diagnostic(round.problem, look) for name, diagnostic in diagnostics.items()}
        return {"cohort": {"ids": metrics.cohort, "is_present": is_present}, **found}

    return measure


def _report_drift(algorithm: Algorithm) -> Algorithm:
    """The same training; where it can be watched, clients report how far they drifted."""
    local_update = algorithm.local_update
    if local_update.train_with_drift is None:
        return algorithm
    return replace(
        algorithm,
        local_update=local_update._replace(train=local_update.train_with_drift),
        reports={**algorithm.reports, "drift": lambda problem, view: jnp.asarray(view.metrics["drift"])},
    )


def _take_first(stack: PyTree, num: int) -> PyTree:
    return jax.tree.map(lambda x: x[:num], stack)
