"""DP-SGD on clients: steps and rounds with given samples and normals, and the accountant's tables for examples."""

from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import noise, privacy
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedavg
from fedjax_het.client import private_gradients
from fedjax_het.engine.round.participation import derive_keys
from fedjax_het.placeholders import unseal
from fedjax_het.privacy import PoissonSampling, RecordPrivacy
from fedjax_het.problem import Problem
from fedjax_het.types import Batch
from tests.golden.cases import Case, Comparison, covers
from tests.golden.replay import linear_objective, replay_rounds, softmax_objective, vector_model
from tests.views import client_view

OPACUS = 1e-6  # Opacus divides by |g| + 1e-6
ACCOUNTANT, CALIBRATION = 1e-4, 1e-3  # as in the README of the cases


def gradient(case: Case, mechanism: RecordPrivacy, start, inputs, labels, objective, normals, expected) -> np.ndarray:
    """The private gradient of a batch in the leaves of `start`, as one vector in their order."""
    problem = Problem(vector_model(np.zeros(1)), (objective,), lambda inputs: inputs)
    batch = Batch(jnp.asarray(inputs), jnp.asarray(labels), jnp.ones(len(inputs)))
    given = iter(np.split(normals, np.cumsum([leaf.size for leaf in start.values()])[:-1]))
    draw = {name: jnp.asarray(part).reshape(start[name].shape) for name, part in zip(start, given, strict=True)}
    key = make_key(0)
    with mock.patch.object(noise, "draw_normals", lambda key, like: draw):
        (loss, _), result = private_gradients.private_gradient(
            mechanism, problem, start, {}, batch, client_view(), jnp.asarray(expected, float), None, key
        )
    assert np.isfinite(unseal(loss))
    return np.concatenate([np.ravel(result[name]) for name in start])


@covers("record_dp", "step_*")
def step(case: Case) -> Iterator[Comparison]:
    weights, bias = case["W"], case["b"]
    start = {"W": jnp.asarray(weights), "b": jnp.asarray(bias)}
    clip, z, rate, expected = (case.meta[name] for name in ("clip", "noise_multiplier", "lr", "expected_batch"))
    objective = softmax_objective(len(bias))

    def loss(forward):
        flat = jnp.concatenate([forward.params["W"].ravel(), forward.params["b"]])
        return objective(forward._replace(params={"w": flat}))

    def differentiate(mechanism: RecordPrivacy, inputs, labels, expected) -> np.ndarray:
        return gradient(case, mechanism, start, inputs, labels, loss, case["standard_normal"], expected)

    before = np.concatenate([weights.ravel(), bias])
    out = before - rate * differentiate(RecordPrivacy(clip, z, chunk_size=4), case["X"], case["y"], expected)
    yield case.compare("out", out)
    yield case.compare("opacus", out, OPACUS)
    if clip < 100:
        yield case.refute("x_wrong_clip_of_the_mean", out)
    else:
        case.excuse("x_wrong_clip_of_the_mean", "nothing is clipped")
    per_layer = differentiate(RecordPrivacy(clip, z, per_layer=True), case["X"], case["y"], expected)
    yield case.compare("out_per_layer", before - rate * per_layer)
    single = RecordPrivacy(1e9, 0.0)
    pairs = zip(case["X"], case["y"], strict=True)
    singles = np.stack([differentiate(single, x[None], y[None], 1) for x, y in pairs])
    yield case.compare("per_example_gradient", singles)
    yield case.compare("norms", np.linalg.norm(singles, axis=1))


@covers("record_dp", "step_6_empty_batch")
def empty(case: Case) -> Iterator[Comparison]:
    start, (clip, z) = {"w": jnp.asarray(case["w"])}, (case.meta["clip"], case.meta["noise_multiplier"])
    problem = Problem(vector_model(np.zeros(1)), (linear_objective,), lambda inputs: inputs)
    nobody = Batch(jnp.ones((4, len(case["w"]))), jnp.zeros(4, int), jnp.zeros(4))
    expected, draw = jnp.asarray(case.meta["expected_batch"], float), {"w": jnp.asarray(case["standard_normal"])}
    arguments = {}, nobody, client_view(), expected, None, make_key(0)
    with mock.patch.object(noise, "draw_normals", lambda key, like: draw):
        _, result = private_gradients.private_gradient(RecordPrivacy(clip, z), problem, start, *arguments)
    yield case.compare("out", case["w"] - case.meta["lr"] * np.asarray(result["w"]))


@covers("record_dp", "rounds_*")
def rounds(case: Case) -> Iterator[Comparison]:
    """Whole rounds of FedAvg; samples and normals are found by the keys of the steps. A batch has all examples."""
    drawn, counts, rates = case["is_drawn"], case["n_samples"], case["q"]
    num_rounds, num_clients, num_steps, num_examples = drawn.shape
    settings = {"batch_size": num_examples, "steps": num_steps, "learning_rate": case.meta["lr"]}
    mechanism = RecordPrivacy(case.meta["clip"], case.meta["noise_multiplier"])
    algorithm = replace(fedavg(**settings), objective=(softmax_objective(2),), record_privacy=mechanism)

    def step_keys(number):
        clients = derive_keys(make_key(0), number)[1]
        own = jax.vmap(jax.random.fold_in, (None, 0))(clients, jnp.arange(num_clients))
        steps = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(own, jnp.arange(num_steps))
        return jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, 0)))(steps)

    keys = jax.vmap(step_keys)(jnp.arange(num_rounds))
    noise_keys = jax.vmap(jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, private_gradients._NOISE))))(keys)

    def find(key, keys, values):
        known = jax.random.key_data(keys).reshape(-1, 2)
        return jnp.asarray(values.reshape(len(known), -1))[jnp.argmax(jnp.all(known == jax.random.key_data(key), -1))]

    expected = np.broadcast_to((rates * counts)[None, :, None], drawn.shape[:3])

    def draw_batch(privacy, problem, data, batch_size, key):
        is_drawn = find(key, keys, drawn)
        order = jnp.argsort(~is_drawn)
        index = jnp.asarray(data.train.index)[order]
        return problem.batch(data, index, jnp.sum(is_drawn), 0, num_examples), find(key, keys, expected)[0]

    def draw_normals(key, like):
        return {"w": find(key, noise_keys, case["standard_normal"])}

    with (
        mock.patch.object(private_gradients, "draw_batch", draw_batch),
        mock.patch.object(noise, "draw_normals", draw_normals),
    ):
        inputs, labels = (np.broadcast_to(case[name], (num_rounds, *case[name].shape)) for name in ("X", "Y"))
        everyone = np.broadcast_to(np.arange(num_clients), (num_rounds, num_clients))
        replay = replay_rounds(
            algorithm, vector_model(case["w0"]), inputs, labels, everyone, num_clients, counts=counts
        )
    yield case.compare("w", replay.weights())
    yield case.compare("local", replay.local())


# ---- accounting ------------------------------------------------------------------------------------------------------
@covers("record_dp", "accounting_poisson")
def poisson(case: Case) -> Iterator[Comparison]:
    case.meta.confirm(neighbours="add or remove one example")
    table = dict(zip(case.meta["columns"], case["table"].T, strict=True))
    rows = zip(*(table[name].tolist() for name in ("q", "noise_multiplier", "steps", "delta")), strict=True)
    ours = table | {"eps_pld": [], "eps_rdp_dp_accounting": []}
    for q, z, steps, delta in rows:
        for name, kind in (("eps_pld", "pld"), ("eps_rdp_dp_accounting", "rdp")):
            ours[name].append(privacy.epsilon(z, PoissonSampling(q, unit="example"), int(steps), delta, kind))
    for name in ("eps_pld", "eps_rdp_dp_accounting"):
        column = case.meta["columns"].index(name)
        yield case.compare("table", ours[name], ACCOUNTANT, part=lambda table, column=column: table[:, column])
    sampled = np.minimum(1, table["expected_batch"] / table["n"])
    yield case.compare("table", sampled, part=lambda table: table[:, case.meta["columns"].index("q")])


@covers("record_dp", "accounting_federation")
def federation(case: Case) -> Iterator[Comparison]:
    """Of the accountant by Rényi divergences, which the stored numbers are from."""
    batch, steps, z, delta = (case.meta[name] for name in ("batch", "steps", "noise_multiplier", "delta"))
    sizes = case["n"].astype(int)
    given = RecordPrivacy(1.0, z), batch, sizes, np.full(len(sizes), steps), delta
    found = privacy.record_epsilons(*given, "rdp")
    yield case.compare("eps_client", found, ACCOUNTANT)
    yield case.compare("eps_federation", found.max(), ACCOUNTANT)
    yield case.refute("x_wrong_pooled", found.max())
    assert np.all(privacy.record_epsilons(*given) < found)  # privacy loss distributions are tighter


@covers("record_dp", "accounting_sigma")
def sigma(case: Case) -> Iterator[Comparison]:
    table = dict(zip(case.meta["columns"], case["table"].T, strict=True))
    found = []
    for q, steps, target, delta in zip(*(table[name].tolist() for name in list(table)[:4]), strict=True):
        size = 1000
        arguments = round(q * size), [size], [int(steps)], delta, "rdp"
        found += privacy.record_noise(RecordPrivacy(1.0), target, *arguments)
    column = case.meta["columns"].index("noise_multiplier")
    yield case.compare("table", found, CALIBRATION, part=lambda table: table[:, column])
