"""Selection by what clients report: the poll before training, and what the participation rule is told after it."""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
from jaxtyping import Bool

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.round import client_step, uplink
from fedjax_het.engine.round.client_step import ClientResult, Cohort, CohortMember, Common
from fedjax_het.engine.round.participation import REPORT, Participation, Poll, Told
from fedjax_het.errors import InputError
from fedjax_het.problem import Problem
from fedjax_het.types import Array, PyTree, ServerState


def check_selection(algorithm: Algorithm, participation: Participation) -> None:
    """Raise InputError where the clients that train must not depend on what clients report."""
    if not participation.reads_reports:
        return
    if uplink.hides_examples(algorithm.uplink) or algorithm.record_privacy:
        raise InputError(
            "participation: this rule reads numbers that clients report without noise, which no guarantee of privacy "
            "covers. Use uniform (cohort_size), poisson or all clients."
        )
    if algorithm.mixing:
        raise InputError("participation: a rule that reads reports needs a server. Use uniform, or another algorithm.")


def add_report(algorithm: Algorithm, participation: Participation) -> Algorithm:
    """The algorithm whose clients also report what the participation rule reads."""
    if participation.report is None:
        return algorithm
    return replace(algorithm, reports={**algorithm.reports, REPORT: participation.report})


def poll_clients(
    poll: Poll | None,
    server: ServerState,
    cohort_size: int,
    algorithm: Algorithm,
    problem: Problem,
    layout: Layout,
    common: Common,
    members: CohortMember,
    cohort: Cohort,
) -> tuple[Cohort, CohortMember, PyTree]:
    """Poll the cohort.

    Returns:
        (The cohort with the number of polled clients, its members, of which only the chosen train, the state of the
        participation.)
    """
    if poll is None:
        return cohort, members, server.participation
    question = replace(algorithm, survey={REPORT: poll.measure})
    answers = layout.map(partial(client_step.run_survey, question, problem), common, members)[REPORT]
    has_examples = jnp.asarray(members.is_here) & (jnp.asarray(members.rows[0].count) > 0)
    is_polled = has_examples & jnp.isfinite(answers)
    answers, is_polled = tree.take((jnp.where(is_polled, answers, 0), is_polled), slice(cohort_size))
    told = Told(server.round + 1, jnp.asarray(cohort.ids[:cohort_size]), is_polled, answers)
    is_chosen, known = poll.choose(server.participation, told)
    is_chosen = jnp.pad(is_chosen, (0, len(has_examples) - cohort_size))
    train, valid = (part._replace(count=jnp.where(is_chosen, part.count, 0)) for part in members.rows)
    cohort = cohort._replace(num_polled=jnp.sum(has_examples, dtype=jnp.int32))
    return cohort, members._replace(rows=(train, valid), is_here=is_chosen), known


def update_known(
    participation: Participation,
    server: ServerState,
    cohort: Cohort,
    is_used: Bool[Array, "cohort"],
    results: ClientResult,
) -> PyTree:
    """The state of the participation after a round."""
    if participation.update is None:
        return server.participation
    ids, reports = jnp.asarray(cohort.ids[: len(is_used)]), results.upload.reports.get(REPORT)
    return participation.update(server.participation, Told(server.round + 1, ids, is_used, reports, results.seconds))
