"""Replay of stored losses, with the points at which sharpness-aware rules ask for gradients."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.parallel.layout import chunked
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Params, State
from tests.golden.cases import Case
from tests.golden.replay import rate_decay, replay_rounds, stored_losses, vector_model


class Ascents(NamedTuple):
    """A replayed run."""

    states: list[State]  # after each round
    x: np.ndarray  # [rounds, d], the server's models
    local: np.ndarray  # [rounds, cohort, d], the models of the clients
    nearby: np.ndarray  # [rounds, cohort, steps, d], the perturbed points of the second gradients


def replay_ascents(case: Case, build: Callable[..., Algorithm], num_weights: int | None = None) -> Ascents:
    """Replay a case, and record where the gradient of the task is asked for: twice in each step.

    Args:
        case: The case: x0, n_clients, selected, n_samples where counts differ, and what `stored_losses` reads.
        build: The algorithm from the settings of its local training.
        num_weights: The first entries, this many, are a parameter "kernel", the others one named "bias"; None
            is one parameter.
    """
    objective, inputs, labels, steps, size = stored_losses(case)
    settings, counts, points = _local_settings(case), None, []
    if "n_samples" in case:
        settings, counts = {**settings, "steps": steps}, case["n_samples"]

    def task(forward: ForwardPass) -> jax.Array:
        weights = _join(forward.params)
        bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(weights), jnp.uint32)  # in its thread float64 is off
        io_callback(lambda value: points.append(np.array(value).view(np.float64)[:, 0]), None, bits, ordered=True)
        return objective(forward._replace(params={"w": weights}))

    algorithm = build(batch_size=size, shuffle=False, **settings)
    algorithm = replace(algorithm, objective=(task, *algorithm.objective[1:]))
    model = vector_model(case["x0"])
    if num_weights is not None:
        split = {"kernel": jnp.asarray(case["x0"][:num_weights]), "bias": jnp.asarray(case["x0"][num_weights:])}
        model = model._replace(init=lambda key, inputs: {"params": split})
    states, trained = replay_rounds(
        algorithm, model, inputs, labels, case["selected"], int(case["n_clients"]), counts, layout=chunked(1)
    )
    jax.effects_barrier()
    x = np.stack([_join(state.server.shared["params"]) for state in states])
    local = np.stack([_join(variables["params"]) for variables in trained])
    recorded = np.reshape(points, (*case["selected"].shape, steps, 2, -1))
    return Ascents(states, x, local, recorded[..., 1, :])


def _local_settings(case: Case) -> dict:
    """The settings of local training that a case's meta names."""
    schedule = {"learning_rate_schedule": rate_decay(case.meta["lr_decay"])} if "lr_decay" in case.meta else {}
    momentum = {"momentum": case.meta["momentum"]} if "momentum" in case.meta else {}
    return {"learning_rate": case.meta["lr"], "weight_decay": case.meta.get("wd", 0.0), **momentum, **schedule}


def _join(params: Params) -> jax.Array:
    """The parameters as one vector, or for leaves [clients, ...] as vectors."""
    return params["w"] if "w" in params else jnp.concatenate([params["kernel"], params["bias"]], axis=-1)
