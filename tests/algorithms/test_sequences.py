"""Training on sequences with a label per position: padding never counts; every algorithm trains or raises an error."""

import jax
import numpy as np
import pytest

from fedjax_het import data, engine, models
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.errors import InputError
from fedjax_het.labels import PADDING
from fedjax_het.types import Context
from tests.algorithms.test_segmentation import DISTILLED, OF_CLASSES
from tests.harness import ADAPTERS, CAPACITIES, PROMPTS, supply

LENGTH, NUM_TOKENS = 6, 4
MODEL = models.lstm(NUM_TOKENS, hidden=(8,), outputs="every")


def federation(filler: int = 0) -> data.Federation:
    """Three clients whose tokens are determined by the previous token; `filler` is the token at padding."""
    rng, rows = np.random.default_rng(0), 60
    steps = np.cumsum(np.concatenate([rng.integers(0, NUM_TOKENS, (rows, 1)), np.ones((rows, LENGTH), int)], 1), axis=1)
    tokens = steps % NUM_TOKENS
    is_padding = np.arange(LENGTH) >= rng.integers(2, LENGTH + 1, rows)[:, None]
    dataset = data.assemble(
        "steps",
        np.where(is_padding, filler, tokens[:, :-1]).astype(np.int16),
        np.where(is_padding, PADDING, tokens[:, 1:]),
        domains=np.arange(rows) % 3,
        domain_names=("a", "b", "c"),
    )
    return data.federate(dataset, data.by_domain(), 0, client_test_fraction=0.2)


def simulation(name, chosen, **options):
    algorithm = ALGORITHMS[name](learning_rate=1.0, batch_size=8, **DISTILLED.get(name, {}))
    return engine.Simulation(algorithm, MODEL, supply(algorithm, chosen), rounds=30, evaluate_every=30, **options)


@pytest.mark.slow
def test_padding_counts_neither_in_training_nor_in_scores():
    chosen = federation()
    run = simulation("fedavg", chosen)
    first = run.evaluate(run.start())
    state, metrics = run.advance(run.start(), 30)
    assert metrics.loss[0, -1] < 0.5 * metrics.loss[0, 0]
    figures = engine.flatten_evaluation(run.evaluate(state))
    assert figures["test/perplexity"][0] < 2 < engine.flatten_evaluation(first)["test/perplexity"][0]

    other = simulation("fedavg", federation(filler=3))
    again, _ = other.advance(other.start(), 30)
    jax.tree.map(np.testing.assert_array_equal, again.server.shared, state.server.shared)

    model, variables = MODEL, jax.tree.map(lambda x: x[0], state.server.shared)
    rows = chosen.test.index[: int(chosen.test.count)]
    inputs, labels = chosen.prepare(chosen.examples.inputs[rows]), chosen.examples.labels[rows]
    context = Context(np.ones(len(rows), np.float32), np.int32(0), make_key(0), False)
    log_softmax = jax.nn.log_softmax(
        model.classify(variables["params"], model.encode(variables, inputs, context)[0][0])
    )
    is_counted = labels != PADDING
    losses = [-float(log_softmax[i, j, labels[i, j]]) for i, j in zip(*np.nonzero(is_counted), strict=True)]
    correct = (np.argmax(log_softmax, axis=-1) == labels)[is_counted]
    np.testing.assert_allclose(figures["test/perplexity"][0], np.exp(np.mean(losses)), rtol=1e-5)
    np.testing.assert_allclose(figures["test/accuracy"][0], correct.mean(), rtol=1e-5)
    assert "clients/perplexity_mean" in figures


@pytest.mark.slow
def test_streamed_sequences_give_the_same_scores_to_rounding():
    figures = []
    for examples in ("device", "stream"):
        run = simulation("fedavg", federation(), examples=examples)
        state, _ = run.advance(run.start(), 30)
        figures.append(engine.flatten_evaluation(run.evaluate(state)))
    assert figures[0].keys() == figures[1].keys()
    for name, value in figures[0].items():
        np.testing.assert_allclose(value, figures[1][name], rtol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_on_sequences_or_refuses_them(name):
    chosen = federation()
    if name in [*OF_CLASSES, *PROMPTS, *ADAPTERS, *CAPACITIES, "harmofl", "feddg", "fedbn"]:
        refusal = (
            r"no text tower|matches no dense layer|features (are|have shape|that are)|(needs?|takes) images|"
            r"no layer of class BatchNorm|widths of its layers are not known|expected one label per example"
        )
        with pytest.raises(InputError, match=refusal):
            simulation(name, chosen)
        return
    states = []
    for filler in (0, 3):
        run = simulation(name, federation(filler))
        state, metrics = run.advance(run.start(), 2)
        assert np.isfinite(metrics.loss).all()
        states.append(state.server.shared)
    if name not in ("moon", "feddf"):  # read all positions; those of public examples have no labels
        jax.tree.map(np.testing.assert_array_equal, *states)


def test_a_network_of_whole_sequences_is_refused():
    model = models.lstm(NUM_TOKENS, hidden=(8,), outputs="last")
    with pytest.raises(InputError, match=r"a class for each position of a sequence.*outputs='every'"):
        engine.Simulation(ALGORITHMS["fedavg"](), model, federation(), rounds=1)


def test_flipped_labels_leave_padding():
    chosen = federation()
    poisoned = data.flip_labels(clients=(0, 1, 2))(chosen)
    before, after = chosen.examples.labels, poisoned.examples.labels
    np.testing.assert_array_equal(before == PADDING, after == PADDING)
    assert not np.array_equal(before, after) and after.max() < NUM_TOKENS
