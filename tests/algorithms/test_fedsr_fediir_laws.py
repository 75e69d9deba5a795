"""Laws of FedSR and FedIIR with their main ideas switched off, and properties of their rounds."""

import functools

import jax
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.engine.evaluation.evaluate import evaluate_model
from fedjax_het.engine.round.program import Round
from fedjax_het.errors import InputError
from fedjax_het.sharing import personal
from fedjax_het.types import State, Variables
from tests.harness import compose, difference, federation, is_equal, run

pytestmark = pytest.mark.extended


@functools.cache
def compose_cached(name: str, **options) -> Round:
    """A round that is compiled once for equal options."""
    return compose(name, norm="none", options=options)


def initial_state(name: str, **options) -> State:
    return compose_cached(name, **options).init(make_key(0), federation().data)


def train(name: str, rounds: int = 2, **options) -> State:
    return run(compose_cached(name, **options), rounds=rounds)[0]


def train_shared(name: str, rounds: int = 2, **options) -> Variables:
    return train(name, rounds, **options).server.shared


@pytest.fixture(scope="module")
def fedavg():
    return train_shared("fedavg", weighting="uniform")


@pytest.mark.slow
def test_fediir_without_penalty_is_fedavg_to_the_bit(fedavg):
    assert is_equal(train_shared("fediir", gamma=0.0), fedavg)
    assert difference(train_shared("fediir", gamma=0.1), fedavg) > 1e-4


def test_fedl2r_without_penalty_is_fedavg_to_the_bit(fedavg):
    assert is_equal(train_shared("fedl2r", l2r=0.0), fedavg)
    assert difference(train_shared("fedl2r", l2r=0.1), fedavg) > 1e-4


def test_the_first_round_of_fediir_with_one_batch_and_no_decay_is_fedavg():
    """The global gradient is then the gradient of the batch, so the penalty of the first step is 0."""
    alone = federation(num_clients=1).data
    options = {"batch_size": 64, "shuffle": False}
    ours, other = (
        run(compose(name, norm="none", num_clients=1, options={**options, **more}), rounds=1, data=alone)[0]
        for name, more in (("fediir", {"gamma": 1.0, "decay": 0.0}), ("fedavg", {}))
    )
    assert difference(ours.server.shared, other.server.shared) < 1e-6


def test_fediirs_average_is_the_gradient_at_the_received_model():
    """Without memory and weighted by examples: the gradient of the global loss, as in a full-batch step of FedAvg."""
    state = train("fediir", rounds=1, decay=0.0, per="sample", gamma=0.1)
    full = {"batch_size": 64, "weighting": "samples", "learning_rate": 1.0}
    before, after = (
        state.server.shared["params"]["classifier"] for state in (initial_state("fedavg"), train("fedavg", 1, **full))
    )
    assert difference(tree.subtract(before, after), state.server.published["mean_gradient"]["mean"]) < 1e-4


def test_the_first_debiased_round_of_fediir_equals_one_without_decay():
    options = {"gamma": 0.1, "per": "sample"}
    debiased, forgetful = (
        train_shared("fediir", rounds=1, **options, **more) for more in ({"debias": True}, {"decay": 0.0})
    )
    assert difference(debiased, forgetful) < 1e-5
    assert difference(debiased, train_shared("fediir", rounds=1, gamma=0.1)) > 1e-6


def test_fediir_refuses_a_personal_head():
    round = compose("fediir", norm="none", change={"sharing": personal("params/classifier/*")})
    with pytest.raises(InputError, match="Share the head"):
        round.init(make_key(0), federation().data)


def test_fedsrs_reference_is_personal_and_learned():
    state = train("fedsr")
    reference = state.clients.personal["params"]["reference"]
    assert not any("reference" in path for path in tree.paths(state.server.shared))
    assert all(np.ptp(leaf, axis=0).max() > 0 for leaf in jax.tree.leaves(reference))


def test_fedsrs_reference_can_be_shared_or_left_out():
    assert "reference" in initial_state("fedsr", share_reference=True).server.shared["params"]
    bare = initial_state("fedsr", cmi=0.0)
    assert "reference" not in bare.server.shared["params"] and bare.clients.personal == {}


def test_the_number_of_evaluation_samples_does_not_change_fedsrs_training():
    assert is_equal(train_shared("fedsr", num_samples=0), train_shared("fedsr"))


@pytest.mark.slow
def test_fedsr_keeps_its_optimizer_state_between_rounds():
    kept, reset = (train_shared("fedsr", momentum=0.9, reset_optimizer=reset) for reset in (False, True))
    assert difference(kept, reset) > 1e-4


def test_the_evaluation_of_fedsr_is_deterministic_with_nonnegative_losses():
    everyone = federation()
    problem, variables = compose_cached("fedsr").problem, initial_state("fedsr").server.shared
    first, again = (evaluate_model(problem, variables, everyone) for _ in range(2))
    assert is_equal(first, again)
    assert np.all(np.asarray(first.clients.loss) >= 0) and np.any(np.asarray(first.clients.loss) > 0)


@pytest.mark.slow
def test_fedsr_trains_with_a_squared_norm_and_another_width():
    squared = train_shared("fedsr", l2r=0.1, l2r_power=2, num_features=12, learn_scale=False)
    assert squared["params"]["classifier"]["kernel"].shape == (12, 3)
    assert bool(tree.is_finite(squared))


@pytest.mark.parametrize(("name", "weights"), [("fediir", ("gamma", "decay")), ("fedsr", ("l2r", "cmi"))])
def test_the_weights_of_the_penalties_can_be_traced(name, weights):
    data = jax.tree.map(jax.numpy.asarray, federation().data)

    def after_one(first, second):
        round = compose(name, norm="none", options=dict(zip(weights, (first, second), strict=True)))
        return round.step(round.init(make_key(0), data), data, make_key(0))[0].server.shared

    assert jax.tree.structure(jax.eval_shape(after_one, 0.1, 0.5)) == jax.tree.structure(
        initial_state(name).server.shared
    )
