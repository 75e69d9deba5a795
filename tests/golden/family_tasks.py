"""Kinds of labels besides classes: regression, several tags, ranks, forecasts from windows of time series."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.client.objectives import supervised, weighted_bce
from fedjax_het.data import windows
from fedjax_het.data._windows import find_windows
from fedjax_het.data.units import standardise_numbers
from fedjax_het.engine import METRICS, Metrics, summarize_clients
from fedjax_het.engine.evaluation.metrics import Truth, measure_rows
from fedjax_het.labels import PADDING
from fedjax_het.models import ordinal
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Batch, ClientData, ClientView, Examples, Model, Outputs, Rows
from tests.golden.cases import Case, covers


def loss_of(term: Callable, labels: np.ndarray) -> Callable:
    """Outputs -> the term for one client whose training batch holds all examples."""
    num, stored = len(labels), jnp.asarray(labels)
    rows = Rows(jnp.arange(num), jnp.asarray(num))
    data = ClientData(Examples(stored, stored), rows, rows, rows)
    view = ClientView(None, {}, {}, data, None, None, (), {}, None, None)

    def loss(outputs: jax.Array) -> jax.Array:
        batch = Batch(outputs, stored, jnp.ones(num))
        return term(ForwardPass(None, {}, {}, Outputs(outputs, outputs, {}), batch, view, None))

    return loss


def measure(name: str, kind: str, predictions: np.ndarray, labels: np.ndarray):
    return METRICS[name].measures[kind](predictions, labels)


# ---- regression ------------------------------------------------------------------------------------------------------
@covers("tasks", "regression_*")
def regression(case: Case):
    labels, predictions = case["y"], case["prediction"]
    for name in ("mse", "rmse", "mae", "r2"):
        yield case.compare(name, measure(f"{name}_by_output", "numbers", predictions, labels))
    case.excuse("explained_variance", "explained variance is not offered")
    for name in ("mse", "mae"):
        gradient = jax.grad(loss_of(supervised(name), labels))(jnp.asarray(predictions))
        yield case.compare(f"grad_{name}", gradient)
    columns = zip(labels.T[..., None], predictions.T[..., None], strict=True)
    huber = [loss_of(supervised("huber"), own)(jnp.asarray(predicted)) for own, predicted in columns]
    yield case.compare("huber_1", huber)
    clients = [np.flatnonzero(case["client"] == client) for client in range(int(case["client"].max()) + 1)]
    rows = Rows(np.zeros((len(clients), max(map(len, clients))), int), np.array(list(map(len, clients))))
    for own, client in zip(rows.index, clients, strict=True):
        own[: len(client)] = client
    values, pooled = measure_rows(["mse", "mae", "r2"], Truth(labels), rows, predictions[rows.index][None])
    yield case.compare("r2", pooled["r2"][0], part=np.mean)
    own = np.stack([rows.count, *(values[name][0] for name in ("mse", "mae", "r2"))], axis=1)
    if labels.shape[1] > 1:
        yield case.compare("per_client_n_mse_mae_r2", own[:, :3], part=lambda stored: stored[:, :3])
        case.excuse("r2_mean_of_clients", "NaN: the file has no R2 of clients for several targets")
        return
    yield case.compare("per_client_n_mse_mae_r2", own)
    statistics = summarize_clients(Metrics(rows.count[None], None, rows.count[None], requested=values))
    yield case.compare("r2_mean_of_clients", statistics["r2_mean"][0])


@covers("tasks", "regression_6_standardised")
def standardised(case: Case):
    """The file has the moments, and not the training part; two numbers with these moments take its place."""
    labels, mean, deviation = case["y"], float(case["mean"]), float(case["std"])
    values = np.concatenate([[mean - deviation, mean + deviation], labels])[:, None]
    stored, units = standardise_numbers(values, np.zeros(len(values), int), np.arange(len(values)) < 2, "common")
    yield case.compare("mean", units.mean[0, 0])
    yield case.compare("std", units.deviation[0, 0])
    yield case.compare("y_standardised", stored[2:, 0], tolerance=1e-7)  # stored as float32
    predicted = case["prediction_standardised"]
    yield case.compare("prediction", units.restore(predicted[:, None], np.arange(2, len(values)))[:, 0])
    rows = Rows(np.arange(2, len(values))[None], np.array([len(labels)]))
    truth = Truth(np.concatenate([np.zeros(2), case["y_standardised"]])[:, None], units=units)
    values, _ = measure_rows(["mse", "mae"], truth, rows, predicted[None, None, :, None])
    yield case.compare("mse", values["mse"][0, 0])
    yield case.compare("mae", values["mae"][0, 0])
    loss = loss_of(supervised(), case["y_standardised"][:, None])
    yield case.compare("mse_standardised", loss(jnp.asarray(predicted)[:, None]))


# ---- tags ------------------------------------------------------------------------------------------------------------
@covers("tasks", "multilabel_*")
def multilabel(case: Case):
    logits, tags = case["logits"], np.where(case["is_known"], case["labels"], PADDING).astype(np.int8)
    loss = loss_of(supervised(), tags)
    yield case.compare("bce", loss(jnp.asarray(logits)))
    yield case.compare("grad_bce", jax.grad(loss)(jnp.asarray(logits)))
    if case["is_known"].all():  # their weights count unknown tags as absent, ours count known ones alone
        yield case.compare("bce_weighted", loss_of(weighted_bce(), tags)(jnp.asarray(logits)))
    given = loss_of(weighted_bce(case["positive_weight"].tolist()), tags)
    yield case.compare("bce_weighted", given(jnp.asarray(logits)), tolerance=1e-7)  # the weights are float32
    by_name = {
        "average_precision": "average_precision_by_output",
        "mean_average_precision": "mean_average_precision",
        "average_precision_micro": "micro_average_precision",
        "auroc": "auroc_by_output",
        "mean_auroc": "auroc",
        "f1_per_label": "f1_by_output",
        "f1_macro": "macro_f1",
        "f1_micro": "micro_f1",
        "f1_samples": "sample_f1",
        "exact_match": "exact_match",
    }
    for array, name in by_name.items():
        if array in case:
            yield case.compare(array, measure(name, "tags", logits, tags))
    yield case.compare("hamming_accuracy", 1 - measure("hamming_loss", "tags", logits, tags))
    wrong = "x_wrong_mean_average_precision_absent_zero"
    if wrong in case and np.isnan(case["average_precision"]).any():
        yield case.refute(wrong, measure("mean_average_precision", "tags", logits, tags))
    case.excuse("?p", "counts are not reported, F1 is made of them")
    case.excuse("fn", "counts are not reported, F1 is made of them")
    case.excuse_unread("x_wrong_*", "all tags have positives: the mean is the same")


# ---- ranks -----------------------------------------------------------------------------------------------------------
def constant_features(model_params: dict) -> Model:
    """A model whose inputs are its features, with a head of these parameters."""
    head = {"kernel": jnp.ones((1, len(model_params["bias"]) + 1)), "bias": jnp.zeros(len(model_params["bias"]) + 1)}
    return Model(
        init=lambda key, inputs: {"params": {"classifier": head}},
        encode=lambda variables, inputs, context: ((inputs, {}), {}),
        classify=lambda params, features: features @ params["classifier"]["kernel"] + params["classifier"]["bias"],
        layers=lambda inputs: {},
    )


@covers("tasks", "ordinal_*")
def ordinal_ranks(case: Case):
    """Scores and biases are those of `models.ordinal` with a kernel of 1 and the scores as features."""
    labels, score, biases = case["labels"].astype(np.int8), jnp.asarray(case["score"]), jnp.asarray(case["biases"])
    model = ordinal(constant_features({"bias": biases}))
    start = model.init(make_key(0), score[:, None])["params"]["classifier"]
    assert start["bias"].shape == biases.shape and start["kernel"].shape == (1, 1)

    def outputs(score: jax.Array, biases: jax.Array) -> jax.Array:
        return model.classify({"classifier": {"kernel": jnp.ones((1, 1)), "bias": biases}}, score[:, None])

    logits, loss = outputs(score, biases), loss_of(supervised(), labels)
    yield case.compare("logits", logits)
    yield case.compare("levels", labels[:, None] > np.arange(len(biases)))
    yield case.compare("loss_coral", loss(logits))
    gradients = jax.grad(lambda score, biases: loss(outputs(score, biases)), argnums=(0, 1))(score, biases)
    yield case.compare("grad_score", gradients[0])
    yield case.compare("grad_biases", gradients[1])
    yield case.compare("prediction", (np.asarray(logits) > 0).sum(axis=1))
    for array, name in (("mae_ranks", "rank_mae"), ("quadratic_kappa", "quadratic_kappa")):
        yield case.compare(array, measure(name, "ranks", np.asarray(logits), labels))
    case.excuse("probabilities", "probabilities of single ranks are not computed: CORAL needs none")
    case.excuse("nll_cumulative", "another loss than CORAL's")
    case.excuse("confusion", "counts, see `confusion_matrix`")


# ---- forecasts -------------------------------------------------------------------------------------------------------
@covers("tasks", "forecast_*")
def forecast(case: Case):
    meta = case.meta
    window, horizon, stride = meta["window"], meta["horizon"], meta["stride"]
    train, valid, _ = meta["fractions"]
    series = {str(i): row[:n] for i, (row, n) in enumerate(zip(case["series"], case["lengths"], strict=True))}
    cuts = [[int(fraction * len(row)) for fraction in (train, train + valid)] for row in series.values()]
    yield case.compare("cuts", cuts)
    for form in ("strict", "context"):
        found = [
            find_windows(len(row), cut, window, horizon, stride, form)
            for row, cut in zip(series.values(), cuts, strict=True)
        ]
        for array, part in (("train", "train"), ("val", "valid"), ("test", "test")):
            starts = [(i, start) for i, parts in enumerate(found) for start in parts[part]]
            yield case.compare(f"{form}_{array}", np.reshape(starts, (-1, 2)))
    options = {"stride": stride, "cuts": (train, train + valid), "season": meta["season"]}
    dataset = windows(series, window, horizon, **options)
    test, units = np.flatnonzero(dataset.is_test), dataset.units
    yield case.compare("mean", units.mean[:, 0])
    yield case.compare("std", units.deviation[:, 0])
    yield case.refute("x_wrong_mean_of_all", units.mean[:, 0])
    yield case.compare("inputs", units.restore(dataset.inputs[test, :, 0], test), tolerance=1e-6)  # float32
    yield case.compare("targets", units.restore(dataset.labels[test], test), tolerance=1e-6)
    groups, names = units.group[test], [f"step_{step}" for step in range(1, horizon + 1)]
    standard = (case["last_value"] - units.mean[groups]) / units.deviation[groups]
    exact = (case["targets"] - units.mean[groups]) / units.deviation[groups]
    truth = Truth(exact, names, units._replace(group=groups))
    rows = Rows(np.arange(len(test))[None], np.array([len(test)]))
    values, _ = measure_rows(["mse", "mae", "smape", "mase", "mse_by_output"], truth, rows, standard[None, None])
    for name in ("mse", "mae", "smape", "mase"):
        yield case.compare(name, values[name][0, 0])
    yield case.compare("mse_by_step", [values[f"mse[{name}]"][0, 0] for name in names])
    yield case.compare("mse_standardised", loss_of(supervised(), exact)(jnp.asarray(standard)))
