"""Methods for data that change with the round: FLASH, Adaptive-FedAvg and FedDrift."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.server import drift, optimizers
from fedjax_het.server.drifting_groups import DriftSettings, Groups, begin_groups, change_groups, start_groups
from fedjax_het.types import Broadcast, ServerView
from tests.golden.cases import Case, covers
from tests.golden.family_fedopt import Server


@covers("flash", "*")
def flash(case: Case):
    settings = {"learning_rate": case.meta["eta"], "b1": case.meta["beta_1"], "b2": case.meta["beta_2"]}
    server = Server(optimizers.flash(**settings, tau=case.meta["tau"]), {"w": case["x0"]})
    rounds = []
    for delta in case["delta"]:
        moved, state = server.step({"w": jnp.asarray(delta)}), server.state
        rounds.append((moved["w"], -state.first["w"], state.second["w"], state.drift["w"]))
    x, m, v, d = map(np.stack, zip(*rounds, strict=True))
    yield case.compare("x", x)
    yield case.compare("m", m)
    yield case.compare("v", v)
    yield case.compare("d", d)
    old, excess = np.concatenate([np.zeros_like(v[:1]), v[:-1]]), case["delta"] ** 2 - v
    yield case.compare("beta_3", old / np.where(np.abs(excess) + old > 0, np.abs(excess) + old, 1))
    adam = Server(optimizers.adam(**settings, tau=1e-3), {"w": case["x0"]})
    yield case.compare("x_fedadam", np.stack([adam.step({"w": jnp.asarray(delta)})["w"] for delta in case["delta"]]))


@covers("drift", "adaptive_fedavg_*")
def adaptive_fedavg(case: Case):
    """The stored model of round t - 1 is that with which clients begin round t."""
    first = case.meta["init_lr"]
    summary = drift.learning_rate_factor(*(case.meta[f"beta{i}"] for i in (1, 2, 3)))
    update, value = jax.jit(summary.update), summary.init(None, {"params": case["theta"][0]}, 1, 1)
    rows = []
    for number, theta in enumerate(case["theta"], start=1):
        received = Broadcast(jnp.asarray(number), {"params": jnp.asarray(theta)}, {})
        value = update(value, None, ServerView(received, None, None, None, 1, None))
        rows.append((first * summary.send(value), value["variance"], value["ratio"]))
    rates, variances, ratios = map(np.stack, zip(*rows, strict=True))
    yield case.compare("lr", rates)
    yield case.compare("variance", variances)
    yield case.compare("ratio", ratios)


def change(
    case: Case, groups: Groups, errors: np.ndarray, of_groups: np.ndarray, step: int
) -> tuple[Groups, np.ndarray]:
    """(the groups after a step, the weights of the old models); errors are 1 - accuracy."""
    linkage, everyone = case.meta["linkage"], jnp.ones(errors.shape[1], bool)
    isolation = case.meta["isolation_steps"] if case.family == "feddrift_clusters" else case.meta["isolation"]
    settings = DriftSettings(case.meta["delta"], case.meta["delta_merge"], isolation, linkage)
    return _change(groups, 1 - jnp.asarray(errors), 1 - jnp.asarray(of_groups), jnp.asarray(step), everyone, settings)


@partial(jax.jit, static_argnums=5)
def _change(groups, errors, of_groups, step, everyone, settings) -> Groups:
    return change_groups(groups, errors, lambda labels, is_counted: of_groups, step, everyone, settings)


def started(case: Case, num_models: int, labels: np.ndarray, accuracies: np.ndarray) -> Groups:
    """The groups after the first step, from these models of the clients."""
    num_clients = len(labels)
    groups = start_groups(max(num_models, num_clients), num_clients, "separate" if labels[-1] else "common")
    assert np.array_equal(groups.labels, labels)
    groups = groups._replace(**{name: getattr(groups, name)[:num_models] for name in ("uses", "last_used")})
    return begin_groups(groups, 1 - jnp.broadcast_to(jnp.asarray(accuracies), (num_models, num_clients)))


def isolated(groups: Groups, step: int) -> np.ndarray:
    return np.where(groups.until > step, groups.labels, -1)


@covers("feddrift", "*")
def drifting_groups(case: Case):
    """The released form F gives drifting clients models in use, as in the wrong case; models that merged are zeros."""
    case.meta["seed"]
    first = case["assignment_first"]
    num_models = len(first)
    groups = started(case, num_models, np.argmax(first, axis=0), case["best_before"][0])
    rows, references = [], []
    for step, (errors, of_groups, before) in enumerate(
        zip(case["acc"], case["cluster_acc"], case["model_in"], strict=True), start=1
    ):
        references.append(1 - groups.errors)
        groups = change(case, groups, errors, of_groups, step)
        assignment = np.arange(num_models)[:, None] == np.asarray(groups.labels)
        rows.append((assignment, isolated(groups, step), groups.weights @ before))
    assignments, isolations, models = map(np.stack, zip(*rows, strict=True))
    yield case.compare("best_before", np.stack(references))
    hold = case.refute if case.name.startswith("x_wrong") else case.compare
    yield hold("assignment", assignments)
    yield hold("isolated_model", isolations)
    yield hold("model_out", models)
    yield hold("assignment_end", groups.uses, part=lambda history: history.sum(axis=(0, 2)))


@covers("feddrift_clusters", "*")
def clusters(case: Case):
    starts = {False: "one model", True: "one model per client"}
    case.meta.confirm(distance="A", start=starts[bool(case["assign"][0, -1])])
    groups = started(case, len(case["params0"]), case["assign"][0], case["accuracy0"])
    params, rows = case["params0"], []
    for step, (accuracy, of_groups) in enumerate(zip(case["accuracy"], case["cluster_accuracy"], strict=True)):
        if step:
            groups = change(case, groups, accuracy, of_groups, step)
            params = groups.weights @ params
        rows.append((groups.labels, isolated(groups, step), 1 - groups.errors, groups.uses > 0, params))
    assign, marked, memory, in_use, models = map(np.stack, zip(*rows, strict=True))
    yield case.compare("assign", assign)
    yield case.compare("marked", marked)
    yield case.compare("accuracy_memory", memory)
    yield case.compare("in_use", in_use)
    yield case.compare("params", np.where(in_use[..., None], models, 0), part=lambda array: array * in_use[..., None])
