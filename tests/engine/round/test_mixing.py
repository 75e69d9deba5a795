"""Rounds without a server: laws of mixing, in every layout."""

from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.benchmarks.collectives import list_collectives
from fedjax_het import topologies, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import choco, dfedsam, dpsgd, dsgt, fedavg, fedsam, sgp
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine import Simulation
from fedjax_het.engine.parallel.layout import AXIS, chunked, sharded
from fedjax_het.engine.round.participation import Participation, bernoulli, full
from fedjax_het.engine.round.program import make_round
from fedjax_het.errors import InputError
from fedjax_het.mixing import gossip
from fedjax_het.topologies import TOPOLOGIES, Topology
from fedjax_het.uplink import qsgd, top_k
from tests.harness import ROUNDING, difference, federation, network_of, run

TRAINING = {"learning_rate": 0.1, "batch_size": 4, "epochs": 1}
EMPTY = Topology(lambda n, number, key: jnp.arange(n)[:, None])


def compose(algorithm, **options):
    return make_round(algorithm, network_of("fedavg"), 5, prepare=federation().prepare, **options)


def train(algorithm, **options):
    return run(compose(algorithm, **options), rounds=3)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("without", "alike"),
    [(dpsgd("complete", **TRAINING), fedavg(weighting="uniform", **TRAINING)),
     (dfedsam("complete", 0.1, **TRAINING), fedsam(0.1, weighting="uniform", **TRAINING))],
    ids=["fedavg", "fedsam"],
)  # fmt: skip
def test_on_the_complete_graph_all_clients_hold_the_model_of_the_server(without, alike):
    state, expected = train(without), train(alike).server.shared
    assert difference(state.server.shared, expected) < ROUNDING
    everyone = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (5, *leaf.shape)), expected)
    assert difference(state.clients.personal, everyone) < ROUNDING


@pytest.mark.slow
def test_without_edges_clients_train_alone():
    apart, state = train(dpsgd(EMPTY, **TRAINING)), train(dpsgd("ring", **TRAINING))
    assert difference(apart.clients.personal, state.clients.personal) > 1e-3
    fourth = Participation(lambda n: 1, lambda key, n, number: (jnp.array([3]), jnp.ones(1, bool)))
    alone = train(fedavg(**TRAINING), participation=fourth)
    assert difference(jax.tree.map(lambda leaf: leaf[3], apart.clients.personal), alone.server.shared) < ROUNDING


@pytest.mark.extended
@pytest.mark.parametrize("order", ["adapt_then_combine", "combine_then_adapt", "adapt_while_combine"])
@pytest.mark.parametrize("layout", [chunked(1), chunked(2), sharded(3)], ids=str)
def test_layouts_give_equal_results(layout, order):
    rule = dpsgd("ring", order, **TRAINING)
    assert difference(train(rule), train(rule, layout=layout)) < ROUNDING


@pytest.mark.slow
def test_rows_follow_the_ids_of_clients():
    order = jnp.array([3, 0, 4, 1, 2])
    shuffled = Participation(lambda n: 5, lambda key, n, number: (order, jnp.ones(5, bool)))
    for topology in ("ring", "star", "random_matching"):
        rule = dpsgd(topology, **TRAINING)
        assert difference(train(rule), train(rule, participation=shuffled)) < ROUNDING


@pytest.mark.every_case
@pytest.mark.extended
@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("size", [1, 2, 5, 8, 12])
def test_matrices_have_rows_and_columns_of_sum_one_and_no_negative_entry(name, size):
    matrix = np.asarray(jax.jit(lambda: TOPOLOGIES[name]().matrix(size, 3))(), float)
    np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(matrix.sum(0), 1, atol=1e-6)
    assert matrix.min() >= 0


@pytest.mark.parametrize("name", ["ring", "torus", "exponential", "complete"])
def test_mixing_keeps_the_mean_and_contracts_by_the_gap(name):
    topology, models = TOPOLOGIES[name](), jax.random.normal(make_key(0), (12, 7))
    mixed = topology.connect(12, 0, make_key(0)).mix(models)
    np.testing.assert_allclose(mixed.mean(0), models.mean(0), atol=1e-6)
    distance = lambda rows: np.linalg.norm(np.asarray(rows - rows.mean(0)))  # noqa: E731
    gap = topologies.spectral_gap(np.asarray(topology.matrix(12)))
    assert 0 < gap <= 1 + 1e-6 and distance(mixed) <= (1 - gap) * distance(models) + 1e-5


@pytest.mark.slow
def test_a_cohort_is_a_graph_without_the_others():
    cohort = Participation(lambda n: 3, lambda key, n, number: (jnp.array([4, 0, 2]), jnp.ones(3, bool)))
    few = Participation(lambda n: 5, lambda key, n, number: (jnp.arange(5), jnp.array([1, 0, 1, 0, 1], bool)))
    rule = dpsgd("ring", **TRAINING)
    assert difference(train(rule, participation=cohort), train(rule, participation=few)) < ROUNDING


@pytest.mark.extended
def test_absent_clients_keep_their_model_and_the_mean_is_of_all_clients():
    state = train(dpsgd("ring", **TRAINING), participation=bernoulli(0.5, among=full()))
    mean = jax.tree.map(lambda leaf: leaf.mean(0), state.clients.personal)
    assert difference(state.server.shared, mean) < ROUNDING
    nobody = train(dpsgd("ring", **TRAINING), participation=bernoulli(1e-30, among=full()))
    start = compose(dpsgd("ring", **TRAINING)).init(make_key(0), federation().data)
    assert difference(nobody.clients.personal, start.clients.personal) == 0


@pytest.mark.slow
def test_the_consensus_distance_is_that_of_the_models_after_the_round():
    chosen = {"consensus": DIAGNOSTICS["consensus"]}
    built = Simulation(dpsgd("ring", **TRAINING), network_of("fedavg"), federation(), rounds=2, diagnostics=chosen)
    before, _ = built.advance(built.start(), 1)
    found = built.diagnose(before)["consensus"]["distance"][0]
    after, _ = built.advance(before, 1)
    leaves = jax.tree.leaves(after.clients.personal["params"])
    rows = np.concatenate([np.asarray(leaf[0], float).reshape(5, -1) for leaf in leaves], axis=1)
    assert found == pytest.approx(np.sqrt(((rows - rows.mean(0)) ** 2).sum(1).mean()), rel=1e-5)
    with pytest.raises(InputError, match="consensus: clients keep no model of their own"):
        Simulation(fedavg(**TRAINING), network_of("fedavg"), federation(), rounds=1, diagnostics=chosen)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"aggregator": fedavg(weighting="samples").aggregator}, {}, "aggregator: without a server"),
        ({"survey": {"a": lambda problem, view: jnp.zeros(())}}, {}, "a survey or a published value needs a server"),
    ],
)
def test_rounds_that_need_a_server_are_refused(change, options, message):
    with pytest.raises(InputError, match=message):
        compose(replace(dpsgd("ring", **TRAINING), **change), **options)


@pytest.mark.parametrize(
    ("name", "expected"), [("ring", 2), ("torus", 4), ("exponential", 4), ("star", 22 / 12), ("complete", 11)]
)
def test_models_sent_are_counted(name, expected):
    assert gossip(TOPOLOGIES[name](), num_mixings=2).count_messages(12) == pytest.approx(2 * expected)


def test_a_given_graph_is_checked():
    edges = np.triu(np.ones((4, 4), bool))
    with pytest.raises(InputError, match=r"not symmetric. Use weights='uniform'"):
        topologies.from_matrix(edges)
    with pytest.raises(InputError, match=r"shape \(3, 4\), expected \[clients, clients\]"):
        topologies.from_matrix(edges[:3])
    with pytest.raises(InputError, match="the matrix is for 4 clients, and there are 5"):
        topologies.from_matrix(edges, "uniform").matrix(5)


# ---- CHOCO, gradient tracking and push-sum ---------------------------------------------------------------------------
DIRECTED = topologies.from_matrix(np.eye(5, k=1) + np.eye(5, k=-4) + np.eye(5, k=2), "uniform")
ONE_STEP = {"learning_rate": 0.1, "batch_size": 4}
COMPRESSED = replace(choco("ring", 0.3, **TRAINING), uplink=(top_k(0.2, feedback="estimates"),))


def mean_of(rows):
    return jax.tree.map(lambda leaf: leaf.mean(0), rows)


@pytest.mark.extended
@pytest.mark.parametrize("alike", [choco("ring", **TRAINING), sgp("ring", **TRAINING)], ids=["choco", "sgp"])
def test_uncompressed_estimates_and_undirected_graphs_are_dpsgd(alike):
    state, expected = train(alike), train(dpsgd("ring", **TRAINING))
    assert difference(state.clients.personal, expected.clients.personal) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("stage", [top_k(0.05), qsgd(2, feedback="estimates")], ids=["top_k", "qsgd"])
@pytest.mark.parametrize("order", ["compress_first", "mix_first"])
def test_compressed_exchanges_keep_the_mean(order, stage):
    rule = replace(choco("ring", 0.2, order, **TRAINING), uplink=(stage,))
    alone = compose(replace(rule, mixing=dpsgd(EMPTY).mixing, uplink=()))
    before = train(rule)
    plain = before._replace(server=before.server._replace(uplink=()))
    trained, _ = run(alone, rounds=1, change=lambda _: plain)
    mixed, _ = run(compose(rule), rounds=1, change=lambda _: before)
    assert difference(mean_of(mixed.clients.personal), mean_of(trained.clients.personal)) < ROUNDING
    assert difference(mixed.clients.personal, trained.clients.personal) > 1e-4


@pytest.mark.extended
@pytest.mark.parametrize("variant", ["dsgt", "diging", "atc"])
def test_corrections_of_gradients_have_mean_zero(variant):
    """The mean of y is the mean of g; also if clients are absent."""
    state = train(dsgt("ring", variant, **ONE_STEP), participation=bernoulli(0.6, among=full()))
    corrections = state.clients.memory["tracking"]
    assert tree.norm(corrections) > 1e-2
    for leaf in jax.tree.leaves(corrections):
        np.testing.assert_allclose(leaf.sum(0), 0, atol=1e-6)


@pytest.mark.extended
def test_weights_of_push_sum_keep_their_sum():
    state = train(sgp(DIRECTED, **TRAINING), participation=bernoulli(0.6, among=full()))
    weight = np.asarray(state.clients.memory["weight"])
    assert weight.sum() == pytest.approx(5, rel=1e-6) and np.ptp(weight) > 1e-2


@pytest.mark.extended
@pytest.mark.parametrize("layout", [chunked(2), sharded(3)], ids=str)
@pytest.mark.parametrize("rule", [COMPRESSED, dsgt(**ONE_STEP), sgp(DIRECTED, momentum=0.5, **TRAINING)],
                         ids=["choco", "dsgt", "sgp"])  # fmt: skip
def test_layouts_give_equal_results_with_memories(rule, layout):
    assert difference(train(rule), train(rule, layout=layout)) < ROUNDING


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (sgp(topologies.from_matrix(np.eye(5, k=1), "uniform")), "does not reach all others"),
        (dpsgd(topologies.from_matrix(np.ones((5, 5)), "out_degree")), "only push-sum"),
        (replace(dpsgd(), mixing=choco().mixing), r"it exchanges memory\['estimate'\]"),
        (replace(choco(), uplink=(top_k(feedback="classic"),)), "^feedback: the estimates of this algorithm"),
        (replace(dpsgd(), uplink=(top_k(feedback="estimates"),)), "^feedback: 'estimates' needs an algorithm"),
        (replace(dpsgd(), uplink=(top_k(feedback="ef21"),)), "acts at the server, and there is none"),
    ],
)
def test_exchanges_that_do_not_fit_are_refused(algorithm, message):
    with pytest.raises(InputError, match=message):
        compose(algorithm)


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (dsgt, {"steps": 2}, "one step per round"),
        (dsgt, {"epochs": 1}, "one step per round"),
        (dsgt, {"momentum": 0.9}, "needs plain SGD"),
        (choco, {"order": "mix_first", "start": "zeros"}, "estimates start at the models"),
        (sgp, {"topology": EMPTY._replace(weights=lambda number: jnp.eye(5))}, "push-sum determines the weights"),
    ],
)
def test_settings_that_do_not_fit_are_refused(factory, options, message):
    with pytest.raises(InputError, match=message):
        factory(**options)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["ring", "exponential"])
def test_several_devices_exchange_rows_of_neighbours_alone(name):
    """No device gathers the models of all clients."""
    round = make_round(
        dpsgd(name, **TRAINING), network_of("fedavg"), 8, prepare=federation(8).prepare, layout=sharded(4)
    )
    data = federation(8).data
    state = jax.eval_shape(round.init, make_key(0), data)
    rows = jax.tree.map(lambda leaf: NamedSharding(sharded(4).mesh, P(AXIS)), state.clients)
    shardings = jax.tree.map(lambda leaf: sharded(4).sharding, state)._replace(clients=rows)
    step = jax.jit(round.step, in_shardings=(shardings, None, None), out_shardings=(shardings, None))
    text = step.lower(state, data, make_key(0)).compile().as_text()
    size = tree.num_bytes(state.server.shared)
    found = Counter()
    for kind, num_bytes in list_collectives(text):
        found[kind] += num_bytes / size
    assert found["all-gather"] + found["all-to-all"] < 0.2
    assert 1.5 < found["collective-permute"] < 8
