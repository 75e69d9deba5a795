"""FedDyn: the authors' code, third parties that agree with it, and known wrong implementations."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithm import LocalUpdate
from fedjax_het.algorithms import feddyn
from fedjax_het.types import Trained
from tests.golden.cases import Case, covers
from tests.golden.replay import Replay, rate_decay, replay_case, replay_rounds, vector_model


@covers("feddyn", "*")
def training(case: Case):
    settings, counts = case.meta, None
    if "n_samples" in case:
        counts = case["n_samples"]
    settings.confirm(epsilon_clip=1e-6)
    has_clip = isinstance(settings["clip"], int)  # fedacg_repo_* clips the proximal gradient, and says that nothing is

    def build(clip=None, **local):
        return feddyn(
            settings["alpha"],
            mean_examples=None if counts is None else float(np.mean(counts)),
            clip=clip,
            learning_rate=settings["lr"],
            weight_decay=settings.get("wd", 0.0),
            learning_rate_schedule=rate_decay(settings["lr_decay"]) if "lr_decay" in settings else None,
            **local,
        )

    clipped = replay_case(case, lambda **local: build(float(settings["clip"]) if has_clip else None, **local), counts)
    plain = replay_case(case, build, counts) if case.name.startswith("clip_") else clipped
    yield from _compare_states(case, clipped)
    weights, history, total = _values(plain)
    if "x_paper" in case:
        yield case.compare("x_paper", weights)
    shares = 1.0 if counts is None else (counts / np.mean(counts))[:, None]
    if "gradient_i_paper" in case:
        yield case.compare("gradient_i_paper", -settings["alpha"] / shares * history)
    if "h_paper" in case:
        yield case.compare("h_paper", -settings["alpha"] * total)
    for name in case.matching("x_wrong_*"):
        yield case.refute(name, weights)


def _compare_states(case: Case, replay: Replay):
    weights, history, total = _values(replay)
    selected, local = case["selected"], replay.local()
    yield case.compare("x", weights)
    yield case.compare("local", local)
    if "h_i" in case:
        yield case.compare("h_i", history)
    if "x_mean" in case:  # the first of the models that the release tests
        yield case.compare("x_mean", weights - total)
    if "x_all" in case:  # the second
        last, means = np.repeat(case["x0"][None], len(history[0]), axis=0), []
        for cohort, models in zip(selected, local, strict=True):
            last[cohort] = models
            means.append(last.mean(axis=0))
        yield case.compare("x_all", np.stack(means))


def _values(replay: Replay) -> tuple[np.ndarray, ...]:
    """The server's models, the clients' displacements, and the server's mean of these."""
    return (
        replay.weights(),
        np.stack([state.clients.memory["displacement"]["w"] for state in replay.states]),
        np.stack([state.server.aggregator["w"] for state in replay.states]),
    )


@covers("feddyn", "exact_*")
def exact_minimisers(case: Case):
    """Clients that minimise F_i(w) + alpha <h_i, w> + alpha / 2 |w - x|^2 exactly, F_i = w.H_i w / 2 + t_i.w."""
    alpha, num_clients, size = case.meta["alpha"], int(case["n_clients"]), case["t"].shape[1]

    def train(problem, view, key):
        row = view.data.examples.inputs[view.data.train.index[0]]
        linear, hessian = row[:size], row[size:].reshape(size, size)
        pull = alpha * (view.start["params"]["w"] - view.memory["displacement"]["w"])
        solution = jnp.linalg.solve(hessian + alpha * jnp.eye(size), pull - linear)
        return Trained({"params": {"w": solution}}, jnp.ones(()), (), {"loss": jnp.zeros(())})

    algorithm = replace(feddyn(alpha), local_update=LocalUpdate(train, lambda count: count, 1))
    losses = np.concatenate([case["t"], case["H"].reshape(num_clients, -1)], axis=1)
    inputs, selected = losses[case["selected"]][:, :, None], case["selected"]
    replay = replay_rounds(
        algorithm, vector_model(case["x0"]), inputs, np.zeros(inputs.shape[:3]), selected, num_clients
    )
    weights, history, total = _values(replay)
    yield from _compare_states(case, replay)
    yield case.compare("h_paper", -alpha * total)
    yield case.compare("gradient_i_paper", -alpha * history)
    yield case.compare("x_star", weights[-1])
    yield case.refute("x_fedprox_last", weights[-1])
