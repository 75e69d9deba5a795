"""Correlated noise: strategies with given coefficients and normals, whole rounds of the stage, and the accountant."""

from collections.abc import Iterator
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from fedjax_het import noise, privacy, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import ReceiveView, StageView
from fedjax_het.client.optimizers import torch_sgd
from fedjax_het.privacy import PoissonSampling
from fedjax_het.types import Broadcast
from fedjax_het.uplink import _matrix, matrix_mechanism, noise_strategy
from fedjax_het.uplink._noise_strategies import (
    NoiseStrategy,
    buffered_strategy,
    inverse_strategy,
    invert_series,
    root_coefficients,
    toeplitz_strategy,
    tree_strategy,
)
from tests.golden.cases import Case, Comparison, covers
from tests.views import server_view

ACCOUNTANT, OPTIMIZER = 1e-4, 1e-3


def correlate(strategy: NoiseStrategy, normals: np.ndarray) -> np.ndarray:
    """The noise of every round from the normals [T, d]."""
    kept, values = jnp.zeros((strategy.size, normals.shape[1])), []
    for number, normal in enumerate(normals):
        value, kept = strategy.step(kept, jnp.asarray(normal), jnp.asarray(number))
        values.append(np.asarray(value))
    return np.stack(values)


def compare_noise(case: Case, strategy: NoiseStrategy) -> Iterator[Comparison]:
    values = correlate(strategy, case["standard_normal"])
    yield case.compare("correlated_noise", values)
    if "prefix_sums" in case:
        yield case.compare("prefix_sums", np.cumsum(values, axis=0))


@covers("matrix_noise", "*_*")
def toeplitz(case: Case) -> Iterator[Comparison]:
    """Coefficients of an optimizer are given; ours have the same loss."""
    column, rounds = case["strategy_coef"], int(case["n"])
    strategy = toeplitz_strategy(column, rounds, rounds)
    yield case.compare("noising_coef", invert_series(strategy.coefficients))
    yield case.compare("sensitivity_single", strategy.sensitivity())
    found = [
        toeplitz_strategy(column, rounds, int(separation)).sensitivity(None, int(limit) if limit > 0 else None)
        for separation, limit, _ in case["sensitivity_minsep"]
    ]
    yield case.compare("sensitivity_minsep", found, part=lambda table: table[:, 2])
    errors = strategy.errors()
    yield case.compare("per_query_error", errors)
    for name, value in (("max", errors.max()), ("mean", errors.mean())):
        yield case.compare(f"{name}_error", value)
        yield case.compare(f"{name}_loss_single", value * strategy.sensitivity() ** 2)
    yield from compare_noise(case, strategy)
    kind = case.name.partition("_")[0]
    if kind in ("identity", "optimal"):
        ours = noise_strategy(kind, rounds, rounds).coefficients
        yield case.compare("strategy_coef", ours[: len(column)])
    elif kind == "truncated":
        yield case.compare("strategy_coef", root_coefficients(len(column)))
    else:
        ours = noise_strategy(kind, rounds, rounds, bands=len(column))
        yield case.compare("mean_loss_single", np.mean(ours.errors()) * ours.sensitivity() ** 2, OPTIMIZER)


@covers("matrix_noise", "buffered_*")
def buffered(case: Case) -> Iterator[Comparison]:
    rounds = len(case["strategy_coef"])
    strategy = buffered_strategy(case["buf_decay"], case["output_scale"], rounds, rounds)
    yield case.compare("strategy_coef", strategy.coefficients)
    yield case.compare("noising_coef", invert_series(strategy.coefficients))
    inverse = buffered_strategy(case["inverse_buf_decay"], case["inverse_output_scale"], rounds, rounds)
    yield case.compare("noising_coef", inverse.coefficients)
    yield case.compare("sensitivity_single", strategy.sensitivity())
    yield case.compare("max_error", strategy.errors().max())
    yield from compare_noise(case, strategy)
    ours = noise_strategy("buffered", rounds, rounds, num_buffers=len(case["buf_decay"]))
    assert loss(ours) <= loss(strategy)  # theirs are an approximation for any number of rounds


def loss(strategy: NoiseStrategy) -> float:
    return float(np.mean(strategy.errors())) * strategy.sensitivity() ** 2


@covers("matrix_noise", "inverse_root_*")
def inverse_root(case: Case) -> Iterator[Comparison]:
    rounds, noising = len(case["strategy_coef"]), case["noising_coef"]
    strategy = noise_strategy("inverse_root", rounds, rounds, bands=len(noising))
    yield case.compare("strategy_coef", strategy.coefficients)
    yield case.compare("noising_coef", invert_series(strategy.coefficients)[: len(noising)])
    yield case.compare("sensitivity_single", strategy.sensitivity())
    errors = strategy.errors()
    yield case.compare("per_query_error", errors)
    yield case.compare("max_error", errors.max())
    yield case.compare("mean_error", errors.mean())
    given = inverse_strategy(noising, rounds, rounds)
    normals = np.random.default_rng(0).normal(size=(rounds, 2))
    np.testing.assert_allclose(correlate(given, normals), correlate(strategy, normals), rtol=1e-9)


@covers("matrix_noise", "column_normalised_*")
def normalized(case: Case) -> Iterator[Comparison]:
    column, rounds = case["strategy_coef"], len(case["C"])
    strategy = toeplitz_strategy(column, rounds, len(column), normalize_columns=True)
    matrix = scipy.linalg.toeplitz(strategy.coefficients, np.zeros(rounds))
    yield case.compare("C", matrix / strategy.scales)
    yield case.compare("sensitivity_minsep_3", strategy.sensitivity())
    yield case.compare("max_error", strategy.errors().max())
    yield case.compare("mean_error", strategy.errors().mean())
    yield from compare_noise(case, strategy)


@covers("matrix_noise", "tree_*")
def binary_tree(case: Case) -> Iterator[Comparison]:
    """Round t draws one node: that of its largest complete block."""
    nodes = case["node_noise"]
    rounds = nodes.shape[1]
    levels = [(number & -number).bit_length() - 1 for number in range(1, rounds + 1)]
    normals = np.stack([nodes[level, (number >> level) - 1] for number, level in enumerate(levels, 1)])
    strategy = tree_strategy(rounds, rounds)
    values = correlate(strategy, normals)
    yield case.compare("noise_of_round", values)
    yield case.compare("prefix_noise", np.cumsum(values, axis=0))
    yield case.compare("nodes_used", strategy.errors())
    yield case.compare("sensitivity_single", strategy.sensitivity())
    case.meta.confirm(levels=strategy.size)


@covers("matrix_noise", "rounds_*")
def rounds(case: Case) -> Iterator[Comparison]:
    """The stage with a strategy of given coefficients, and then the server's optimizer."""
    updates, normals, meta = case["updates"], case["standard_normal"], case.meta
    num_rounds, num_clients, size = updates.shape
    meta.confirm(max_participations=-1, denominator=num_clients)
    strategy = toeplitz_strategy(case["strategy_coef"], num_rounds, meta["min_separation"])
    yield case.compare("sensitivity", strategy.sensitivity())
    with mock.patch.object(_matrix, "noise_strategy", lambda *arguments: strategy):
        stage = matrix_mechanism(
            meta["clip"], meta["noise_multiplier"], rounds=num_rounds, separation=meta["min_separation"]
        )
    shared = {"params": {"w": jnp.zeros(size)}}
    state, key, means = stage.init_server(shared, num_clients, num_clients), make_key(0), []
    for number in range(num_rounds):
        received = Broadcast(jnp.asarray(number), shared, {}, ((),))
        view = StageView(received, (), (), jnp.asarray(0), num_clients, key, key)
        sent = jax.vmap(lambda u, view=view: stage.send({"params": {"w": u}}, view).update)(
            jnp.asarray(updates[number])
        )
        mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), sent)
        server = server_view(num_clients)._replace(received=received)
        draw = {"params": {"w": jnp.asarray(normals[number])}}
        with mock.patch.object(noise, "draw_normals", lambda key, like, draw=draw: draw):
            update, state = stage.receive(mean, ReceiveView(server, {}, state, key, num_clients, float(num_clients)))
        means.append(update)
    deviation = meta["noise_multiplier"] * meta["clip"] * strategy.sensitivity()
    yield case.compare("correlated_noise", deviation * correlate(strategy, normals))
    yield case.compare("released_mean", np.stack([update["params"]["w"] for update in means]))
    optimizer, place, path = torch_sgd(meta["lr"], meta["momentum"]), jnp.zeros(size), []
    own = optimizer.init(place)
    for update in means:
        step, own = optimizer.update(tree.scale(-1.0, update["params"]["w"]), own, place)
        place = place + step
        path.append(place)
    yield case.compare("x", np.stack(path))


@covers("matrix_noise", "accounting")
def accounting(case: Case) -> Iterator[Comparison]:
    """All rounds together are one Gaussian mechanism."""
    columns = case.meta["columns"]
    table = dict(zip(columns, case["table"].T, strict=True))
    for name, kind in (("eps_pld", "pld"), ("eps_rdp", "rdp")):
        rows = zip(table["noise_multiplier"].tolist(), table["delta"].tolist(), strict=True)
        found = [privacy.epsilon(z, PoissonSampling(1.0), 1, delta, kind) for z, delta in rows]
        column = columns.index(name)
        yield case.compare("table", found, ACCOUNTANT, part=lambda table, column=column: table[:, column])
