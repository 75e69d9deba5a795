"""Leaves that clients do not train: one copy of each, without gradient, update or traffic."""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from fedjax_het import Checkpoints, Simulation, models, sharing, simulate, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Aggregator
from fedjax_het.engine.parallel.layout import chunked, sharded, vmapped
from fedjax_het.errors import InputError
from fedjax_het.types import Aggregate, Context
from tests.harness import algorithm, difference, federation, model

BODY, HEAD = "params/dense_0/*", "params/classifier/*"
OTHERS = ("fedrd", "harmofl", "fedmgc", "fedbn")
REPRESENTATIVE = (
    "fedavg",
    "scaffold",
    "fedld",
    "ditto",
    *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS),
)


def run(name="fedavg", network=None, *, rounds=3, change=None, **options):
    built = replace(algorithm(name), **(change or {}))
    network = network or models.freeze(BODY)(model())
    return simulate(built, network, federation(), rounds=rounds, evaluate_every=rounds, cohort_size=3, **options)


def frozen_at_start(network, name="fedavg", **options):
    simulation = Simulation(algorithm(name), network, federation(), rounds=1, cohort_size=3, **options)
    return jax.device_get(simulation.start().server.frozen)


@pytest.mark.slow
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_frozen_leaves_stay_as_they_are(name):
    network = models.freeze(BODY)(model())
    decay = {} if name == "scaffold" else {"weight_decay": 0.1}
    state = run(name, network, change={"local_update": algorithm(name, **decay).local_update}).state
    assert set(tree.paths(state.server.frozen)) == {"params/dense_0/kernel", "params/dense_0/bias"}
    assert jax.tree.all(jax.tree.map(np.array_equal, frozen_at_start(network, name), state.server.frozen))
    assert not any("dense_0" in path for path in tree.describe_leaves((state.server.shared, state.clients)))


@pytest.mark.extended
def test_freezing_all_but_the_head_equals_training_the_head_alone():
    masked = run(network=model("none"), change={"local_update": algorithm("fedavg", only=HEAD).local_update})
    frozen = run(network=models.train_only(HEAD)(model("none")))
    trained = tree.partition_like(masked.state.server.shared, frozen.state.server.shared)[1]
    assert difference(trained, frozen.state.server.shared) < 1e-6
    assert difference(masked.evaluation, frozen.evaluation) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"layout": chunked(2)}, {"layout": sharded(2)}, {"client_states": "host"}], ids=str
)
def test_layouts_and_streamed_states_give_the_same_results(options):
    network = models.lora(2, targets="dense_0")(model())
    plain, other = (run("scaffold", network, **kwargs) for kwargs in ({"layout": chunked(1)}, options))
    assert difference(plain.state.server, other.state.server) < 1e-5


@pytest.mark.extended
def test_frozen_kernels_have_no_client_axis_and_no_gradient():
    def lowered(network):
        simulation = Simulation(algorithm("fedavg"), network, federation(), rounds=1, layout=vmapped)
        return (
            simulation.executor.programs.round()
            .function.lower(*simulation.executor.programs.round().arguments)
            .as_text()
        )

    client_stack = r"tensor<5x36x8xf32>"
    gradient = r"(dot_general|narrow_kernel_gradient).*-> tensor<5x(36x8|8x36)xf32>"
    trained, frozen = lowered(model("none")), lowered(models.freeze(BODY)(model("none")))
    assert re.search(client_stack, trained) and re.search(gradient, trained)
    assert not re.search(client_stack, frozen) and not re.search(gradient, frozen)
    assert "tensor<36x8xf32>" in frozen


@pytest.mark.extended
def test_a_hundred_clients_hold_one_copy_of_frozen_leaves():
    wide = models.lora(2)(models.mlp(num_classes=3, hidden=(1024, 1024)))

    def peak(num_clients, layout):
        simulation = Simulation(algorithm("fedavg"), wide, federation(num_clients), rounds=1, layout=layout)
        return simulation.cost.peak_bytes

    assert peak(100, vmapped) < 10 * 4 * 1024 * 1024 < 100 * peak(1, vmapped)
    assert peak(100, chunked(1)) < 2 * peak(1, chunked(1))


def test_traffic_and_parameters_count_trained_leaves_only():
    network = models.train_only(HEAD)(model("none"))
    cost = Simulation(algorithm("fedavg"), network, federation(), rounds=1).cost
    assert (cost.num_parameters, cost.num_frozen) == (8 * 3 + 3, 36 * 8 + 8)
    assert (cost.bytes_down, cost.bytes_up) == (4 * 27 + 4, 4 * 27 + 8)


@pytest.mark.extended
def test_checkpoints_hold_frozen_leaves_once_and_find_damage(tmp_path):
    network = models.freeze(BODY)(model())
    simulation = Simulation(algorithm("fedavg"), network, federation(), rounds=4, evaluate_every=2)
    checkpoints, state = Checkpoints(tmp_path, "run"), simulation.start()
    for stop in (2, 4):
        state, _ = simulation.advance(state, 2)
        checkpoints.save(stop, state)
    files = [file.name for file in tmp_path.rglob("*") if file.is_file()]
    assert files.count("frozen.safetensors") == 1
    later = Checkpoints(tmp_path, "run")
    begun = later.restore(simulation.start(), 2)
    resumed, _ = simulation.advance(begun, 2)
    assert jax.tree.all(jax.tree.map(np.array_equal, resumed, state))
    content = bytearray((tmp_path / "frozen.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "frozen.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"the checksum of frozen\.safetensors does not match"):
        later.restore(simulation.start())


@pytest.mark.parametrize("as_attribute", [False, True])
def test_frozen_norms_and_dropout_compute_as_in_evaluation(as_attribute):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train=False):
            x = nn.Dense(8, name="body")(x.reshape(len(x), -1))
            given = {"use_running_average": not train}
            norm = nn.BatchNorm(name="norm", **(given if as_attribute else {}))
            x = nn.Dropout(0.5, deterministic=not train)(norm(x, **({} if as_attribute else given)))
            return nn.Dense(3, name="classifier")(x)

    plain, inputs = models.from_flax(Net()), jnp.ones((4, 6)) * jnp.arange(4.0)[:, None]
    network = models.freeze(("params/body/*", "*/norm/*"))(plain)
    variables = plain.init(make_key(0), inputs)
    context = Context(jnp.ones(4), jnp.int32(0), make_key(1), True)
    (trained, _), statistics = network.encode(variables, inputs, context)
    (evaluated, _), _ = plain.encode(variables, inputs, context._replace(is_training=False))
    (changed, _), _ = plain.encode(variables, inputs, context)
    assert not np.allclose(changed, evaluated)
    assert jax.tree.all(jax.tree.map(np.array_equal, statistics["batch_stats"], variables["batch_stats"]))
    kept = np.isclose(trained, evaluated * 2) | (np.asarray(trained) == 0)  # the dropout is in a part that is trained
    assert kept.all() and (np.asarray(trained) == 0).any()


@pytest.mark.slow
def test_the_server_alone_changes_base_leaves_and_sends_them():
    def update(problem, state, view):
        step = jax.tree.map(jnp.ones_like, view.received.base)
        return Aggregate(tree.zeros_like(view.received.shared), {}, base=step), state

    rule = sharing.personal(BODY)
    network = model("none")._replace(base=(rule,))
    start = Simulation(algorithm("fedavg"), network, federation(), rounds=1).start()
    aggregator = Aggregator(lambda shared, num_clients: (), update)
    history = run(network=network, change={"aggregator": aggregator})
    moved = jax.tree.map(lambda before, after: after - before, start.server.base, history.state.server.base)
    assert difference(moved, jax.tree.map(lambda x: jnp.full_like(x, 3), moved)) < 1e-6
    cost = Simulation(algorithm("fedavg"), network, federation(), rounds=1).cost
    assert (cost.bytes_down, cost.bytes_up) == (4 * (36 * 8 + 8 + 27) + 4, 4 * 27 + 8)


@pytest.mark.parametrize(
    ("adapt", "message"),
    [
        (models.freeze("params/nothing/*"), "no leaf of the model matches 'params/nothing/"),
        (models.freeze("*"), "freeze every parameter"),
        (models.lora(targets="nothing"), "'nothing' matches no dense layer"),
        (lambda network: models.lora()(models.lora()(network)), "has such adapters already"),
        (models.lora(targets="classifier"), "besides the head"),
    ],
)
def test_rules_that_choose_nothing_or_everything_are_refused(adapt, message):
    with pytest.raises(InputError, match=message):
        Simulation(algorithm("fedavg"), adapt(model("none")), federation(), rounds=1)


def test_personal_leaves_are_chosen_among_trained_ones():
    network = models.freeze(sharing.batch_norms)(model())
    with pytest.raises(InputError, match="sharing: nothing would be personal"):
        Simulation(algorithm("fedbn"), network, federation(), rounds=1)


# ---- low-rank adapters -----------------------------------------------------------------------------------------------
INPUTS = jax.random.normal(make_key(3), (4, 6, 6, 1))
EVALUATION = Context(jnp.ones(4), jnp.int32(0), make_key(1), False)


def logits(network, variables, context=EVALUATION):
    (features, _), _ = network.encode(variables, INPUTS, context)
    return network.classify(variables["params"], features)


def with_random_b(variables):
    leaves = tree.leaves_by_path(variables)
    drawn = {
        path: jax.random.normal(make_key(5), leaf.shape) if path.endswith("lora_b") else leaf
        for path, leaf in leaves.items()
    }
    return tree.from_paths(drawn)


NETWORKS = {
    "mlp": (partial(model, "none"), "*"),
    "cnn": (lambda: models.cnn(3, channels=(4,), hidden=(8,)), ("*", "conv_*")),
    "flax": (
        lambda: models.from_flax(nn.Sequential([lambda x: x.reshape(4, -1), nn.Dense(8), nn.relu, nn.Dense(3)])),
        "*",
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_low_rank_terms_start_at_zero_and_equal_merged_kernels(name):
    build, targets = NETWORKS[name]
    plain, adapted = build(), models.lora(2, alpha=3.0, targets=targets)(build())
    key = make_key(0)
    base, variables = plain.init(key, INPUTS), adapted.init(key, INPUTS)
    assert np.array_equal(logits(plain, base), logits(adapted, variables))
    changed = with_random_b(variables)
    leaves = tree.leaves_by_path(changed)
    paths = [path.removesuffix("/lora_a") for path in leaves if path.endswith("lora_a")]
    assert paths
    merged = tree.leaves_by_path(base)
    for path in paths:
        product = jnp.tensordot(
            leaves[f"{path}/lora_a"], jnp.squeeze(leaves[f"{path}/lora_b"][..., :, :].reshape(2, -1)), 1
        )
        merged[f"{path}/kernel"] += 1.5 * product
    assert not np.allclose(logits(adapted, changed), logits(plain, base), atol=1e-3)
    np.testing.assert_allclose(logits(adapted, changed), logits(plain, tree.from_paths(merged)), rtol=1e-4, atol=1e-4)


def test_layers_that_cannot_be_adapted_are_refused():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.body, self.head = nnx.Linear(36, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)

        def __call__(self, x):
            return self.head(nnx.relu(self.body(x.reshape(len(x), -1))))

    with pytest.raises(InputError, match="'body' is not called as a Linen layer"):
        models.lora()(models.from_flax(Net)).init(make_key(0), INPUTS)
