"""Diagnostics of a round against the same numbers computed in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import data, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine import Simulation, Sweep, chunked, make_round, sharded, vmapped
from fedjax_het.engine.diagnose import make_diagnosis
from fedjax_het.engine.execution.programs import RunPrograms
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.engine.execution.trace import trace_round
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from fedjax_het.types import Context
from tests.harness import algorithm, every_algorithm_slowly, is_equal, model, network_of, supply

pytestmark = pytest.mark.extended

COHORT = 3
WITHOUT_SERVER = "consensus"  # tests/engine/round/test_mixing.py
DIAGNOSTICS = {name: record for name, record in DIAGNOSTICS.items() if not record.panels and name != WITHOUT_SERVER}


def federation():
    return data.toy(num_clients=5, image=(6, 6, 1), num_classes=3)


@pytest.fixture(scope="module")
def diagnosed():
    """(diagnostics, messages of that round) of FedMGC after some rounds, which reports losses and edits updates."""
    chosen = algorithm("fedmgc")
    built = Simulation(
        chosen,
        model("none"),
        federation(),
        rounds=3,
        participation=participation.uniform(COHORT),
        diagnostics=DIAGNOSTICS,
    )
    state, _ = built.advance(built.start(), 2)
    first = jax.tree.map(lambda x: jnp.asarray(x)[0], state)
    everyone = federation()
    round = make_round(chosen, model("none"), 5, participation=participation.uniform(COHORT), prepare=everyone.prepare)
    after, metrics, said = jax.jit(round.step_with_messages)(first, everyone.data, make_key(0))
    found = jax.tree.map(lambda x: x[0], built.diagnose(state))
    assert is_equal(metrics.cohort, found["cohort"]["ids"])
    return found, jax.tree.map(np.asarray, (after, said))


def losses(variables, rows):
    """Cross-entropies of these examples, in NumPy after the last layer."""
    everyone, network = federation(), model("none")
    context = Context(np.ones(len(rows)), 0, make_key(0), False)
    (features, _), _ = network.encode(variables, everyone.prepare(everyone.examples.inputs[rows]), context)
    logits = np.asarray(network.classify(variables["params"], features), np.float64)
    top = logits.max(axis=1, keepdims=True)
    return (
        np.log(np.exp(logits - top).sum(1)) + top[:, 0] - logits[np.arange(len(rows)), everyone.examples.labels[rows]]
    )


def models_rows_and_updates(diagnosed):
    """(each client's trained model, each one's training rows, the updates as rows in float64)."""
    found, (_, said) = diagnosed
    models = [
        jax.tree.map(lambda w, u, i=i: w + u[i], said.received.shared, said.uploads.update) for i in range(COHORT)
    ]
    table = federation().data.train
    rows = [table.index[i, : table.count[i]] for i in found["cohort"]["ids"]]
    updates = np.stack(
        [np.concatenate([x[i].ravel() for x in jax.tree.leaves(said.uploads.update["params"])]) for i in range(COHORT)]
    )
    return models, rows, updates.astype(np.float64)


@pytest.mark.slow
def test_the_loss_decomposition_matches_losses_in_numpy(diagnosed):
    found, (after, _) = diagnosed
    models, rows, _ = models_rows_and_updates(diagnosed)
    by_hand = [[losses(model, part).mean() for model in models] for part in rows]
    ours = found["decomposition"]
    np.testing.assert_allclose(ours["losses"], by_hand, rtol=1e-5)
    shares = np.array([len(part) for part in rows]) / sum(map(len, rows))
    total = shares @ [losses(after.server.shared, part).mean() for part in rows]
    np.testing.assert_allclose(ours["total"], total, rtol=1e-5)
    np.testing.assert_allclose(ours["local"], shares @ np.diag(by_hand), rtol=1e-5)
    assert abs(ours["local"] + ours["shift"] + ours["aggregation"] - ours["total"]) < 1e-5


@pytest.mark.slow
def test_conflicts_spectrum_and_norms_match_the_gram_matrix_in_numpy(diagnosed):
    found, _ = diagnosed
    _, _, updates = models_rows_and_updates(diagnosed)
    gram = updates @ updates.T
    assert found["conflict"]["num_conflicts"] == (np.triu(gram, 1) < 0).sum()
    assert found["conflict"]["num_conflicts_after"] <= found["conflict"]["num_conflicts"]
    lengths = np.sqrt(np.diag(gram))
    np.testing.assert_allclose(found["conflict"]["cosines"], gram / np.outer(lengths, lengths), atol=1e-6)
    np.testing.assert_allclose(found["norms"]["updates"], lengths, rtol=1e-6)
    values = found["spectrum"]["eigenvalues"]
    np.testing.assert_allclose(values, np.linalg.eigvalsh(gram)[::-1] / COHORT, rtol=1e-5)
    held = np.cumsum(values) / values.sum()
    assert found["spectrum"]["num_axes"].tolist() == [int(np.argmax(held >= share)) + 1 for share in (0.8, 0.9, 0.99)]


@pytest.mark.slow
def test_gradient_norms_are_those_of_the_received_model(diagnosed):
    found, (_, said) = diagnosed
    _, rows, _ = models_rows_and_updates(diagnosed)
    network, everyone = model("none"), federation()

    def mean_loss(params, part):
        context = Context(jnp.ones(len(part)), 0, make_key(0), False)
        (features, _), _ = network.encode({"params": params}, everyone.prepare(everyone.examples.inputs[part]), context)
        chances = jax.nn.log_softmax(network.classify(params, features))
        return -jnp.mean(chances[jnp.arange(len(part)), everyone.examples.labels[part]])

    norms = [tree.norm(jax.grad(mean_loss)(said.received.shared["params"], part)) for part in rows]
    np.testing.assert_allclose(found["norms"]["gradients"], norms, rtol=1e-4)


@pytest.mark.slow
def test_classes_and_the_landscape_agree_with_the_decomposition(diagnosed):
    found, _ = diagnosed
    classes, decomposition = found["classes"], found["decomposition"]
    own = np.nansum(classes["losses"] * classes["counts"], axis=1) / classes["counts"].sum(axis=1)
    np.testing.assert_allclose(own, np.diag(decomposition["losses"]), rtol=1e-5)
    landscape = found["landscape"]
    centre = len(landscape["steps"]) // 2
    assert abs(landscape["steps"][centre]) < 1e-6
    np.testing.assert_allclose(landscape["federation"][centre, centre], decomposition["total"], rtol=1e-4)
    assert landscape["federation"].max() > decomposition["total"]


def test_image_amplitudes_match_the_radial_mean_in_numpy(diagnosed):
    found, _ = diagnosed
    _, rows, _ = models_rows_and_updates(diagnosed)
    everyone = federation()
    images = np.asarray(everyone.prepare(everyone.examples.inputs[rows[0]]))
    logs = np.log1p(np.abs(np.fft.fft2(images, axes=(1, 2)))).mean(axis=(0, 3))
    cycles = np.fft.fftfreq(6) * 6
    radius = np.rint(np.hypot(cycles[:, None], cycles))
    np.testing.assert_allclose(
        found["amplitudes"]["log_amplitudes"][0], [logs[radius == r].mean() for r in range(4)], rtol=1e-5
    )


def test_weights_of_a_mean_are_recovered_and_diagnosing_leaves_the_state_unchanged():
    chosen = {name: DIAGNOSTICS[name] for name in ("weights", "drift")}
    built = Simulation(algorithm("fedavg", steps=1), model("none"), federation(), rounds=2, diagnostics=chosen)
    state, untouched = built.start(), built.start()
    found = built.diagnose(state)
    counts = federation().data.train.count
    np.testing.assert_allclose(found["weights"]["weights"][0], counts / counts.sum(), atol=1e-5)
    assert found["weights"]["residual"][0] < 1e-5
    (after, _), (other, _) = built.advance(state, 1), built.advance(untouched, 1)
    assert is_equal(after, other)


@pytest.mark.slow
def test_the_drift_of_one_plain_step_is_its_squared_length():
    chosen = {name: DIAGNOSTICS[name] for name in ("norms", "drift")}
    options = {"layout": sharded(2, 1), "num_seeds": 2, "diagnostics": chosen}
    built = Simulation(algorithm("fedavg", steps=1), model("none"), federation(), rounds=1, **options)
    found = built.diagnose(built.start())
    assert found["drift"]["by_client"].shape == (2, 5)
    np.testing.assert_allclose(found["drift"]["by_client"], found["norms"]["updates"] ** 2, rtol=1e-5)
    np.testing.assert_allclose(found["drift"]["gamma"], found["drift"]["by_client"].mean(axis=1), rtol=1e-6)


@every_algorithm_slowly
def test_every_algorithm_can_be_diagnosed(name):
    everyone = supply(algorithm(name), federation())
    spec = RunSpec(Sweep(lambda: algorithm(name)), network_of(name), everyone, participation.uniform(COHORT), 1, 1)
    program = RunPrograms(trace_round(spec, vmapped)).measures(make_diagnosis(spec, vmapped, DIAGNOSTICS))
    found = jax.eval_shape(program.function, *program.arguments)
    assert found.keys() == {"cohort", *DIAGNOSTICS}
    assert found["drift"]["by_client"].shape == (1, COHORT)


def test_diagnostics_of_a_streaming_run_equal_those_on_the_device():
    chosen = {name: DIAGNOSTICS[name] for name in ("norms", "decomposition", "drift")}
    build = partial(Simulation, algorithm("scaffold"), model("none"), federation(), rounds=3, diagnostics=chosen)
    sampled = participation.bernoulli(0.7, participation.uniform(COHORT))
    found = []
    for offload in ({}, {"client_states": "host", "examples": "stream"}):
        built = build(participation=sampled, **offload)
        state, _ = built.advance(built.start(), 2)
        found.append(built.diagnose(state))
    assert is_equal(*found)


@pytest.mark.slow
def test_diagnostics_of_bfloat16_updates_use_the_packed_values():
    def diagnosed(**options):
        chosen = ALGORITHMS["fedmgc"](batch_size=8, **options)
        built = Simulation(chosen, model("none"), federation(), rounds=1, diagnostics=DIAGNOSTICS)
        return jax.tree.map(lambda x: np.asarray(x[0]), built.diagnose(built.start()))

    exact, packed = diagnosed(), diagnosed(aggregation={"stack": "bfloat16"})
    for kind, name in (("norms", "updates"), ("conflict", "cosines"), ("decomposition", "total")):
        np.testing.assert_allclose(packed[kind][name], exact[kind][name], atol=1e-2 * np.abs(exact[kind][name]).max())
    assert np.any(packed["norms"]["updates"] != exact["norms"]["updates"])


@pytest.mark.slow
def test_diagnostics_that_exceed_the_memory_budget_are_refused():
    norms = {"norms": DIAGNOSTICS["norms"]}
    large = data.toy(num_clients=5, examples_per_client=(300, 400), image=(6, 6, 1), num_classes=3)
    build = partial(Simulation, algorithm("fedavg"), model("none"), large, rounds=1, layout=chunked(1))
    rounds, looked = build().cost.peak_bytes, build(diagnostics=norms).cost.peak_bytes
    assert looked > rounds + 1000
    with pytest.raises(InputError, match=r"memory_budget: norms would take .* MB on each.*Use fewer diagnostics"):
        build(diagnostics=norms, memory_budget=(rounds + looked) // 2)
    assert build(diagnostics=norms, memory_budget=looked).cost.peak_bytes == looked
