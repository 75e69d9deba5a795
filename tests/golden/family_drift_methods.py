"""Methods for data that change with the round: FLASH and Adaptive-FedAvg."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.server import drift, optimizers
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
