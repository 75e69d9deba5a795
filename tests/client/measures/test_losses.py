import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_het import models
from fedjax_het._internal.keys import make_key
from fedjax_het.client.measures import generalization_gap, mean_loss, training_gain
from fedjax_het.errors import InputError
from fedjax_het.problem import Problem
from fedjax_het.types import Broadcast, ClientData, ClientView, Examples, Rows

RNG = np.random.default_rng(0)
INPUTS, LABELS = RNG.normal(size=(30, 4)).astype(np.float32), RNG.integers(0, 3, 30)
MODEL = models.mlp(3, (5,), norm="batch", dropout=0.5)
PROBLEM = Problem(MODEL, (), lambda inputs: inputs)
START, LOCAL = (MODEL.init(make_key(seed), jnp.asarray(INPUTS[:1])) for seed in (1, 2))
TRAIN, VALID = np.arange(17), np.arange(17, 24)
NOTHING = np.zeros(0, int)


def rows(index, capacity: int = 20) -> Rows:
    """Padded with the number of the last example."""
    padded = np.full(capacity, len(INPUTS) - 1)
    padded[: len(index)] = index
    return Rows(jnp.asarray(padded, jnp.int32), jnp.asarray(len(index), jnp.int32))


def view(train=TRAIN, valid=VALID, inputs=INPUTS, start=START, local=LOCAL, memory=None) -> ClientView:
    examples = Examples(jnp.asarray(inputs), jnp.asarray(LABELS))
    data = ClientData(examples, rows(train), rows(valid, 7), rows(NOTHING))
    received = Broadcast(jnp.zeros((), jnp.int32), start, {})
    return ClientView(received, memory or {}, {}, data, start, local, (), {}, jnp.zeros(()))


def by_hand(variables, index, metric="loss") -> float:
    """All examples at once, with running statistics and without dropout."""
    params, stats = variables["params"], variables["batch_stats"]["norm_0"]
    x = INPUTS[index] @ params["dense_0"]["kernel"] + params["dense_0"]["bias"]
    x = (x - stats["mean"]) / np.sqrt(stats["var"] + 1e-5) * params["norm_0"]["scale"] + params["norm_0"]["bias"]
    logits = np.maximum(x, 0) @ params["classifier"]["kernel"] + params["classifier"]["bias"]
    if metric == "accuracy":
        return float(np.mean(np.argmax(logits, axis=1) != LABELS[index]))
    return float(optax.softmax_cross_entropy_with_integer_labels(logits, LABELS[index]).mean())


@pytest.mark.extended
@pytest.mark.parametrize("batch_size", [1, 4, 7, 50])
@pytest.mark.parametrize(("model", "variables"), [("start", START), ("local", LOCAL)])
@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_the_mean_loss_is_taken_in_evaluation_mode_for_any_batch_size(model, variables, metric, batch_size):
    measured = mean_loss(model, metric, batch_size=batch_size)(PROBLEM, view())
    assert float(measured) == pytest.approx(by_hand(variables, VALID, metric), rel=1e-5)


def test_a_batch_is_no_wider_than_a_row_has_entries():
    widths = set()

    def note(total, batch, number):
        widths.add(batch.mask.shape[0])
        return total + jnp.sum(batch.mask)

    data = view().data
    assert float(PROBLEM.fold(data, data.valid, 50, note, jnp.zeros(()))) == len(VALID) and widths == {7}
    widths.clear()
    assert float(PROBLEM.fold(data, data.train, 4, note, jnp.zeros(()))) == len(TRAIN) and widths == {4}


@pytest.mark.extended
def test_without_validation_examples_training_examples_are_used_unless_excluded():
    nobody = view(valid=NOTHING)
    expected = by_hand(LOCAL, TRAIN)
    assert float(mean_loss()(PROBLEM, nobody)) == pytest.approx(expected, rel=1e-5)
    assert float(mean_loss(examples="train")(PROBLEM, view())) == pytest.approx(expected, rel=1e-5)
    assert float(mean_loss(examples="valid")(PROBLEM, nobody)) == 0


def test_the_mean_loss_without_examples_is_zero():
    assert float(mean_loss()(PROBLEM, view(train=NOTHING, valid=NOTHING))) == 0


@pytest.mark.extended
def test_nan_in_padding_does_not_change_the_mean_loss():
    sick = INPUTS.copy()
    sick[-1] = np.nan
    assert float(mean_loss()(PROBLEM, view(inputs=sick))) == pytest.approx(by_hand(LOCAL, VALID), rel=1e-5)


@pytest.mark.extended
def test_the_mean_loss_under_vmap_is_that_of_each_client_alone():
    clients = [view(), view(valid=NOTHING), view(train=NOTHING, valid=NOTHING)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients)
    together = jax.vmap(lambda v: mean_loss(batch_size=4)(PROBLEM, v))(stacked)
    np.testing.assert_allclose(together, [mean_loss()(PROBLEM, v) for v in clients], rtol=1e-5)


@pytest.mark.extended
def test_training_gain_is_the_loss_before_less_the_loss_after():
    gain = float(training_gain()(PROBLEM, view()))
    assert gain == pytest.approx(by_hand(START, VALID) - by_hand(LOCAL, VALID), rel=1e-4)
    assert float(training_gain()(PROBLEM, view(start=LOCAL, local=START))) == pytest.approx(-gain, rel=1e-6)
    assert float(training_gain()(PROBLEM, view(local=START))) == 0


@pytest.mark.extended
def test_the_gap_is_the_loss_of_the_received_model_less_the_remembered_loss():
    known, unknown = ({"value": jnp.asarray(0.25), "is_known": jnp.asarray(known)} for known in (True, False))
    measured = [generalization_gap()(PROBLEM, view(memory={"validation_loss": m})) for m in (known, unknown)]
    np.testing.assert_allclose(measured, [by_hand(START, VALID) - 0.25, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "acuracy"}, "metric: unknown option 'acuracy'. Did you mean 'accuracy'"),
        ({"examples": "validation"}, "examples: unknown option 'validation'. Did you mean 'valid'"),
    ],
)
@pytest.mark.parametrize("measure", [mean_loss, training_gain, generalization_gap])
def test_unknown_options_are_refused_with_the_nearest(measure, options, message):
    with pytest.raises(InputError, match=message):
        measure(**options)


def test_an_unknown_model_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"model: unknown option 'stert'. Did you mean 'start'"):
        mean_loss("stert")
