"""Metrics of predictions: against scikit-learn and SciPy, and independent of batches and layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import directed_hausdorff
from scipy.special import softmax
from sklearn import metrics as sklearn_metrics
from sklearn.calibration import calibration_curve

from fedjax_het import data, models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedavg, fedbn
from fedjax_het.engine import (
    METRICS,
    Evaluation,
    Metrics,
    Simulation,
    check_metrics,
    chunked,
    flatten_evaluation,
    sharded,
    summarize_clients,
    vmapped,
)
from fedjax_het.engine.evaluation import metrics
from fedjax_het.engine.evaluation.evaluate import BATCH
from fedjax_het.engine.evaluation.personal_means import mean_personal_variables
from fedjax_het.engine.evaluation.scoring import Batches
from fedjax_het.errors import InputError
from fedjax_het.survival import concordance
from fedjax_het.types import Context, Rows

CLASS_METRICS = tuple(name for name, metric in METRICS.items() if "classes" in metric.measures)
MASK_METRICS = tuple(name for name, metric in METRICS.items() if "masks" in metric.measures)


def draw(seed, num, num_classes, num_present=None, scale=2.0):
    """Logits, float32 with ties, and labels with only the first `num_present` classes."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num, num_classes)).astype(np.float32) * scale
    logits[num // 2 :] = logits[: num - num // 2]  # equal predictions
    return logits.astype(np.float64), rng.integers(0, num_present or num_classes, num)


CASES = [(0, 200, 5), (1, 57, 2), (2, 300, 10), (3, 12, 4), (4, 90, 6, 3), (5, 1, 3)]


@pytest.mark.parametrize("case", CASES)
def test_balanced_accuracy_and_macro_f1_are_those_of_scikit_learn(case):
    logits, labels = draw(*case)
    predicted = logits.argmax(axis=1)
    seen = [np.mean(predicted[labels == c] == c) for c in np.unique(labels)]  # scikit-learn's own where it warns not
    assert metrics.balanced_accuracy(logits, labels) == pytest.approx(np.mean(seen), abs=1e-12)
    if set(predicted) <= set(labels) and len(labels) > 1:
        expected = sklearn_metrics.balanced_accuracy_score(labels, predicted)
        assert metrics.balanced_accuracy(logits, labels) == pytest.approx(expected, abs=1e-12)
    expected = sklearn_metrics.f1_score(labels, predicted, average="macro", zero_division=0.0)
    assert metrics.macro_f1(logits, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("case", CASES[:4])
def test_auroc_is_that_of_scikit_learn(case):
    logits, labels = draw(*case)
    probabilities = softmax(logits, axis=1)
    if logits.shape[1] == 2:
        expected = sklearn_metrics.roc_auc_score(labels, probabilities[:, 1])
    else:
        expected = sklearn_metrics.roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert metrics.auroc(logits, labels) == pytest.approx(expected, abs=1e-12)


def test_auroc_is_over_the_classes_that_some_examples_have_and_others_have_not():
    logits, labels = draw(4, 90, 6, 3)
    probabilities = softmax(logits, axis=1)
    expected = np.mean([sklearn_metrics.roc_auc_score(labels == c, probabilities[:, c]) for c in range(3)])
    assert metrics.auroc(logits, labels) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(metrics.auroc(logits, np.full(90, 2)))


def test_auroc_keeps_apart_examples_whose_probability_rounds_to_1():
    logits = np.array([[0.0, 60.0], [0.0, 50.0], [0.0, 40.0]])
    assert len(np.unique(softmax(logits, axis=1)[:, 1])) == 1
    assert metrics.auroc(logits, np.array([1, 0, 0])) == 1.0


@pytest.mark.parametrize("case", CASES)
def test_the_calibration_error_is_that_of_scikit_learns_bins(case):
    logits, labels = draw(*case)
    confidence, is_correct = softmax(logits, axis=1).max(axis=1), logits.argmax(axis=1) == labels
    accuracy, mean = calibration_curve(is_correct, confidence, n_bins=15, pos_label=True)
    sizes = np.histogram(confidence, np.linspace(0, 1, 16))[0]
    expected = np.sum(sizes[sizes > 0] * np.abs(accuracy - mean)) / len(labels)
    assert metrics.calibration_error(logits, labels) == pytest.approx(expected, abs=1e-12)


def boundary(mask):
    """The pixels of a mask next to a pixel outside it, by definition."""
    padded = np.pad(mask, 1)
    inside = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return np.argwhere(mask & ~inside)


def test_distances_of_boundaries_are_those_of_all_pairs_of_pixels():
    rng = np.random.default_rng(0)
    truth, predicted = ((rng.random((4, 9, 12)) < 0.3).astype(np.uint8) * rng.integers(1, 3, (4, 1, 1)) for _ in "ab")
    truth[1], predicted[2] = 0, 0  # a class that is only predicted, and a class that is only true
    predicted[3] = truth[3]
    largest, mean = [], []
    for p, target in zip(predicted, truth, strict=True):
        pairs = [(boundary(p == c), boundary(target == c)) for c in (1, 2) if np.any(p == c) or np.any(target == c)]
        diagonal = np.hypot(8, 11)
        distances = [np.linalg.norm(a[:, None] - b, axis=-1) for a, b in pairs]
        has_both = [len(a) > 0 and len(b) > 0 for a, b in pairs]
        largest.append(
            np.mean(
                [
                    max(directed_hausdorff(a, b)[0], directed_hausdorff(b, a)[0]) if has_mask else diagonal
                    for (a, b), has_mask in zip(pairs, has_both, strict=True)
                ]
            )
        )
        mean.append(
            np.mean(
                [
                    np.concatenate([d.min(axis=1), d.min(axis=0)]).mean() if has_mask else diagonal
                    for d, has_mask in zip(distances, has_both, strict=True)
                ]
            )
        )
    assert mean[3] == 0 and mean[1] == np.hypot(8, 11)
    assert metrics.hausdorff(predicted, truth) == pytest.approx(np.mean(largest), abs=1e-12)
    assert metrics.surface_distance(predicted, truth) == pytest.approx(np.mean(mean), abs=1e-12)
    assert np.isnan(metrics.surface_distance(truth[1:2], truth[1:2]))


# ---- evaluations -----------------------------------------------------------------------------------------------------
def evaluate(algorithm, federation, model, **options):
    options = {"metrics": CLASS_METRICS, "num_seeds": 2, "layout": vmapped, "personal_on_test": True} | options
    simulation = Simulation(algorithm, model, federation, rounds=2, evaluate_every=2, **options)
    state, _ = simulation.advance(simulation.start(), 2)
    return simulation, state, simulation.evaluate(state)


def train_personal_batch_norms(**options):
    """FedBN on clients of 4 to 290 test examples: fewer than a batch, and more than one."""
    sizes = {"examples_per_client": (12, 900), "client_test_fraction": 0.4, "valid_fraction": 0.1, "label_shift": 0.9}
    federation = data.toy(num_clients=4, unseen_clients=1, **sizes)
    model = models.mlp(3, hidden=(4,), norm="batch")
    return federation, *evaluate(fedbn(batch_size=16), federation, model, **options)


def compute_logits(simulation, variables, federation, index):
    problem, inputs = simulation.executor.traced.round.problem, federation.examples.inputs[index]
    context = Context(jnp.ones(len(index)), jnp.int32(0), make_key(0), False)
    (features, _), _ = problem.model.encode(variables, problem.prepare(inputs), context)
    return np.asarray(problem.model.classify(variables["params"], features), np.float64)


@pytest.mark.slow
def test_metrics_of_each_client_and_held_out_set_are_of_all_its_examples_and_no_others():
    federation, simulation, state, evaluation = train_personal_batch_norms()
    assert federation.data.test.count.max() > BATCH > federation.data.test.count.min() and federation.test.count > BATCH
    last = jax.tree.map(lambda x: x[1], state)  # of the second seed
    mean = tree.merge(last.server.shared, mean_personal_variables(last.clients, 4))
    own = [tree.merge(last.server.shared, jax.tree.map(lambda x, i=i: x[i], last.clients.personal)) for i in range(4)]
    tables = {
        "clients": (federation.data.test, [mean] * 4),
        "valid": (federation.data.valid, [mean] * 4),
        "newcomers": (federation.newcomers.test, [mean]),
        "test": (Rows(federation.test.index[None], federation.test.count[None]), [mean]),
        "personal": (federation.data.test, own),
        "personal_valid": (federation.data.valid, own),
        "personal_test": (Rows(*(np.stack([array] * 4) for array in federation.test)), own),
    }
    for field, (rows, all_variables) in tables.items():
        requested = getattr(evaluation, field).requested
        for i, variables in enumerate(all_variables):
            index = rows.index[i][: rows.count[i]]
            logits, labels = compute_logits(simulation, variables, federation, index), federation.examples.labels[index]
            for name in CLASS_METRICS:
                expected, ours = METRICS[name].measure(logits, labels), np.ravel(requested[name][1])[i]
                assert ours == pytest.approx(expected, abs=1e-6, nan_ok=True), (field, i, name)
    figures = flatten_evaluation(evaluation)
    assert np.array_equal(figures["test/auroc"], evaluation.test.requested["auroc"])
    errors = evaluation.personal.requested["calibration_error"]
    np.testing.assert_array_equal(figures["personal/calibration_error_worst10"], errors.max(axis=1))
    np.testing.assert_array_equal(figures["personal/calibration_error_min"], errors.min(axis=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"layout": sharded(2)}, {"layout": chunked(1)}, {"examples": "stream", "client_states": "host"}],
    ids=["sharded", "chunked", "streamed"],
)
def test_metrics_do_not_depend_on_layout_and_streaming(options):
    *_, expected = train_personal_batch_norms()
    *_, values = train_personal_batch_norms(**options)
    for value, wanted in zip(jax.tree.leaves(values), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(value, wanted, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"examples": "stream"}], ids=["on device", "streamed"])
def test_masks_have_distances_of_their_own_images(options):
    federation = data.toy(num_clients=3, num_classes=2, image=(8, 8, 1), masks=True, examples_per_client=(12, 16))
    model = models.unet(2, width=0.1, levels=1)
    *_, evaluation = evaluate(
        fedavg(batch_size=4), federation, model, metrics=MASK_METRICS, personal_on_test=False, num_seeds=1, **options
    )
    assert evaluation.clients.requested["hausdorff"].shape == (1, 3)
    largest, mean = (evaluation.test.requested[name] for name in ("hausdorff", "surface_distance"))
    assert 0 <= mean[0] <= largest[0] <= np.hypot(7, 7)


def test_predictions_in_batches_of_several_sizes_are_sorted_into_segments():
    labels = np.random.default_rng(0).integers(0, 3, (40, 5, 5))
    predicted = np.random.default_rng(1).integers(0, 3, (2, 40, 5, 5))
    first = Batches(np.arange(24).reshape(2, 2, 6), np.array([[6, 3], [5, 0]]), np.array([[1, 0], [1, 3]]))
    second = Batches(np.arange(24, 32).reshape(4, 1, 2), np.array([[2], [1], [2], [2]]), np.array([[2], [0], [1], [1]]))
    outputs = [predicted[:, batches.index] for batches in (first, second)]
    truth, groups = metrics.Truth(labels), [("clients", 2), ("test", 1)]
    measured = metrics.measure_segments(["hausdorff"], truth, (first, second), groups, outputs)
    values = np.concatenate([measured[name].values["hausdorff"] for name, _ in groups], axis=1)
    members = ([6, 7, 8, 26], [*range(6), *range(12, 17), 28, 29, 30, 31], [24, 25])
    expected = [[metrics.hausdorff(predicted[run, part], labels[part]) for part in members] for run in range(2)]
    np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_statistics_leave_out_clients_for_which_a_metric_is_undefined():
    ones = np.ones((1, 3))
    area = {"auroc": np.array([[0.5, np.nan, 0.9]]), "calibration_error": np.array([[0.1, 0.2, 0.6]])}
    statistics = summarize_clients(Metrics(ones, ones, 10 * ones, requested=area))
    assert statistics["auroc_mean"] == statistics["auroc_weighted"] == 0.7 and statistics["auroc_min"] == 0.5
    assert statistics["calibration_error_worst10"] == 0.6 and statistics["auroc_worst10"] == 0.5
    nowhere = summarize_clients(Metrics(ones, ones, ones, requested={"auroc": np.nan * ones}))
    assert np.isnan(nowhere["auroc_mean"]) and nowhere["accuracy_mean"] == 1


def test_statistics_over_unseen_domains_are_mean_deviation_and_worst():
    domains = {
        name: Metrics(
            np.array([loss]), np.array([accuracy]), np.ones(1), requested={"calibration_error": np.array([e])}
        )
        for name, loss, accuracy, e in (("a", 1.0, 0.5, 0.1), ("b", 2.0, 0.9, 0.3))
    }
    figures = flatten_evaluation(Evaluation(None, domains["a"], None, None, domains))
    assert figures["domains/accuracy_mean"] == pytest.approx(0.7) and figures["domains/accuracy_worst"] == 0.5
    assert figures["domains/accuracy_std"] == pytest.approx(0.2) and figures["domains/loss_mean"] == 1.5
    assert figures["domains/calibration_error_worst"] == 0.3
    single = flatten_evaluation(Evaluation(None, domains["a"], None, None, {"a": domains["a"]}))
    assert not any(name.startswith("domains/") for name in single)


@pytest.mark.parametrize(
    ("names", "masks", "message"),
    [
        (
            ("auroc",),
            True,
            "the labels are masks, and 'auroc' is a metric of classes and tags. Choose among hausdorff",
        ),
        (("hausdorff",), False, "labels are classes, and 'hausdorff' is a metric of masks. Choose among balanced"),
        (("auc",), False, "metrics: there is no metric 'auc'. .*'auroc'"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused_before_anything_compiles(names, masks, message):
    federation = data.toy(num_clients=2, image=True, masks=masks)
    with pytest.raises(InputError, match=message):
        Simulation(fedavg(), models.mlp(3), federation, rounds=1, metrics=names)


def test_metrics_that_do_not_fit_sequences_or_times_are_refused():
    times, sequences = np.ones(3, np.float32), np.zeros((3, 4), np.int32)
    assert check_metrics(("c_index",), times) == ("c_index",)
    with pytest.raises(InputError, match=r"labels are times, and 'auroc' is a metric of classes and tags. Choose"):
        check_metrics(("auroc",), times)
    with pytest.raises(InputError, match=r"labels are sequences, and 'hausdorff' is a metric of masks. Leave it out"):
        check_metrics(("hausdorff",), sequences)


def test_the_c_index_of_all_examples_is_that_of_a_batch_that_holds_them():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        logits = rng.integers(0, 4, (60, 2)).astype(np.float32)
        times = ((1 + rng.integers(0, 9, 60)) * rng.choice([-1, 1], 60)).astype(np.float32)
        expected, _ = concordance(logits, times, np.ones(60, bool))
        assert metrics.c_index(logits.astype(np.float64), times) == pytest.approx(float(expected), abs=1e-6)
    assert np.isnan(metrics.c_index(logits, -np.abs(times)))
