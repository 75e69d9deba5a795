"""Runs on data that change with the round."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het import data
from fedjax_het._internal.keys import make_key
from fedjax_het.data import concept, drift
from fedjax_het.data.concept import change_examples
from fedjax_het.engine import Simulation, chunked, vmapped
from fedjax_het.errors import InputError
from tests.harness import TINY, is_equal

DIGITS = data.load("digits")
NETWORK = fh.models.mlp(10, hidden=())
NOISY = drift.recurring(2, 1, stagger=2, concepts=concept.noisy(0.2))


def federation(rule):
    return data.federate(DIGITS, data.dirichlet(1.0), 4, test_fraction=0, drift=rule, valid_fraction=0.1)


def train(rule, name="fedavg", stops=(4,), **options):
    """(The state, evaluations) of a run that stops after these rounds."""
    algorithm = fh.algorithms.ALGORITHMS[name](**TINY, shuffle=False)
    simulation = Simulation(
        algorithm, NETWORK, federation(rule), rounds=4, cohort_size=3, evaluate_every=4, num_seeds=2, **options
    )
    state, done, evaluations = simulation.start(), 0, []
    for stop in stops:
        state, _ = simulation.advance(state, stop - done)
        evaluations, done = [*evaluations, simulation.evaluate(state)], stop
    return state, evaluations


@pytest.mark.slow
def test_from_the_start_of_a_phase_on_clients_train_and_test_on_changed_examples():
    """As if the stored examples had been changed between the rounds."""
    whole = federation(drift.sudden(1, concepts=concept.rotated()))
    concepts, plain = whole.examples.concepts, whole.in_round(0).data
    plain = plain._replace(examples=plain.examples._replace(concepts=None))
    inputs, labels = change_examples(plain.examples, concepts, np.ones(len(DIGITS.labels), int))
    turned = plain._replace(examples=plain.examples._replace(inputs=inputs, labels=labels))
    key = make_key(0)
    round = fh.engine.make_round(fh.algorithms.fedavg(**TINY), NETWORK, 4, prepare=whole.prepare)
    step = jax.jit(lambda state, data: round.step(state, data, key)[0])
    expected = step(step(round.init(key, plain), plain), turned)
    drifted = round.init(key, plain)
    for number in range(2):
        drifted = step(drifted, whole.in_round(number).data)
    for ours, theirs in zip(jax.tree.leaves(drifted), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "apfl"])
def test_examples_off_the_device_and_interruptions_change_no_bit(name):
    whole = train(NOISY, name)
    assert is_equal(whole, train(NOISY, name, examples="stream"))
    _, evaluations = train(NOISY, name, stops=(1, 3, 4))
    assert is_equal(whole[1][-1], evaluations[-1])


@pytest.mark.slow
def test_other_layouts_give_the_same_metrics():
    accuracies = [train(drift.tasks(2, 2), layout=layout)[1][-1].phases.accuracy for layout in (vmapped, chunked(1))]
    np.testing.assert_allclose(*accuracies, atol=0.01)


@pytest.mark.extended
def test_metrics_of_phases_agree_with_the_model_on_their_data():
    state, (evaluation,) = train(drift.tasks(2, 2), metrics=("balanced_accuracy",))
    phases = evaluation.phases
    assert phases.present.tolist() == [1, 1] and phases.following.tolist() == [1, 1]
    np.testing.assert_allclose(phases.accuracy[:, 1], np.nanmean(_own_accuracy(evaluation.clients), axis=1))
    whole = federation(drift.tasks(2, 2))
    last = fh.predict(fh.algorithms.fedavg(**TINY), NETWORK, whole, state, client=0)
    assert evaluation.clients.accuracy[0, 0] == pytest.approx(np.mean(last.classes == last.labels))
    assert set(last.labels) <= set(np.flatnonzero(whole.phases.has_class[1]))


def _own_accuracy(metrics):
    return np.where(metrics.num_examples > 0, metrics.accuracy, np.nan)


def test_a_drift_that_changes_numbers_of_examples_has_no_asynchronous_schedule():
    options = {"timing": fh.timing.log_normal(), "asynchronous": fh.asynchronous.fedbuff(concurrency=2, buffer_size=1)}
    with pytest.raises(InputError, match=r"^asynchronous: the schedule follows from"):
        Simulation(fh.algorithms.fedavg(**TINY), NETWORK, federation(drift.tasks(2, 2)), rounds=2, **options)


def test_the_classes_of_phases_are_hidden_from_algorithms_with_differential_privacy():
    def number_of_classes(forward):
        return jnp.sum(forward.view.received.phase.has_class)

    private = fh.algorithms.fedavg(**TINY, weighting="uniform")
    private = replace(private, uplink=(fh.uplink.gaussian_mechanism(1.0, 1.0),))
    reading = replace(private, objective=(*private.objective, number_of_classes))
    with pytest.raises(InputError, match="reads the classes that clients have in a phase"):
        Simulation(reading, NETWORK, federation(NOISY), rounds=2)
