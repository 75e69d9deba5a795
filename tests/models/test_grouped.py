"""Networks of different architecture: laws, refusals, and the config."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het import models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.cli.configuration import build, settings
from fedjax_het.engine.parallel.layout import chunked, sharded
from fedjax_het.errors import InputError
from fedjax_het.types import Context
from tests.harness import IN_ORDER, compose, difference, federation, is_equal, run

NARROW, DEEP = models.mlp(3, hidden=(8,), norm="batch"), models.mlp(3, hidden=(6, 8))
TWO = models.grouped([NARROW, DEEP])


@pytest.mark.extended
def test_one_network_is_that_network():
    single, _ = run(compose("fedproto", network=models.grouped([NARROW])))
    alone, _ = run(compose("fedproto", network=NARROW))
    params = dict(single.clients.personal["params"])
    assert difference({**params.pop("group_0"), **params}, alone.clients.personal["params"]) < 2e-5


@pytest.mark.slow
def test_without_exchange_clients_train_as_in_a_federation_of_their_network():
    mixed, _ = run(compose("fedproto", network=TWO, options={"lam": 0.0}))
    for number, network in enumerate([NARROW, DEEP]):
        alone, _ = run(compose("fedproto", network=network, options={"lam": 0.0}))
        clients = np.arange(number, 5, 2)
        own = {**mixed.clients.personal["params"][f"group_{number}"]}
        own["classifier"] = mixed.clients.personal["params"]["classifier"]
        expected = alone.clients.personal["params"]
        assert difference(tree.take(own, clients), tree.take(expected, clients)) < 1e-5


@pytest.mark.parametrize(
    "options",
    [{"participation": IN_ORDER}, {"layout": chunked(1)}, {"layout": chunked(2)}, {"layout": sharded(3)}],
    ids=["drawn", "chunked(1)", "chunked(2)", "sharded(3)"],
)
@pytest.mark.extended
def test_groups_give_equal_results_however_they_are_mapped(options):
    expected, _ = run(compose("fedproto", network=TWO))
    state, _ = run(compose("fedproto", network=models.grouped([NARROW, DEEP], (0, 1, 0, 1, 0)), **options))
    assert difference(expected, state) < 1e-5


@pytest.mark.slow
def test_each_network_is_computed_for_its_own_clients_alone():
    def count_flops(**options) -> float:
        round = compose("fedproto", network=models.grouped([models.mlp(3, hidden=(64,)) for _ in range(4)]), **options)
        state = round.init(make_key(0), federation().data)
        step = jax.jit(round.step).lower(state, federation().data, make_key(0))
        return step.compile().cost_analysis()["flops"]

    assert count_flops() < 0.5 * count_flops(participation=IN_ORDER)


@pytest.mark.slow
def test_the_ensemble_of_the_groups_is_evaluated_also_when_states_are_on_the_host():
    algorithm = fh.algorithms.fedproto(learning_rate=0.3, batch_size=8)
    device, host = (
        fh.simulate(algorithm, TWO, federation(), rounds=2, client_states=states) for states in ("device", "host")
    )
    assert is_equal(device.evaluation, host.evaluation)
    server, clients = jax.tree.map(lambda x: np.asarray(x)[0], (device.state.server, device.state.clients))
    round = compose("fedproto", network=TWO)
    inputs, labels = (x[federation().test.index] for x in federation().examples[:2])
    context = Context(jnp.ones(len(labels)), jnp.int32(0), make_key(0), False)
    logits = []
    for number in range(2):
        own = jax.tree.map(lambda x, number=number: jnp.mean(x[number::2], axis=0), clients.personal)
        own = tree.merge(server.shared, own, models.select_network(number))
        features, _ = round.problem.model.encode(own, federation().prepare(inputs), context)
        logits.append(round.problem.model.classify(own["params"], features[0]))
    accuracy = np.mean(np.argmax(sum(logits), -1) == labels)
    assert device.mean_and_std()["test/accuracy"][0] == pytest.approx(accuracy)


def test_networks_that_cannot_be_grouped_are_refused():
    with pytest.raises(InputError, match="there are none"):
        models.grouped([])
    with pytest.raises(InputError, match="numbers of networks are 0 to 1"):
        models.grouped([NARROW, DEEP], assignment=(0, 1, 2))
    with pytest.raises(InputError, match=r"networks\.1: it needs features that are vectors"):
        jax.eval_shape(models.grouped([NARROW, models.unet(3)]).init, make_key(0), jnp.zeros((1, 16, 16, 1)))
    with pytest.raises(InputError, match=r"heads for \[3, 4\] classes"):
        jax.eval_shape(models.grouped([NARROW, models.mlp(4)]).init, make_key(0), jnp.zeros((1, 6, 6, 1)))


@pytest.mark.parametrize(
    ("name", "network", "message"),
    [
        ("fedavg", TWO, "different architecture cannot be averaged"),
        ("fml", TWO, "different architecture cannot be averaged"),
        ("fedproto", models.grouped([NARROW, DEEP], (0, 1)), "the networks of 2 clients, and there are 5"),
    ],
)
def test_rounds_that_would_average_different_networks_are_refused(name, network, message):
    with pytest.raises(InputError, match=message):
        compose(name, network=network).init(make_key(0), federation().data)


@pytest.mark.extended
def test_a_config_lists_the_networks():
    networks = ({"name": "mlp", "hidden": (8,)}, {"name": "lenet"})
    chosen, _ = settings.complete_settings({"model": {"name": "grouped", "networks": networks}})
    network = build.build_model(chosen["model"], 10)
    assert network.groups.size == 2
    params = network.init(make_key(0), jnp.zeros((1, 28, 28, 1)))["params"]
    assert params["group_0"]["dense_0"]["kernel"].shape == (784, 8) and "conv_0" in params["group_1"]


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("lenet", r"config\.model\.networks\.1: it must be a table, got 'lenet'"),
        ({"name": "lenett"}, r"config\.model\.networks\.1\.name is unknown: 'lenett'. Did you mean 'lenet'"),
        ({"name": "mlp", "depth": 3}, r"networks\.1\.depth is unknown"),
    ],
)
def test_a_wrong_network_of_a_config_is_refused(network, message):
    chosen, _ = settings.complete_settings({"model": {"name": "grouped", "networks": ({"name": "mlp"}, network)}})
    with pytest.raises(InputError, match=message):
        build.build_model(chosen["model"], 10)
