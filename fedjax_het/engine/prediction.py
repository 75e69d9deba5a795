"""Predictions of a trained model on one split of a federation."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm, OutputMixture
from fedjax_het.data.federation import Federation
from fedjax_het.engine.evaluation.evaluate import BATCH, evaluated_model
from fedjax_het.engine.evaluation.norm_statistics import add_common_statistics
from fedjax_het.engine.evaluation.personal_means import mean_personal_variables
from fedjax_het.engine.evaluation.predictions import confusion_matrix
from fedjax_het.engine.evaluation.scoring import score_own_models
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.engine.parallel.layout import vmapped
from fedjax_het.engine.parallel.runs import Sweep
from fedjax_het.engine.round.client_step import Cohort, cohort_data
from fedjax_het.engine.round.participation import full
from fedjax_het.engine.round.program import Round, make_round
from fedjax_het.engine.storage.client_store import ClientStore
from fedjax_het.errors import InputError
from fedjax_het.labels import find_kind
from fedjax_het.types import Array, Model, Rows, State, Variables
from fedjax_het.validation import Seed, check_clients, validate_arguments


class Prediction(NamedTuple):
    """The predictions for the examples of a split, in the order of its table; NumPy arrays."""

    labels: np.ndarray  # true labels, [examples, ...]; numbers in their units
    classes: np.ndarray | None  # predicted classes, tags or ranks, the shape of labels; None for times and numbers
    logits: np.ndarray | None  # the outputs, such as logits [examples, classes], or predicted numbers in their units,
    # [examples, targets]; [examples, positions, classes] for sequences; None for masks

    def confusion_matrix(self, num_classes: int) -> np.ndarray:
        """See `fedjax_het.confusion_matrix`."""
        classes = np.zeros_like(self.labels) if self.classes is None else self.classes  # which raises an error
        return confusion_matrix(self.labels, classes, num_classes)


@validate_arguments
def predict(
    algorithm: Algorithm | Sweep,
    model: Model,
    federation: Federation,
    state: State,
    *,
    client: int | None = None,
    personal: bool = False,
    split: Literal["train", "valid", "test"] = "test",
    run: int = 0,
    seed: Seed | Sequence[Seed] = 0,
) -> Prediction:
    """Predict the labels of one split with the model that evaluations score.

    Args:
        algorithm: The trained algorithm or sweep; it determines which variables are evaluated.
        model: The model.
        federation: The clients and their data.
        state: The state after training, leaves [runs, ...], such as `history.state`.
        client: The client whose examples to predict (default None, the common test set).
        personal: Whether to use the client's personal model instead of the server's model (default False).
        split: The client's training, validation or test examples (default "test").
        run: The index on the run axis (default 0).
        seed: The `seed` of the simulation (default 0); the personalization rule may use it.

    Returns:
        The labels, predicted classes and logits.

    Raises:
        InputError: The client or run is unknown, `personal` is set without a client, or the split is empty.
    """
    num_runs = len(np.asarray(state.server.round))
    if not 0 <= run < num_runs:
        raise InputError(f"run: the state has the runs 0 to {num_runs - 1}, not {run}.")
    if client is None and (personal or split != "test"):
        raise InputError("client: personal models and the splits 'train' and 'valid' need the number of a client.")
    check_clients("client", [] if client is None else [client], federation.num_clients)
    federation = federation.in_round(max(int(np.asarray(state.server.round)[run]) - 1, 0))
    rows = federation.test if client is None else tree.take(getattr(federation.data, split), client)
    if rows is None or not rows.count:
        where = "there is no common test set" if client is None else f"client {client} has no {split} examples"
        raise InputError(f"split: {where}. Hold some out when the federation is made, or choose another split.")
    sweep = algorithm if isinstance(algorithm, Sweep) else Sweep(lambda: algorithm)
    seeds = (seed,) * len(sweep.algorithms) if isinstance(seed, int) else tuple(seed)
    keys = RunSpec(sweep, model, federation, full(), 1, 1, seeds, num_runs // len(seeds)).keys()
    trained = sweep.algorithms[run * len(seeds) // num_runs if sweep.values else 0]
    num_training = int(np.count_nonzero(federation.largest_counts("train")))
    round, score = _make_score(
        trained, model, federation.num_clients, num_training, federation.prepare, federation.augment, personal
    )
    clients = state.clients.take_all() if isinstance(state.clients, ClientStore) else state.clients
    server, clients = jax.tree.map(lambda x: x[run], (state.server, clients))
    shared = round.problem.evaluated(server)
    mean_personal = mean_personal_variables(clients, federation.num_clients, groups=round.problem.model.groups)
    whole = evaluated_model(round.algorithm, round.problem, server, mean_personal)
    if not personal and isinstance(whole, dict):
        whole = add_common_statistics(round.problem, whole, server.round, federation.data, BATCH)
    block = Cohort(np.array([client or 0]), np.array([True]))
    own, data = tree.take(clients, block.ids), cohort_data(federation.data, block)
    table = Rows(np.asarray(rows.index)[None], np.asarray(rows.count)[None])
    predicted = score(whole, server._replace(shared=shared), own, data, {"split": table}, block, keys[run])
    positions = np.asarray(rows.index)[: rows.count]
    labels = np.asarray(federation.examples.read_labels(positions))
    values, kind = np.asarray(predicted["split"][1])[0, : rows.count], find_kind(labels)
    if kind.name == "masks":
        return Prediction(labels, values, None)
    if federation.units is not None:
        labels, values = (federation.units.restore(numbers, positions) for numbers in (labels, values))
    return Prediction(labels, None if kind.decide is None else kind.decide(values), values)


@functools.lru_cache(maxsize=16)
def _make_score(*about: Any) -> tuple[Round, Callable[..., Any]]:
    """Return the round of an algorithm and its compiled scoring function; cached by argument values."""
    algorithm, model, num_clients, num_training, prepare, augment, personal = about
    round = make_round(algorithm, model, num_clients, num_training=num_training, prepare=prepare, augment=augment)

    @jax.jit
    def score(whole: Variables | OutputMixture, *values: Any) -> dict[str, tuple[Array, Array | None]]:
        own = algorithm if personal else replace(algorithm, personalize=lambda problem, view, key: whole)
        return score_own_models(own, round.problem, vmapped, BATCH, *values, with_predictions=True)

    return round, score
