"""Numbers, tags and ranks: training, metrics in every layout, and errors of algorithms that need classes."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from fedjax_het import data, engine, models
from fedjax_het.algorithms import ALGORITHMS, fedavg, fedper, ifca
from fedjax_het.client.objectives import with_task_loss
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine import chunked, vmapped
from fedjax_het.errors import InputError
from tests.algorithms.test_segmentation import DISTILLED
from tests.harness import ADAPTERS, PROMPTS, supply

KINDS = ("numbers", "tags", "ranks")
READ_CLASSES = (
    *("fedld", "fedmgc", "fedlc", "fedrs", "fedntd", "feddisco", "fedetf", "fedpac", "fedproto", "fedrod", "fedas"),
    *("gpfl", "pfedfda", "knnper", "feddf", "feddistill", "fml", "fedkd", "fedtgp", "fedgen", "fedem", "heterofl"),
    *("fedrolex", "fjord", "depthfl", "fedlwf", "fedsr", "fedrd", "fpl"),
)


def dataset(kind, num=120):
    """Labels that follow from the first inputs; of tags, some are unknown."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num, 6)).astype(np.float32)
    score = inputs[:, :3] + 0.3 * rng.normal(size=(num, 3))
    tags = np.where(rng.random(score.shape) < 0.1, -1, score > 0)
    ranks = np.digitize(score[:, 0], (-0.8, 0.5))
    labels = {"numbers": 50 + 20 * score, "tags": tags, "ranks": ranks}[kind]
    return data.assemble("toy", inputs, labels, kind=kind, class_names="abc", domains=np.arange(num) % 3)


def federation(kind, **options):
    extra = {"standardise_targets": "common"} if kind == "numbers" else {}
    return data.federate(dataset(kind), data.by_domain(), 0, **extra, **options)


def network(kind):
    model = models.mlp(3, hidden=(5,))
    return models.ordinal(model) if kind == "ranks" else model


def simulation(kind, algorithm=None, chosen=None, **options):
    algorithm = algorithm or fedavg(learning_rate=0.1, batch_size=8)
    chosen = chosen or federation(kind, client_test_fraction=0.2)
    return engine.Simulation(algorithm, network(kind), supply(algorithm, chosen), rounds=6, evaluate_every=6, **options)


def final(run):
    return run.evaluate(run.advance(run.start(), 6)[0])


def measure(name, kind, found):
    return engine.METRICS[name].measures[kind](found.logits, found.labels)


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS)
def test_metrics_are_those_of_predictions_in_the_units_of_the_labels(kind):
    run = simulation(kind)
    state, losses = run.advance(run.start(), 6)
    assert losses.loss[0, -1] < 0.9 * losses.loss[0, 0]
    figures, asked = engine.flatten_evaluation(run.evaluate(state)), (fedavg(), network(kind), run.federation, state)
    found, score = engine.predict(*asked), engine.main_score(figures)
    original = dataset(kind).labels[np.asarray(run.federation.test.index)]
    np.testing.assert_allclose(found.labels, original, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(figures[f"test/{score}"], measure(score, kind, found), rtol=1e-5)
    if kind == "numbers":
        assert found.classes is None and figures["test/r2"] > 0 and "test/accuracy" not in figures
        np.testing.assert_allclose(figures["test/r2"], sklearn_metrics.r2_score(original, found.logits), rtol=1e-5)
    else:
        known = original >= 0
        np.testing.assert_allclose(
            figures["test/accuracy"], np.mean(found.classes[known] == original[known]), rtol=1e-5
        )
    parts = [engine.predict(*asked, client=i) for i in range(3)]
    arrays = zip(*[(part.labels, np.zeros(0), part.logits) for part in parts], strict=True)
    pooled = engine.Prediction(*map(np.concatenate, arrays))
    np.testing.assert_allclose(figures[f"clients/{score}_pooled"], measure(score, kind, pooled), rtol=1e-5)
    mean = np.mean([measure(score, kind, part) for part in parts])
    np.testing.assert_allclose(figures[f"clients/{score}_mean"], mean, rtol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS)
def test_layouts_and_streaming_give_the_same_figures(kind):
    algorithm = fedper(learning_rate=0.1, batch_size=8)
    metrics = [name for name, metric in engine.METRICS.items() if kind in metric.measures and not metric.is_relative]
    options = {"vmapped": {"layout": vmapped}, "chunked": {"layout": chunked(2)}}
    options["streamed"] = {"layout": vmapped, "examples": "stream", "client_states": "host"}
    figures = {
        name: engine.flatten_evaluation(final(simulation(kind, algorithm, metrics=metrics, **own)))
        for name, own in options.items()
    }
    assert "personal/loss_mean" in figures["vmapped"]
    for name, value in figures["vmapped"].items():
        np.testing.assert_array_equal(figures["streamed"][name], value, err_msg=name)
        np.testing.assert_allclose(figures["chunked"][name], value, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_algorithms_that_read_classes_are_refused_with_the_reason(kind):
    for name in ("fedlc", "fedproto", "feddf", "fedld"):
        with pytest.raises(InputError, match=f"the labels are {kind}, and .* classes"):
            simulation(kind, ALGORITHMS[name](**DISTILLED.get(name, {})), federation(kind))
    if kind != "ranks":
        with pytest.raises(InputError, match=f"{kind}.*, not a class each. Use .*by_domain"):
            data.federate(dataset(kind), data.dirichlet(0.5), 3)


@pytest.mark.parametrize(
    ("kind", "loss", "message"),
    [
        (
            "numbers",
            "cross_entropy",
            "'cross_entropy' is for classes or .*, but the labels are numbers. Use 'auto'",
        ),
        ("numbers", "dice", "the labels are numbers, and a part"),
        ("tags", "huber", "'huber' is for numbers, but the labels are tags. Use 'auto' or bce"),
        ("ranks", "bce", "'bce' is for tags, but the labels are ranks. Use 'auto' or coral"),
    ],
)
def test_losses_of_other_kinds_of_labels_are_refused(kind, loss, message):
    algorithm = fedavg()
    with pytest.raises(InputError, match=message):
        simulation(kind, replace(algorithm, objective=with_task_loss(algorithm.objective, loss)), federation(kind))


@pytest.mark.parametrize(
    ("kind", "model", "message"),
    [
        (
            "numbers",
            models.mlp(2),
            r"numbers .*outputs are \(2,\) per example, not \(3,\). Use a model with",
        ),
        ("tags", models.mlp(4), r"several tags for each example, .*\(4,\) per example, not \(3,\)"),
        ("ranks", models.mlp(3), r"one rank .*\(3,\) per example, not \(2,\). Use fedjax_het.models.ordinal"),
    ],
)
def test_models_with_other_outputs_are_refused(kind, model, message):
    with pytest.raises(InputError, match=message):
        engine.Simulation(fedavg(), model, federation(kind), rounds=1)


@pytest.mark.extended
def test_the_numbers_of_several_models_are_no_metrics():
    evaluation = final(simulation("numbers", ifca(num_models=2, learning_rate=0.1, batch_size=8)))
    assert evaluation.personal.requested["r2"].shape == evaluation.personal.model.shape == (1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in (*PROMPTS, *ADAPTERS)])
def test_every_algorithm_trains_on_every_kind_or_refuses_it(name, kind):
    algorithm = ALGORITHMS[name](learning_rate=0.05, batch_size=16, **DISTILLED.get(name, {}))
    try:
        run = simulation(kind, algorithm, federation(kind))
    except InputError as error:
        assert ("classes" in str(error)) == (name in READ_CLASSES)
        return
    state, metrics = run.advance(run.start(), 2)
    assert np.isfinite(metrics.loss).all() and name not in READ_CLASSES
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.server.shared))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_diagnostics_of_losses_measure_every_kind(kind):
    names = ("decomposition", "conflict", "landscape")
    run = simulation(kind, chosen=federation(kind), diagnostics={name: DIAGNOSTICS[name] for name in names})
    values = run.diagnose(run.start())
    assert np.isfinite(values["landscape"]["federation"]).all()
