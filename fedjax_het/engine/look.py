"""A whole round for the eyes of diagnostics: trained as the next round will be, and then forgotten."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.engine import client_side, cost
from fedjax_het.engine.job import Job
from fedjax_het.engine.layout import Layout
from fedjax_het.engine.placement import of_cohort
from fedjax_het.engine.problem import LocalProblem
from fedjax_het.engine.residence import RESIDENT
from fedjax_het.engine.resident import Resident
from fedjax_het.engine.streamed import Streamed
from fedjax_het.errors import InputError
from fedjax_het.types import ClientData, Key, Look, Named, PyTree, ServerView, State

Diagnostic = Callable[[LocalProblem, Look], Named]
Measured = dict[str, Named]


def compiled_look(
    runner: Resident | Streamed, diagnostics: Mapping[str, Diagnostic], budget: int | None
) -> tuple[Callable[[State], Measured], int, float]:
    """The look of a run, the bytes that lie on each device at the most while it lasts, and the seconds to compile it.

    Raises InputError where things are not on the device, and where they would not fit beside the look.
    """
    begun, residence = time.perf_counter(), runner.residence
    if residence != RESIDENT:
        where = f"client states are on '{residence.client_states}', examples on '{residence.examples}'"
        raise InputError(f"diagnostics: they need both on the device, and {where}. Leave them out, or stream nothing.")
    wired = runner.wired
    look, peak = runner.watching([looking(job, wired.layout, diagnostics) for job in wired.job.of_each()])
    if budget is not None and peak > budget:
        needed, allowed, rounds = (f"{cost.megabytes(size)} MB" for size in (peak, budget, runner.peak_bytes))
        raise InputError(
            f"memory_budget: {', '.join(diagnostics)} would take {needed} on each device, where {allowed} are allowed "
            f"(rounds: {rounds}). Look at less, take a smaller cohort_size or layout chunked(1), or raise it."
        )
    return look, peak, time.perf_counter() - begun


def looking(
    job: Job, layout: Layout, diagnostics: Mapping[str, Diagnostic]
) -> Callable[[State, ClientData, Key], Measured]:
    """(state, everyone's data, the run's key) -> what each diagnostic says of the round that comes next.

    It is that round: the same cohort, batches and noise. Client models are kept side by side until all is measured.
    Raises InputError for an algorithm whose updates are stacked in a form of its own.
    """
    algorithm = _watched(job.algorithm)
    round, is_everyone = replace(job, algorithms=(algorithm,)).round(layout), job.participation.is_everyone
    has_tests = bool(np.any(job.federation.data.test.count))
    if algorithm.aggregator.pack:
        raise InputError("diagnostics: this algorithm packs updates, which cannot be looked into. Set stack='float32'.")

    def measure(state: State, data: ClientData, key: Key) -> Measured:
        cohort = round.draw(key, state.server.round)
        seen, clients = client_side.window(data, cohort), of_cohort(state.clients, cohort.ids, is_everyone)
        test = tree.take(data.test, cohort.ids) if has_tests else None
        after, metrics, said = round.train(state._replace(clients=clients), cohort, seen, key)
        is_present = said.uploads.num_examples > 0  # whoever is not sent zeros
        view = ServerView(
            said.received, said.uploads, metrics.cohort, is_present, job.num_clients, on_stack=layout.on_stack
        )
        look = Look(
            view=view,
            data=ClientData(seen.examples, *_first((seen.train, seen.valid, test), round.cohort_size)),
            personal=_first(after.clients.personal, round.cohort_size),
            shared=after.server.shared,
            revision=algorithm.aggregator.revision,
            key=jax.random.fold_in(key, state.server.round),
        )
        found = {name: diagnostic(round.problem, look) for name, diagnostic in diagnostics.items()}
        return {"cohort": {"ids": metrics.cohort, "is_present": is_present}, **found}

    return measure


def _watched(algorithm: Algorithm) -> Algorithm:
    """The same training; where it can be watched, clients report how far they drifted."""
    local_update = algorithm.local_update
    if local_update.watched is None:
        return algorithm
    return replace(
        algorithm,
        local_update=local_update._replace(train=local_update.watched),
        reports={**algorithm.reports, "drift": lambda problem, view: jnp.asarray(view.metrics["drift"])},
    )


def _first(stack: PyTree, num: int) -> PyTree:
    return jax.tree.map(lambda x: x[:num], stack)
