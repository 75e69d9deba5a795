"""A sequence of tasks: the classes that clients have had so far, and the model at the end of the last task."""

import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Problem, Summary
from fedjax_het.server.summaries import class_outline
from fedjax_het.types import Named, ServerView, UpdateStack, Variables
from fedjax_het.validation import Count, validate_arguments


@validate_arguments
def tasks_so_far(rounds_per_task: Count = 20) -> Summary:
    """The classes of earlier tasks and of this one, and the server's model at the beginning of this task.

    A survey of the clients' class counts [class], before they train, gives the classes: {"old" [class] bool, those
    that a client of the rounds of an earlier task had; "new" [class], those that one has had since this task began and
    that are not old; "model", the shared variables}. In the first task the model is the initial one.

    Args:
        rounds_per_task: A task begins in each multiple of this round.

    Raises:
        InputError: The model has no outline (see `models.with_logit_shape`).
    """

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> Named:
        none = jnp.zeros(len(class_outline(shared, "logits")), bool)
        return {"old": none, "new": none, "model": shared}

    def update(before: Named, answers: UpdateStack, view: ServerView) -> Named:
        is_first = view.received.round % rounds_per_task == 0
        is_here = jnp.any((answers.tensors() > 0) & view.is_present[:, None], axis=0)
        old = before["old"] | (before["new"] & is_first)
        new = ((before["new"] & ~is_first) | is_here) & ~old
        return {"old": old, "new": new, "model": tree.where(is_first, view.received.shared, before["model"])}

    return Summary(init, update)
