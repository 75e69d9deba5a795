import inspect
from typing import get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.client.local_updates import Training, _sgd, sequential, sgd, with_own_model
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.errors import InputError
from fedjax_het.problem import Problem
from fedjax_het.types import Broadcast, ClientData, ClientView, Examples, Model, Rows

RNG = np.random.default_rng(0)
INPUTS, LABELS = RNG.normal(size=(30, 4)).astype(np.float32), RNG.integers(0, 3, 30)
WEIGHTS = {"w": jnp.asarray(RNG.normal(size=(4, 3)).astype(np.float32))}

MODEL = Model(
    init=lambda key, inputs: {"params": WEIGHTS},
    encode=lambda variables, inputs, context: ((inputs, {}), {}),
    classify=lambda params, features: features @ params["w"],
    layers=lambda inputs: {},
)
PROBLEM = Problem(MODEL, (cross_entropy(),), lambda inputs: inputs)


def view(index, count, memory=None) -> ClientView:
    rows = Rows(jnp.asarray(index, jnp.int32), jnp.asarray(count, jnp.int32))
    start = {"params": WEIGHTS}
    data = ClientData(Examples(jnp.asarray(INPUTS), jnp.asarray(LABELS)), rows, rows, rows)
    received = Broadcast(jnp.zeros((), jnp.int32), start, {})
    return ClientView(received, memory or {}, {}, data, start, start, (), {}, jnp.zeros(()))


def by_hand(batches, rate, momentum=0.0, decay=0.0, start=WEIGHTS["w"]):
    """PyTorch's SGD on softmax regression, in NumPy."""
    w, buffer = np.asarray(start, np.float64), None
    for rows in batches:
        scores = INPUTS[rows] @ w
        probability = np.exp(scores - scores.max(1, keepdims=True))
        probability /= probability.sum(1, keepdims=True)
        gradient = INPUTS[rows].T @ (probability - np.eye(3)[LABELS[rows]]) / len(rows) + decay * w
        buffer = gradient if buffer is None else momentum * buffer + gradient
        w = w - rate * buffer
    return w


def train(update, *arguments, key=0):
    return jax.jit(lambda v, k: update.train(PROBLEM, v, k))(view(*arguments), make_key(key))


def test_the_last_partial_batch_is_not_dropped():
    rows = np.arange(13)
    out = train(sgd(0.3, momentum=0.9, weight_decay=0.01, batch_size=5, epochs=2, shuffle=False), rows, 13)
    wanted = by_hand([rows[:5], rows[5:10], rows[10:]] * 2, 0.3, 0.9, 0.01)
    np.testing.assert_allclose(out.variables["params"]["w"], wanted, atol=1e-5)
    assert float(out.num_steps) == 6


def test_fewer_examples_than_a_batch_make_one_step():
    out = train(sgd(0.3, batch_size=50, shuffle=False), np.arange(7), 3)
    np.testing.assert_allclose(out.variables["params"]["w"], by_hand([np.arange(3)], 0.3), atol=1e-6)
    assert float(out.num_steps) == 1


def test_a_client_without_examples_takes_no_step():
    out = train(sgd(0.3), np.zeros(5), 0)
    np.testing.assert_array_equal(out.variables["params"]["w"], WEIGHTS["w"])
    assert float(out.num_steps) == 0 and float(out.metrics["loss"]) == 0


def test_a_number_of_steps_cycles_through_the_examples():
    rows = np.arange(8)
    out = train(sgd(0.1, batch_size=5, steps=5, shuffle=False), rows, 8)
    halves = [rows[:5], rows[5:]]
    np.testing.assert_allclose(out.variables["params"]["w"], by_hand([*halves, *halves, halves[0]], 0.1), atol=1e-5)
    assert float(out.num_steps) == 5


@pytest.mark.extended
def test_shuffling_keeps_every_example_once_in_an_order_independent_of_padding():
    key = make_key(3)
    narrow = _sgd._shuffle(key, Rows(jnp.arange(100, 113), jnp.asarray(11)))
    wide = _sgd._shuffle(key, Rows(jnp.pad(jnp.arange(100, 111), (0, 40)), jnp.asarray(11)))
    assert sorted(narrow[:11].tolist()) == list(range(100, 111))
    assert narrow[:11].tolist() == wide[:11].tolist() != sorted(wide[:11].tolist())


@pytest.mark.extended
def test_every_epoch_and_key_has_its_own_order():
    single, twice = (train(sgd(0.5, batch_size=4, epochs=e), np.arange(12), 12) for e in (1, 2))
    again = train(sgd(0.5, batch_size=4, epochs=2), np.arange(12), 12)
    other = train(sgd(0.5, batch_size=4, epochs=2), np.arange(12), 12, key=1)
    np.testing.assert_array_equal(twice.variables["params"]["w"], again.variables["params"]["w"])
    assert np.any(twice.variables["params"]["w"] != other.variables["params"]["w"])
    assert np.any(twice.variables["params"]["w"] != single.variables["params"]["w"])


def test_any_optax_optimizer_can_be_used_and_kept():
    adam = optax.adam(0.1)
    update = sgd(optimizer=adam, keep_optimizer=True, batch_size=4, shuffle=False)
    first = train(update, np.arange(8), 8, {"optimizer": adam.init(WEIGHTS)})
    second = train(update, np.arange(8), 8, {"optimizer": first.optimizer})
    assert int(second.optimizer[0].count) == 4


@pytest.mark.slow
@pytest.mark.parametrize("length", [{}, {"epochs": 3}, {"steps": 7}])
def test_the_predicted_number_of_steps_is_the_number_taken(length):
    update = sgd(batch_size=4, **length)
    for count in (0, 1, 4, 9):
        assert float(train(update, np.arange(10), count).num_steps) == update.num_steps(np.array([count]))[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size: must be a whole number from 1 to 2147483647, not 0"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs"),
        ({"steps": -1}, "steps"),
        ({"learning_rate": -0.1}, "learning_rate"),
        ({"momentum": float("nan")}, "momentum"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        sgd(**settings)


def test_the_training_settings_are_the_parameters_of_sgd():
    known = set(inspect.signature(sgd).parameters) - {"gradient", "keep_optimizer", "early_stopping", "factor"}
    assert set(get_type_hints(Training)) == known


def test_early_stopping_ends_after_the_first_epoch_with_too_small_a_gain():
    """The second epoch is the first that is judged; the loss falls in all of these epochs."""
    for gamma, epochs in ((100.0, 2), (0.0, 4)):
        out = train(sgd(0.1, batch_size=4, epochs=4, early_stopping=gamma), np.arange(8), 8)
        np.testing.assert_array_equal(
            out.variables["params"]["w"],
            train(sgd(0.1, batch_size=4, epochs=epochs), np.arange(8), 8).variables["params"]["w"],
        )
        assert float(out.num_steps) == 2 * epochs


def test_early_stopping_without_a_third_epoch_is_refused():
    with pytest.raises(InputError, match="early_stopping: without effect"):
        sgd(epochs=2, early_stopping=0.1)


@pytest.mark.extended
def test_a_sequential_update_continues_from_the_end_of_the_first():
    settings = {"batch_size": 5, "shuffle": False}
    halves = [np.arange(5), np.arange(5, 8)]
    update = sequential(sgd(0.3, **settings), sgd(0.1, **settings, epochs=2))
    out = train(update, np.arange(8), 8)
    middle = by_hand(halves, 0.3)
    wanted = by_hand(halves * 2, 0.1, start=middle)
    np.testing.assert_allclose(out.variables["params"]["w"], wanted, atol=1e-5)
    assert float(out.num_steps) == 6 == update.num_steps(np.array([8]))[0]
    parts = [float(train(part, np.arange(8), 8).metrics["loss"]) for part in (sgd(0.3, **settings), update)]
    assert parts[1] < parts[0]


def test_a_sequential_update_without_examples_takes_no_step():
    out = train(sequential(sgd(0.3), sgd(0.1)), np.zeros(5), 0)
    np.testing.assert_array_equal(out.variables["params"]["w"], WEIGHTS["w"])
    assert float(out.num_steps) == 0 and float(out.metrics["loss"]) == 0


@pytest.mark.extended
def test_an_update_with_only_trains_the_matching_parameters():
    np.testing.assert_array_equal(
        train(sgd(0.3, only="params/w", batch_size=4), np.arange(8), 8).variables["params"]["w"],
        train(sgd(0.3, batch_size=4), np.arange(8), 8).variables["params"]["w"],
    )
    with pytest.raises(InputError, match="only: no parameter"):
        train(sgd(0.3, only="params/v"), np.arange(8), 8)


def test_only_together_with_keep_optimizer_is_refused():
    with pytest.raises(InputError, match="only: not supported if the optimizer is kept"):
        sgd(only="params/w", keep_optimizer=True)


@pytest.mark.extended
def test_an_own_model_is_trained_after_the_common_one_in_the_steps_that_are_left():
    """From its own start, at its own learning rate; without a limit both take their two steps."""
    batches, settings = [np.arange(5), np.arange(5, 10)], {"steps": 2, "batch_size": 5, "shuffle": False}
    update = with_own_model(sgd(0.3, **settings), sgd(0.1, **settings))
    start = view(np.arange(10), 10, {"own": {"params": {"w": 2 * WEIGHTS["w"]}}})
    train_once = jax.jit(lambda v: update.train(PROBLEM, v, make_key(0)))
    for limit, own_batches in ((None, batches), (3, batches[:1])):
        out = train_once(start._replace(max_steps=None if limit is None else jnp.asarray(limit)))
        np.testing.assert_allclose(out.variables["params"]["w"], by_hand(batches, 0.3), atol=1e-5)
        wanted = by_hand(own_batches, 0.1, start=2 * WEIGHTS["w"])
        np.testing.assert_allclose(out.results["own"]["params"]["w"], wanted, atol=1e-5)
        assert float(out.num_steps) == (limit or update.num_steps(10))
