"""Losses of models on a client's examples."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het._internal.whole_data import mean_objective
from fedjax_het.algorithm import Measure, Problem
from fedjax_het.errors import InputError
from fedjax_het.labels import example_losses, find_kind, mean_per_example
from fedjax_het.problem import MissingSlotError
from fedjax_het.types import Array, Batch, ClientData, ClientView, Rows, Variables
from fedjax_het.validation import Count, validate_arguments

Metric = Literal["loss", "accuracy"]
Examples = Literal["valid_or_train", "valid", "train"]
Moment = Literal["last_epoch_mean", "round_mean", "pre_eval", "post_eval"]


def _find_errors(outputs: Array, labels: Array) -> Array:
    """1 for a wrong label, 0 for the right one, and NaN where an output is."""
    kind = find_kind(labels)
    if kind.decide is None:
        raise InputError(f"metric: the labels are {kind.title}, which have no error rate. Set metric='loss'.")
    is_wrong = (kind.decide(outputs) != labels).astype(outputs.dtype)
    is_nan = jnp.isnan(outputs) if is_wrong.ndim == outputs.ndim else jnp.any(jnp.isnan(outputs), axis=-1)
    return jnp.where(is_nan, jnp.nan, is_wrong)


METRICS: dict[Metric, Callable[[Array, Array], Array]] = {"loss": example_losses, "accuracy": _find_errors}


@validate_arguments
def mean_loss(
    model: Literal["start", "local"] = "local",
    metric: Metric = "loss",
    examples: Examples = "valid_or_train",
    batch_size: Count = 50,
) -> Measure:
    """[]: mean loss of the client's model on its own validation examples, in evaluation mode.

        1/n sum_j l(f(x_j), y_j)

    Args:
        model: "start" (view.start) or "local" (view.local).
        metric: "loss" (of the kind of labels, such as cross-entropy) or "accuracy", measured as the error rate, so that
            lower is better for both.
        examples: "valid_or_train" uses the training examples if a client has no validation examples; "valid" is 0 for
            such a client; "train" always uses training examples.
        batch_size: Number of examples per evaluation step.

    Raises:
        InputError: An option is unknown.
    """

    def measure(problem: Problem, view: ClientView) -> Array:
        return _mean_metric(
            problem, view, getattr(view, model), METRICS[metric], _choose_rows(view.data, examples), batch_size
        )

    return measure


def loss_of(
    problem: Problem, view: ClientView, examples: Examples, batch_size: int, metric: Metric = "loss"
) -> Callable[[Variables], Array]:
    """The mean loss of a model on a client's examples, in evaluation mode, as a function of its variables.

    See `mean_loss` for the arguments.
    """
    rows = _choose_rows(view.data, examples)
    return lambda variables: _mean_metric(problem, view, variables, METRICS[metric], rows, batch_size)


@validate_arguments
def best_model(metric: Metric = "loss", examples: Examples = "train", batch_size: Count = 50) -> Measure:
    """[]: the number of the server's model with the lowest loss on the client's examples, for `SharedModels.choose`.

        argmin_m F_i(theta_m)

    Ties go to the lowest number. See `mean_loss` for options and errors.
    """

    def measure(problem: Problem, view: ClientView) -> Array:
        return jnp.argmin(_losses_of_all(problem, view, view.received.shared, metric, examples, batch_size))

    return measure


@validate_arguments
def losses_of_models(
    metric: Metric = "loss", examples: Examples = "train", batch_size: Count = 50, every: Count = 1
) -> Measure:
    """[models]: the losses of all models of the server on the client's examples, for the survey.

    Args:
        metric: See `mean_loss`.
        examples: See `mean_loss`.
        batch_size: See `mean_loss`.
        every: They are measured in multiples of this round, and 0 in others.
    """

    def measure(problem: Problem, view: ClientView) -> Array:
        def losses() -> Array:
            return _losses_of_all(problem, view, view.models, metric, examples, batch_size)

        shape = jax.eval_shape(losses)
        return jax.lax.cond(view.received.round % every == 0, losses, lambda: jnp.zeros(shape.shape, shape.dtype))

    return measure


def _losses_of_all(
    problem: Problem, view: ClientView, models: Variables | None, metric: Metric, examples: Examples, batch_size: int
) -> Array:
    if models is None:
        raise MissingSlotError("reads all models of the server, which has one. Set Algorithm.models.")
    personal, rows = tree.partition_like(view.start, models)[0], _choose_rows(view.data, examples)

    def loss(shared: Variables) -> Array:
        return _mean_metric(problem, view, tree.merge(shared, personal), METRICS[metric], rows, batch_size)

    return jax.vmap(loss)(models)


def mean_entropy(batch_size: Count = 50) -> Measure:
    """[]: mean entropy of the received model's predictions on the client's training examples (GLFC).

    1/n sum_j sum_c - p_jc log(p_jc + 1e-5)
    """

    def measure(problem: Problem, view: ClientView) -> Array:
        return _mean_metric(problem, view, view.start, _entropies, view.data.train, batch_size)

    return measure


def _entropies(logits: Array, labels: Array) -> Array:
    probability = jax.nn.softmax(logits)
    return -jnp.sum(probability * jnp.log(probability + 1e-5), axis=-1)


def assigned_model(name: str) -> Measure:
    """[]: the number of this client's model in `published[name]["labels"]`, for `SharedModels.choose`."""
    return lambda problem, view: view.received.published[name]["labels"][view.client]


def nearest_model(name: str, first: Measure) -> Measure:
    """[]: the number of the server's model nearest to a model that the client remembers, for `SharedModels.choose`.

        argmin_m ||theta_m - v||,   all shared variables

    Args:
        name: The memory of v, a `memories.last`.
        first: The choice of a client that has no v yet.
    """

    def measure(problem: Problem, view: ClientView) -> Array:
        own = view.memory[name]
        kept = tree.partition_like(own["value"], view.received.shared)[1]
        distances = jax.vmap(lambda model: tree.squared_norm(tree.subtract(model, kept)))(view.received.shared)
        return jnp.where(own["is_known"], jnp.argmin(distances), first(problem, view))

    return measure


@validate_arguments
def training_gain(metric: Metric = "loss", examples: Examples = "valid_or_train", batch_size: int = 50) -> Measure:
    """[]: decrease of the loss on the client's validation examples by local training, FedRD's GAP_i.

        F_i(w^t) - F_i(w_i)

    See `mean_loss` for options and errors.
    """
    before, after = (mean_loss(model, metric, examples, batch_size) for model in ("start", "local"))
    return lambda problem, view: before(problem, view) - after(problem, view)


def generalization_gap(metric: Metric = "loss", examples: Examples = "valid_or_train", batch_size: int = 50) -> Measure:
    """[]: increase of the client's loss by aggregation, FedGA's G_i.

        F_i(w^t) - F_i(w_i),   w_i as the client last trained it; 0 before

    Reads: view.start, memory["validation_loss"] (`memories.last` of `mean_loss`). The memory is of the client's last
    round, which is the previous round if it participates in every round.
    See `mean_loss` for options and errors.
    """
    now = mean_loss("start", metric, examples, batch_size)

    def measure(problem: Problem, view: ClientView) -> Array:
        earlier = view.memory["validation_loss"]
        return jnp.where(earlier["is_known"], now(problem, view) - earlier["value"], 0)

    return measure


def _choose_rows(data: ClientData, examples: str) -> Rows:
    if examples != "valid_or_train":
        return getattr(data, examples)
    has_valid = data.valid.count > 0
    capacity = max(data.valid.index.shape[0], data.train.index.shape[0])
    valid, train = (jnp.pad(rows.index, (0, capacity - rows.index.shape[0])) for rows in (data.valid, data.train))
    return Rows(jnp.where(has_valid, valid, train), jnp.where(has_valid, data.valid.count, data.train.count))


def _mean_metric(
    problem: Problem, view: ClientView, variables: Variables, metric: Callable, rows: Rows, batch_size: int
) -> Array:
    """Mean over batches, so that memory does not grow with the number of examples; 0 without examples."""
    params, state = tree.split_params(variables)

    def add(total: Array, batch: Batch, number: Array) -> Array:
        forward = problem.forward(params, state, batch, view, make_key(0), is_training=False)
        values = mean_per_example(metric(forward.outputs.logits, batch.labels), batch.labels)
        return total + jnp.sum(jnp.where(batch.mask > 0, values, 0).astype(total.dtype))

    total = problem.fold(view.data, rows, batch_size, add, jnp.zeros((), float))
    return total / jnp.maximum(rows.count, 1)


MEASURED = {"last_epoch_mean": "last_epoch_loss", "round_mean": "loss"}
EVALUATED = {"pre_eval": lambda view: view.start, "post_eval": lambda view: view.local}


@validate_arguments
def training_loss(moment: Moment = "last_epoch_mean", batch_size: Count = 50) -> Measure:
    """The mean of the algorithm's objective over a client's training examples, [].

    last_epoch_mean:  over the last local epoch, while the weights change; no extra cost

    Reads: metrics["last_epoch_loss"] or metrics["loss"]; evaluations read view.start or view.local. For plain
    cross-entropy, whatever the objective, use `mean_loss("local", examples="train")`.

    Args:
        moment: Time of the measurement, as above.
        batch_size: Batch size of evaluations.

    Raises:
        InputError: The moment is unknown.
    """

    def measure(problem: Problem, view: ClientView) -> Array:
        if moment in MEASURED:
            return view.metrics[MEASURED[moment]]
        return mean_objective(problem, view, EVALUATED[moment](view), batch_size)

    return measure
