"""Low-rank adapters of different ranks, and of the clients' own: laws of HetLoRA and FedDPA."""

import jax
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import hetlora
from fedjax_het.client.local_updates import delayed, sgd
from fedjax_het.client.low_rank import client_ranks
from fedjax_het.errors import InputError
from fedjax_het.types import Context
from tests.golden.toy_leaves import own_models
from tests.harness import compose, difference, federation, run

pytestmark = pytest.mark.extended

KEY = make_key(0)
PRUNED = {"ranks": (1, 3, 2), "penalty": 1.0, "decay": 0.5}


def train(name, num_clients=5, rounds=2, **options):
    data = federation().data if num_clients > 1 else None
    if data is None:
        data = federation().data._replace(train=tree.take(federation().data.train, np.arange(1)))
    return run(compose(name, norm="none", num_clients=num_clients, options=options), rounds=rounds, data=data)[0]


@pytest.mark.slow
def test_hetlora_of_a_single_client_is_fedit():
    ours = train("hetlora", 1, ranks=(3,), alpha=6.0, decay=None)
    theirs = train("fedit", 1, rank=3, alpha=6.0)
    assert difference(ours.server.shared, theirs.server.shared) < 1e-6
    several = (train(name, **options) for name, options in (("hetlora", {"decay": None}), ("fedit", {})))
    assert difference(*(state.server.shared for state in several)) > 1e-4


@pytest.mark.slow
def test_clients_send_nothing_beyond_their_ranks():
    round = compose("hetlora", norm="none", options={"ranks": (1, 3, 2), "decay": None})
    state = round.init(KEY, federation().data)
    for _ in range(2):
        state, _, said = jax.jit(round.step_with_messages)(state, federation().data, KEY)
    received, updates = (tree.leaves_by_path(part) for part in (said.received.shared, said.uploads.update))
    ranks = np.asarray(client_ranks((1, 3, 2), np.arange(5)))
    assert ranks.tolist() == [1, 3, 2, 1, 3]
    for path in received:
        if path.endswith("lora_a"):
            sent = np.asarray(received[path] + updates[path])
            assert [np.flatnonzero(np.abs(a).sum(0)).max() + 1 for a in sent] == ranks.tolist()


def test_ranks_only_shrink_and_stay_above_zero():
    round = compose("hetlora", norm="none", options=PRUNED)
    state, ranks = round.init(KEY, federation().data), [np.asarray(client_ranks(PRUNED["ranks"], np.arange(5)))]
    step = jax.jit(round.step)
    for _ in range(4):
        state, _ = step(state, federation().data, KEY)
        ranks.append(np.minimum(ranks[0], state.clients.memory["rank"]))
    assert np.all(np.diff(ranks, axis=0) <= 0) and np.min(ranks) == 1
    assert np.sum(ranks[-1]) < np.sum(ranks[0])


@pytest.mark.slow
def test_the_penalty_has_no_gradient_as_long_as_products_are_zero():
    def run_steps(steps, penalty):
        options = PRUNED | {"penalty": penalty, "steps": steps}
        return run(compose("hetlora", norm="none", options=options), rounds=1)[0].server.shared

    assert difference(run_steps(1, 1.0), run_steps(1, 0.0)) == 0
    assert difference(run_steps(2, 1.0), run_steps(2, 0.0)) > 1e-6


def test_a_penalty_without_pruning_is_refused():
    with pytest.raises(InputError, match="penalty: it is of directions to prune, and decay=None prunes none"):
        hetlora(penalty=0.1, decay=None)


def test_the_mean_by_norms_needs_adapters():
    with pytest.raises(InputError, match="the model has no low-rank adapters"):
        run(compose("fedavg", change={"aggregator": hetlora().aggregator}), rounds=1)


@pytest.fixture(scope="module")
def dual():
    """(FedIT's state, FedDPA's states after one and three rounds), with examples in order."""
    options = {"weighting": "uniform", "shuffle": False}
    plain = run(compose("fedit", norm="none", options=options), rounds=3)[0]
    round = compose("feddpa", norm="none", options=options)
    return plain, *(run(round, rounds=rounds)[0] for rounds in (1, 3))


def test_the_shared_adapter_of_feddpa_is_that_of_fedit(dual):
    plain, _, after = dual
    assert difference(plain.server.shared["params"], after.server.shared["params"]) < 1e-6
    assert not any("local_a" in path or "local_b" in path for path in tree.paths(after.server.shared))
    assert {path.rpartition("/")[2] for path in tree.paths(after.clients.personal)} == {"local_a", "local_b"}


def test_own_adapters_are_trained_after_the_first_round(dual):
    _, first, after = (tree.leaves_by_path(state.clients.personal) for state in dual)
    moved = [path for path in first if path.endswith("local_b")]
    assert moved and not any(np.any(first[path]) for path in moved)
    for path in moved:
        assert np.all(np.any(np.asarray(after[path]), axis=(1, 2)))
    for path in after.keys() - set(moved):
        assert np.all(np.any(after[path] != first[path], axis=(1, 2)))


@pytest.mark.parametrize("mix", [0.0, 0.3])
def test_a_personal_model_of_feddpa_mixes_both_adapters(dual, mix):
    state = dual[2]
    round = compose("feddpa", norm="none", options={"mix": mix, "rank": 3, "alpha": 6.0, "num_references": 0})
    whole = own_models(round, state, federation().data)
    np.testing.assert_allclose(whole["adapter"]["scale"], 2 * (1 - mix), rtol=1e-6)
    np.testing.assert_allclose(whole["adapter"]["local_scale"], 2 * mix, rtol=1e-6)
    own = tree.partition_like(whole, state.clients.personal)[1]
    assert difference(own, state.clients.personal) == 0


@pytest.mark.slow
def test_a_delayed_update_takes_no_step_at_first():
    def train(update, rounds):
        return run(compose("fedavg", norm="none", change={"local_update": update}), rounds=rounds)[0].server.shared

    training = sgd(0.05, batch_size=8)
    start = train(delayed(training, 2), 0)
    assert difference(start, train(delayed(training, 2), 2)) == 0 < difference(start, train(delayed(training, 2), 3))
    assert difference(train(training, 1), train(delayed(training, 0), 1)) == 0


def test_each_input_determines_the_share_of_the_own_adapter(dual):
    """The mean cosine to the client's examples, in NumPy, and logits at the share of each input."""
    state, key = dual[2], make_key(3)
    round = compose("feddpa", norm="none", options={"rank": 3, "alpha": 6.0, "mix": 0.4, "num_references": 4})
    problem = round.problem.bind(state.server.frozen, state.server.base)
    inputs = problem.prepare(federation().examples.inputs[:6])
    whole = tree.take(own_models(round, state, federation().data), 1)

    def run_at(scale, local_scale, inputs=inputs):
        variables = {**whole, "adapter": {"scale": scale, "local_scale": local_scale}}
        context = Context(np.ones(len(inputs), np.float32), 0, key, False)
        features = problem.model.encode(variables, inputs, context)[0][0]
        return np.asarray(features), np.asarray(problem.model.classify(whole["params"], features))

    (features, _), (references, _) = run_at(0.0, 2.0), run_at(0.0, 2.0, whole["adapter"]["references"])
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (features, references)]
    similarity = (unit[0] @ unit[1].T).mean(axis=1)
    assert references.shape == (4, 8) and np.ptp(similarity) > 1e-3
    context = Context(np.ones(len(inputs), np.float32), 0, key, False)
    ours = problem.model.classify(whole["params"], problem.model.encode(whole, inputs, context)[0][0])
    for index, share in enumerate(0.4 * similarity):
        expected = run_at(2.0 * (1 - share), 2.0 * share)[1][index]
        np.testing.assert_allclose(ours[index], expected, rtol=1e-4, atol=1e-5)
    assert difference(run_at(2.0 * 0.6, 2.0 * 0.4)[1], ours) > 1e-5
