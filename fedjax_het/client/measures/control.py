"""How a client's control variate changes (SCAFFOLD)."""

import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Measure, Problem
from fedjax_het.client.gradients import full_gradient
from fedjax_het.client.schedules import Schedule, rate
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import ClientView, Params

CONTROLS = ("path", "start")


def change_of_control(
    learning_rate: float, control: str = "path", batch_size: int = 50, schedule: Schedule | None = None
) -> Measure:
    """How a client's control variate changes in the round.

        path (option II):   c_i+ - c_i = -c + (w - y) / (K_i lr)
        start (option I):   c_i+ - c_i = grad F_i(w) - c_i

    Shared leaves only.   Reads: view.start, view.local, num_steps, memory["control"], published["control"].
    (w - y)/(K lr) is the mean of the corrected gradients only for plain SGD with a constant rate, so that the change
    can do without c_i. No step, no change.   batch_size: over which option I accumulates, nothing else.
    schedule: what lr is multiplied by in a round, as in `sgd`; where lr is 0 then, option II changes nothing.
    Karimireddy et al., SCAFFOLD, ICML 2020, Alg. 1. arXiv:1910.06378
    """
    if control not in CONTROLS:
        raise InputError(f"control: unknown option '{control}'. {nearest(control, CONTROLS)}")

    def along_path(view: ClientView) -> Params:
        moved = tree.subtract(view.start["params"], view.local["params"])
        everyone = view.received.published["control"]
        reach = view.num_steps * rate(learning_rate, schedule, view)
        return tree.subtract(_shared(tree.scale(1.0 / jnp.where(reach > 0, reach, 1), moved), view), everyone)

    def measure(problem: Problem, view: ClientView) -> Params:
        has_moved = view.num_steps > 0
        if control == "path":
            change = along_path(view)
            has_moved &= rate(learning_rate, schedule, view) > 0
        else:
            at_start = full_gradient(problem, view, batch_size)
            change = _shared(tree.subtract(at_start, view.memory["control"]), view)
        return tree.where(has_moved, change, tree.zeros_like(change))

    return measure


def _shared(params: Params, view: ClientView) -> Params:
    shared = set(tree.paths(view.received.shared["params"]))
    return tree.partition(params, shared.__contains__)[1]
