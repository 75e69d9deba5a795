"""Laws and refusals of DP-SGD on clients."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import data, models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.client import objectives, private_gradients
from fedjax_het.data import concept, drift
from fedjax_het.engine import Simulation
from fedjax_het.engine.parallel.layout import chunked, sharded
from fedjax_het.engine.round.participation import pow_d
from fedjax_het.errors import InputError
from fedjax_het.placeholders import Sealed, refuse_sealed, seal
from fedjax_het.privacy import RecordPrivacy
from fedjax_het.problem import Problem
from fedjax_het.types import Batch
from tests.golden.replay import client_data, linear_objective, vector_model
from tests.harness import algorithm, compose, difference, federation, is_equal, model, run
from tests.views import client_view, forward_pass

STEPS = {"steps": 3, "batch_size": 6}
PLAIN = RecordPrivacy(1.0, 0.7)


def private(name: str = "fedavg", privacy: RecordPrivacy = PLAIN, options=STEPS, norm: str = "none", change=(), **rest):
    return compose(name, norm=norm, options=options, change={"record_privacy": privacy, **dict(change)}, **rest)


def sum_of_gradients(inputs: np.ndarray, bound: float, **options) -> np.ndarray:
    """The sum of the clipped gradients of examples whose gradients are their inputs, without noise."""
    problem = Problem(vector_model(np.zeros(1)), (linear_objective,), lambda inputs: inputs)
    batch = Batch(jnp.asarray(inputs, jnp.float32), jnp.zeros(len(inputs), int), jnp.ones(len(inputs)))
    start = {"w": jnp.zeros(inputs.shape[1])}
    arguments = start, {}, batch, client_view(), jnp.ones(()), None, make_key(0)
    return np.asarray(
        private_gradients.private_gradient(RecordPrivacy(bound, 0.0, **options), problem, *arguments)[1]["w"]
    )


def test_no_example_moves_the_sum_by_more_than_the_bound_whatever_it_is():
    others, bound = np.random.default_rng(0).normal(size=(4, 5)), 0.7
    without = sum_of_gradients(np.stack([*others, np.zeros(5)]), bound)
    for worst in (np.full(5, 1e30), np.full(5, np.nan), -1e6 * np.eye(5)[0], np.full(5, 1e-3)):
        moved = sum_of_gradients(np.stack([*others, worst]), bound, chunk_size=2) - without
        assert np.linalg.norm(moved) <= bound * (1 + 1e-5)


@pytest.mark.slow
def test_every_example_is_drawn_with_the_same_probability_independently_and_at_most_the_slots():
    """A key gives the same examples whatever the capacity of the table."""
    table = client_data(np.arange(20.0)[:, None], np.zeros(20), [12])
    problem = Problem(vector_model(np.zeros(1)), (), lambda inputs: inputs)
    keys = jax.random.split(make_key(0), 2000)

    def draw(data, slots=None):
        own = data._replace(train=jax.tree.map(lambda x: x[0], data.train))
        mechanism = RecordPrivacy(1.0, slots=slots)
        batch, expected = jax.vmap(lambda key: private_gradients.draw_batch(mechanism, problem, own, 3, key))(keys)
        members = np.zeros((len(keys), 12), bool)
        for row, (inputs, mask) in enumerate(
            zip(np.asarray(batch.inputs)[..., 0], np.asarray(batch.mask), strict=True)
        ):
            members[row, inputs[mask > 0].astype(int)] = True
        assert np.all(members.sum(1) == np.asarray(batch.mask).sum(1)) and np.all(np.asarray(expected) == 3)
        return members

    drawn = draw(table)
    np.testing.assert_allclose(drawn.mean(0), 0.25, atol=0.05)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(12)).max() < 0.12
    assert drawn.sum(1).var() == pytest.approx(12 * 0.25 * 0.75, rel=0.2)
    wider = table._replace(train=table.train._replace(index=np.pad(table.train.index, [(0, 0), (0, 9)])))
    assert np.array_equal(draw(wider), drawn)
    truncated = draw(table, slots=4)
    assert truncated.sum(1).max() == 4 and not np.any(truncated & ~drawn)
    np.testing.assert_allclose(truncated.mean(0), truncated.mean(), atol=0.05)


@pytest.mark.slow
def test_without_noise_and_clipping_a_batch_of_everyone_is_gradient_descent():
    """Also of parts of the model, whose other leaves do not count in the norm."""
    for options in ({}, {"only": "params/classifier/*"}):
        everyone = {"steps": 3, "batch_size": 24, **options}
        expected, _ = run(compose("fedavg", norm="none", options=everyone))
        found, _ = run(private(privacy=RecordPrivacy(1e9, 0.0, chunk_size=5), options=everyone))
        assert difference(expected.server.shared, found.server.shared) < 1e-5


@pytest.mark.slow
def test_chunks_and_layouts_change_rounding_alone_and_noise_differs_between_clients_and_steps():
    state, _ = run(private(), rounds=2)
    for other in (
        private(privacy=replace(PLAIN, chunk_size=3)),
        private(layout=chunked(2)),
        private(layout=sharded(2)),
    ):
        assert difference(run(other, rounds=2)[0].server.shared, state.server.shared) < 1e-5
    quiet, secret = (run(private(privacy=replace(PLAIN, **change)), rounds=2)[0].server.shared
                     for change in ({"noise_multiplier": 0.0}, {"noise_seed": 3}))  # fmt: skip
    assert difference(quiet, state.server.shared) > 1e-2 < difference(secret, state.server.shared)
    loud = (0.0, 0.0, 5.0, 0.0, 0.0)  # of client 2 alone
    start = run(private(), rounds=0)[0].server.shared
    own = run(private(privacy=replace(PLAIN, noise_multiplier=loud)), rounds=2)[0].server.shared
    assert difference(own, start) > 1.5 * difference(quiet, start)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedbabu"])
def test_algorithms_that_read_only_noisy_gradients_make_a_round(name):
    round = private(name)
    state = jax.eval_shape(round.init, make_key(0), federation().data)
    after = jax.eval_shape(round.step, state, federation().data, make_key(0))[0]
    assert tree.describe_leaves(after) == tree.describe_leaves(state)


LOSS = {"reports": {"seen": lambda problem, view: view.metrics["loss"]}}
SUMS = {"reports": {"seen": lambda problem, view: problem.batch(view.data, view.data.train.index, 1, 0, 1).inputs}}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"batch_size": 6}}, "steps: not set, and with record_privacy there are no epochs"),
        ({"options": {**STEPS, "shuffle": False}}, "shuffle: has no effect"),
        ({"privacy": RecordPrivacy(1.0)}, "noise_multiplier is not set"),
        ({"name": "fedsam"}, "several gradients per step"),
        ({"name": "pfedme"}, "several gradients per step"),
        ({"name": "feddecorr"}, "term 'decorrelation' is not a mean over examples"),
        ({"name": "fedlc"}, "objective term 'calibrated_cross_entropy' reads a client's examples"),
        ({"name": "fedproto"}, "report 'prototypes' reads a client's examples"),
        ({"name": "fediir"}, "survey 'mean_gradient' reads a client's examples"),
        ({"name": "ifca"}, "the choice of a model reads a client's examples"),
        ({"name": "fedrep"}, "steps: not set"),
        ({"name": "fedala"}, "the start rule or the local update reads a client's examples"),
        ({"change": LOSS}, "report 'seen' reads a client's examples"),
        ({"change": SUMS}, "report 'seen' reads a client's examples"),
        ({"norm": "batch"}, "the model has batch_stats"),
        ({"participation": pow_d(2, 4)}, "reads numbers that clients report without noise"),
    ],
)
def test_what_no_noise_covers_is_refused_before_the_first_round(changes, message):
    with pytest.raises(InputError, match=message):
        round = private(**changes)
        state = jax.eval_shape(round.init, make_key(0), federation().data)
        jax.eval_shape(round.step, state, federation().data, make_key(0))


@pytest.mark.parametrize(
    ("noise", "norm", "standardise", "message"),
    [
        (1.0, "batch_stat", False, "batch normalization .* mixes the examples"),
        (1.0, "none", True, "standardise: the moments"),
        ((1.0, 2.0), "none", False, "2 numbers for 5 clients"),
    ],
)
def test_a_simulation_refuses_models_data_and_noise_that_do_not_fit(noise, norm, standardise, message):
    chosen = replace(algorithm("fedavg", steps=3), record_privacy=RecordPrivacy(1.0, noise))
    with pytest.raises(InputError, match=message):
        Simulation(chosen, model(norm), federation(standardise=standardise), rounds=1)


def test_data_that_change_with_the_round_are_refused():
    drifting = data.federate(
        data.load("digits"), data.iid(), 4, test_fraction=0, drift=drift.sudden(1, concepts=concept.rotated())
    )
    chosen = replace(algorithm("fedavg", steps=3), record_privacy=PLAIN)
    with pytest.raises(InputError, match="the data of clients change with the round"):
        Simulation(chosen, models.mlp(10, hidden=()), drifting, rounds=2)


def test_sealed_arrays_pass_through_functions_and_cannot_be_read():
    sealed = seal({"x": jnp.arange(3.0)})
    passed = jax.jit(lambda values: values)(sealed)["x"]
    assert isinstance(passed, Sealed) and np.array_equal(passed.value, [0, 1, 2])
    for use in (lambda x: x + 1, lambda x: 2 * x, jnp.sum, lambda x: x[0], lambda x: x.shape, refuse_sealed):
        with pytest.raises(LookupError, match="reads a client's examples"):
            use(passed)


@pytest.mark.parametrize(
    "term",
    [
        objectives.cross_entropy(),
        objectives.focal(),
        objectives.margin(),
        objectives.margin(form="softmax_batch"),
        objectives.decorrelation(),
        objectives.l2_representation(),
    ],
    ids=lambda term: term.__name__,
)
def test_terms_that_are_no_mean_over_examples_are_marked(term):
    rng = np.random.default_rng(0)
    features, labels = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32), jnp.asarray([0, 2, 1, 1])
    whole = term(forward_pass(features, labels))
    single = [term(forward_pass(features[i][None], labels[i][None])) for i in range(4)]
    is_mean = bool(abs(whole - jnp.mean(jnp.stack(single))) < 1e-5 * abs(whole))
    compares = getattr(term, "compares_examples", lambda labels: False)
    assert is_mean != compares(np.zeros(1, np.int32))


@pytest.mark.slow
def test_a_resumed_run_repeats_batches_and_noise():
    whole, _ = run(private("scaffold"), rounds=4)
    half, _ = run(private("scaffold"), rounds=2)
    resumed, _ = run(private("scaffold"), rounds=2, change=lambda state: half)
    assert is_equal(whole, resumed)
