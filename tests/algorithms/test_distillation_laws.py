"""Laws of distillation: FedDF, FedMD, FedDistill, FML, FedKD, FedTGP and FedGen."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedkd
from fedjax_het.engine.round.program import make_round
from fedjax_het.errors import InputError
from fedjax_het.models import mlp, with_empty_parameter
from fedjax_het.server.aggregators._ensemble import ensemble_losses
from fedjax_het.server.prototypes import min_gap, prototype_loss
from fedjax_het.sharing import personal, whole_model
from fedjax_het.types import Rows
from tests.harness import (
    TINY,
    algorithm,
    compose,
    difference,
    federation,
    federation_of,
    is_equal,
    map_rows,
    run,
    train,
)
from tests.views import client_view

pytestmark = pytest.mark.extended
KEY = make_key(0)
ALONE = {"sharing": whole_model, "adapt": with_empty_parameter}


def own_models(name: str, **options) -> dict:
    """The clients' parameters after two rounds, without those of no network."""
    state, _ = run(compose(name, norm="none", options=options), rounds=2)
    return {layer: leaves for layer, leaves in state.clients.personal["params"].items() if layer != "match"}


def trained_alone() -> dict:
    state, _ = run(compose("fedavg", norm="none", change=ALONE), rounds=2)
    return state.clients.personal["params"]


@pytest.mark.parametrize(
    ("name", "options"), [("feddistill", {"weight": 0.0}), ("fedtgp", {"lam": 0.0}), ("fml", {"alpha": 1.0})]
)
def test_without_their_terms_clients_train_alone(name, options):
    assert difference(trained_alone(), own_models(name, **options)) < 1e-6


def test_fmls_meme_is_fedavgs_model_if_both_learn_from_labels_alone():
    state, _ = run(compose("fml", norm="none", options={"alpha": 1.0, "beta": 1.0}), rounds=3)
    initial = compose("fml", norm="none").init(KEY, federation().data).server.shared["params"]["common"]
    uniform = compose("fedavg", norm="none", options={"weighting": "uniform"})

    def start(begun):
        return begun._replace(server=begun.server._replace(shared={"params": initial}))

    other, _ = run(uniform, rounds=3, change=start)
    assert difference(other.server.shared["params"], state.server.shared["params"]["common"]) < 1e-5


def test_a_pair_is_evaluated_as_its_common_network_by_the_server_and_as_its_own_by_clients():
    network = mlp(3, hidden=(8,), norm="none")
    round = make_round(algorithm("fml"), network, 5, prepare=federation().prepare)
    state = round.init(KEY, federation().data)
    batch = round.problem.public_batch(federation_of("feddf").examples.public, 0, 2)
    own = tree.merge(state.server.shared, jax.tree.map(lambda leaf: leaf[0], state.clients.personal))
    marked = tree.merge(own, round.problem.evaluated(state.server))
    outputs, common = (
        round.problem.run(variables, batch, jnp.array(0), KEY, is_training=False)[0] for variables in (own, marked)
    )
    np.testing.assert_allclose(common.logits, outputs.extras["common"]["logits"], rtol=1e-6)
    assert difference(outputs.logits, common.logits) > 0.1
    kept = round.algorithm.personalize(round.problem, client_view(marked), KEY)
    assert is_equal(kept, own)


@pytest.mark.slow
def test_a_common_network_may_have_another_architecture():
    chosen = fedkd(student=mlp(3, hidden=(), norm="none"), **TINY)
    round = make_round(chosen, mlp(3, hidden=(8,), norm="batch"), 5, prepare=federation().prepare)
    state, _ = run(round, rounds=2)
    assert tree.paths(state.server.shared) == ["params/common/classifier/bias", "params/common/classifier/kernel"]
    assert bool(tree.is_finite(state))


@pytest.mark.slow
def test_fedkd_sends_whole_matrices_with_all_energy_and_small_ranks_with_little():
    whole, _ = run(compose("fedkd", norm="none", options={"energy": 1.0, "last_energy": 1.0}))
    plain, _ = run(compose("fedkd", norm="none", change={"uplink": ()}))
    assert difference(plain.server.shared, whole.server.shared) < 1e-4
    round = compose("fedkd", norm="none", options={"energy": 0.0, "last_energy": 0.0})
    state, data = round.init(KEY, federation().data), federation().data
    after, _, said = jax.jit(round.step_with_messages)(state, data, KEY)
    (kernel,) = [x for x in jax.tree.leaves(said.uploads.update["params"]["common"]["dense_0"]) if x.ndim == 3]
    assert np.all(np.linalg.matrix_rank(np.asarray(kernel), rtol=1e-4) == 1)
    moved = tree.subtract(after.server.shared, state.server.shared)["params"]["common"]["dense_0"]["kernel"]
    assert np.linalg.matrix_rank(np.asarray(moved), rtol=1e-4) == 1


@pytest.mark.slow
def test_fedgens_first_round_is_fedavg_and_its_generator_changes():
    round = compose("fedgen", norm="none")
    state = round.init(KEY, federation().data)
    first, _ = run(round, rounds=1)
    assert difference(train("fedavg", rounds=1)["params"], first.server.shared["params"]) < 1e-6
    assert not np.any(state.server.base["generator"]["labels"]) and np.all(
        first.server.base["generator"]["labels"] == 1
    )
    later, _ = run(round, rounds=2)
    assert difference(train("fedavg", rounds=2)["params"], later.server.shared["params"]) > 1e-3
    networks = (x.server.base["generator"]["network"] for x in (state, first))
    assert difference(*networks) > 1e-4


def test_fedgen_needs_a_shared_head():
    with pytest.raises(InputError, match="a summary has the shape of params/classifier"):
        run(compose("fedgen", norm="none", change={"sharing": personal("params/classifier/*")}), rounds=1)


@pytest.mark.slow
def test_fedtgp_sends_prototypes_and_keeps_the_network_that_makes_them():
    round = compose("fedtgp", norm="none")
    state, data = round.init(KEY, federation().data), federation().data
    after, _, _ = jax.jit(round.step_with_messages)(state, data, KEY)
    _, _, said = jax.jit(round.step_with_messages)(after, data, KEY)
    assert said.received.published["prototypes"].keys() == {"means", "is_known"}
    assert after.server.published["prototypes"].keys() == {"means", "is_known", "network", "is_drawn"}
    assert np.all(said.received.published["prototypes"]["is_known"])
    other, _ = run(compose("fedtgp", norm="none"), rounds=1, seed=1)
    assert not is_equal(*(x.server.published["prototypes"]["network"] for x in (after, other)))


def test_the_margin_of_a_single_class_is_its_bound_and_equal_points_have_finite_gradients():
    points = jnp.ones((2, 3, 4))
    is_there = jnp.zeros((2, 3), bool).at[:, 1].set(True)
    assert np.all(np.isinf(min_gap(points, is_there)))
    network = {"embedding": jnp.zeros((3, 4)), "middle": {"kernel": jnp.eye(4), "bias": jnp.zeros(4)}}
    network["output"] = {"kernel": jnp.eye(4), "bias": jnp.ones(4)}
    gradient = jax.grad(prototype_loss)(network, jnp.ones((2, 4)), jnp.array([0, 1]), jnp.ones(2), 1.0)
    assert bool(tree.is_finite(gradient))


@pytest.mark.slow
# ---- public examples -------------------------------------------------------------------------------------------------
def test_feddf_without_steps_or_with_rate_zero_is_uniform_fedavg():
    uniform = train("fedavg", weighting="uniform")
    assert difference(uniform, train("feddf", distillation_steps=0)) < 1e-6
    assert difference(uniform, train("feddf", distillation_learning_rate=0.0)) < 1e-6
    assert difference(uniform, train("feddf")) > 1e-5


@pytest.mark.parametrize("scheme", ["logits", "probabilities", "losses"])
def test_an_ensemble_of_the_student_has_no_loss(scheme):
    logits, weights = jax.random.normal(KEY, (6, 3)), jnp.array([0.5, 0.5, 0.0])
    stack = jnp.stack([logits, logits, logits + 7 * jnp.arange(3)])
    np.testing.assert_allclose(ensemble_losses(stack, weights, logits, scheme), np.zeros(6), atol=1e-6)
    shifted = stack.at[0].add(3.0)
    np.testing.assert_allclose(ensemble_losses(shifted, weights, logits, "logits"), np.zeros(6), atol=1e-6)


@pytest.mark.slow
def test_a_single_client_of_fedmd_has_nothing_to_digest():
    """The consensus is its own logits; without a norm, the squared distance has gradient 0."""
    data = federation_of("fedmd").data
    alone = map_rows(data, lambda rows: Rows(rows.index[-1:], rows.count[-1:]))
    ends = []
    for options in ({"digest_learning_rate": 0.0}, {}, {"distance": "absolute"}):
        round = compose("fedmd", norm="none", num_clients=1, options={"distance": "squared", **options})
        ends.append(run(round, rounds=2, data=alone)[0].clients.personal["params"])
    assert difference(ends[0], ends[1]) < 1e-5
    several = [run(compose("fedmd", norm="none", options=x))[0] for x in ({"digest_learning_rate": 0.0}, {})]
    assert difference(*(x.clients.personal["params"] for x in several)) > 1e-3


def test_the_order_of_public_examples_is_new_in_every_round_and_the_same_for_server_and_clients():
    seen = {}
    chosen = algorithm("feddf", distillation_steps=0)
    plain = chosen.aggregator

    def update(problem, state, view):
        aggregate, state = plain.update(problem, state, view)
        keep = lambda order, number: seen.setdefault(int(number), np.asarray(order))  # noqa: E731
        jax.debug.callback(keep, view.public.order, view.received.round)
        return aggregate, state

    order = lambda problem, view: view.data.examples.public.order  # noqa: E731
    chosen = replace(chosen, aggregator=plain._replace(update=update), reports={"order": order})
    round = make_round(chosen, mlp(3, hidden=(8,), norm="none"), 5, prepare=federation().prepare)
    data = federation_of("feddf").data
    state, step = round.init(KEY, data), jax.jit(round.step_with_messages)
    for number in range(2):
        state, _, said = step(state, data, KEY)
        jax.effects_barrier()
        reported = np.asarray(said.uploads.reports["order"])
        assert all(np.array_equal(row, seen[number]) for row in reported)
        assert np.array_equal(np.sort(seen[number]), np.arange(len(seen[number])))
    assert not np.array_equal(seen[0], seen[1])
