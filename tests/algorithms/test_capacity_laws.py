"""Laws of HeteroFL, FedRolex and FjORD, and masks of sub-networks compared with masks written by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het import capacities, data, models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.client.sub_networks import keep_entries, kept_units, outer_mask
from fedjax_het.engine.parallel.layout import chunked
from fedjax_het.engine.round import participation
from fedjax_het.engine.round.program import make_round
from fedjax_het.engine.simulation import Simulation
from fedjax_het.errors import InputError
from fedjax_het.problem import Problem
from fedjax_het.types import ClientData, Context, Examples
from tests.harness import IN_ORDER, ROUNDING, algorithm, compose, difference, federation, is_equal, model, run, train
from tests.views import client_view


def whole_labels():
    """The toy federation whose clients have all classes."""
    examples = federation().data.examples
    labels = np.zeros(len(examples.labels), np.int32)
    for row, count in zip(federation().data.train.index, federation().data.train.count, strict=True):
        labels[row[:count]] = np.arange(count) % 3
    return federation().data._replace(examples=examples._replace(labels=jnp.asarray(labels)))


def masks_of(network, inputs, widths, level, window="first", number=0):
    """The masks of the sub-network with the level-th width, by path, and the variables."""
    variables = network.init(make_key(0), jnp.asarray(inputs))
    problem = Problem(network, (), prepare=jnp.asarray)
    view = client_view(variables, round=number, data=ClientData(Examples(jnp.asarray(inputs), None), None, None, None))
    axes = kept_units(capacities.assign_widths(widths, window=window), problem, view, jnp.asarray(level))
    by_path = tree.leaves_by_path(variables)
    return {path: np.broadcast_to(outer_mask(masks), by_path[path].shape)
            for path, masks in tree.leaves_by_path(axes).items()}, variables  # fmt: skip


# ---- masks -----------------------------------------------------------------------------------------------------------
def test_masks_of_an_mlp_are_blocks():
    masks, _ = masks_of(models.mlp(3, (5, 4)), np.zeros((1, 6)), (0.5, 1.0), 0)
    first, second = np.arange(5) < 3, np.arange(4) < 2
    np.testing.assert_array_equal(masks["params/dense_0/kernel"], np.broadcast_to(first, (6, 5)))
    np.testing.assert_array_equal(masks["params/dense_1/kernel"], np.outer(first, second))
    np.testing.assert_array_equal(masks["params/dense_1/bias"], second)
    np.testing.assert_array_equal(masks["params/classifier/kernel"], np.outer(second, np.ones(3, bool)))
    assert masks["params/classifier/bias"].all()


@pytest.mark.extended
def test_dense_layers_after_convolutions_keep_the_channels_of_every_position():
    masks, _ = masks_of(models.cnn(3, (4, 6), (8,)), np.zeros((1, 8, 8, 1)), (0.5, 1.0), 0)
    channels = np.arange(6) < 3
    np.testing.assert_array_equal(masks["params/conv_1/kernel"][2, 1], np.outer(np.arange(4) < 2, channels))
    np.testing.assert_array_equal(masks["params/dense_0/kernel"], np.outer(np.tile(channels, 4), np.arange(8) < 4))


def test_windows_roll_over_all_units_equally_often():
    counts = 0
    for number in range(5):
        up, _ = masks_of(models.mlp(3, (5,)), np.zeros((1, 2)), (0.4, 1.0), 0, "up", number)
        down, _ = masks_of(models.mlp(3, (5,)), np.zeros((1, 2)), (0.4, 1.0), 0, "down", number)
        bias = up["params/dense_0/bias"]
        np.testing.assert_array_equal(np.flatnonzero(bias), np.sort((number + np.arange(2)) % 5))
        np.testing.assert_array_equal(np.flatnonzero(down["params/dense_0/bias"]), np.sort((np.arange(2) - number) % 5))
        counts = counts + bias.astype(int)
    np.testing.assert_array_equal(counts, 2)


def _check_slices(network, narrow, inputs):
    """The masked network has the logits of the network with fewer units that has its weights."""
    masks, variables = masks_of(network, inputs, (0.5, 1.0), 0)
    small = {path: leaf[np.ix_(*(np.flatnonzero(masks[path].any(tuple(i for i in range(leaf.ndim) if i != axis)))
                                 for axis in range(leaf.ndim)))]
             for path, leaf in tree.leaves_by_path(variables).items()}  # fmt: skip
    shapes = jax.eval_shape(narrow.init, make_key(0), inputs)
    assert {path: leaf.shape for path, leaf in tree.leaves_by_path(shapes).items()} == {
        path: leaf.shape for path, leaf in small.items()
    }
    kept = tree.from_paths({path: leaf * masks[path] for path, leaf in tree.leaves_by_path(variables).items()})
    logits = []
    for net, weights in ((network, kept), (narrow, tree.from_paths(small))):
        context = Context(jnp.ones(len(inputs)), jnp.asarray(0), make_key(0), True)
        (features, _), _ = net.encode(weights, jnp.asarray(inputs), context)
        logits.append(net.classify(weights["params"], features))
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["none", "batch_stat"])
def test_a_masked_network_is_the_network_of_half_the_width(norm):
    images = np.random.default_rng(0).normal(size=(4, 8, 8, 2)).astype(np.float32)
    for factory, options in (
        (models.cnn, {"channels": (4, 6), "hidden": (8,)}),
        (models.mlp, {"hidden": (6, 4)}),
        (models.resnet18, {"stem": "small"}),
    ):
        width = 1 / 16 if factory is models.resnet18 else 1.0
        _check_slices(*(factory(3, norm=norm, width=w, **options) for w in (width, width / 2)), images)


# ---- laws ------------------------------------------------------------------------------------------------------------
@pytest.mark.extended
@pytest.mark.parametrize("name", ["heterofl", "fedrolex", "fjord"])
def test_if_all_clients_are_whole_it_is_fedavg(name):
    others = {"distillation": False} if name == "fjord" else {}
    weighting = "samples" if name == "fjord" else "uniform"
    options = {"momentum": 0.9, "weight_decay": 0.01}
    rounds = [
        compose("fedavg", norm="none", options={"weighting": weighting, **options}),
        compose(name, options={"widths": (1.0,), **others, **options}),
    ]
    states = [run(round, data=whole_labels())[0] for round in rounds]
    assert difference(states[0].server.shared, states[1].server.shared) < ROUNDING


@pytest.mark.extended
@pytest.mark.parametrize("name", ["heterofl", "fjord"])
def test_entries_that_nobody_sends_keep_their_value_exactly(name):
    options = {"widths": (0.5, 0.25), "momentum": 0.9, "weight_decay": 0.1}
    round = compose(name, options=options)
    before = round.init(make_key(0), federation().data).server.shared["params"]
    after = run(round)[0].server.shared["params"]
    for layer, leaf, part in (("dense_0", "kernel", np.s_[:, 4:]), ("dense_0", "bias", np.s_[4:]),
                              ("classifier", "kernel", np.s_[4:])):  # fmt: skip
        np.testing.assert_array_equal(after[layer][leaf][part], before[layer][leaf][part])
    assert not np.array_equal(after["dense_0"]["kernel"], before["dense_0"]["kernel"])


@pytest.mark.slow
def test_a_head_row_is_averaged_over_the_clients_with_its_class():
    chosen = whole_labels()
    labels = jnp.minimum(chosen.examples.labels, 1)  # nobody has class 2
    chosen = chosen._replace(examples=chosen.examples._replace(labels=labels))
    round = compose("heterofl", options={"weight_decay": 0.1, "masks_logits": False})
    before = round.init(make_key(0), chosen).server.shared["params"]["classifier"]
    after = run(round, data=chosen)[0].server.shared["params"]["classifier"]
    np.testing.assert_array_equal(after["kernel"][:, 2], before["kernel"][:, 2])
    assert not np.array_equal(after["kernel"][:, :2], before["kernel"][:, :2])


@pytest.mark.slow
def test_units_outside_the_sub_network_do_not_move_with_any_activation():
    class Sigmoid(nn.Module):
        hidden: int = 6

        def narrowed(self, width):
            return self.clone(hidden=models.narrow_layers((self.hidden,), width)[0])

        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(nn.sigmoid(nn.Dense(self.hidden)(x.reshape(len(x), -1))))

    options = {"widths": (0.5,), "scaler": False}
    state = run(compose("heterofl", network=models.from_flax(Sigmoid()), options=options), data=whole_labels())[0]
    narrow = compose("fedavg", network=models.from_flax(Sigmoid(3)), options={"weighting": "uniform"})

    def cut(leaf, like):
        return leaf[tuple(slice(size) for size in like.shape)]

    start = compose("heterofl", network=models.from_flax(Sigmoid()), options=options)
    whole = start.init(make_key(0), whole_labels()).server.shared

    def begin(state):
        shared = jax.tree.map(cut, whole, state.server.shared)
        return state._replace(server=state.server._replace(shared=shared))

    expected = run(narrow, data=whole_labels(), change=begin)[0].server.shared
    assert difference(expected, jax.tree.map(cut, state.server.shared, expected)) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
def test_dynamic_widths_do_not_depend_on_the_other_clients(name):
    few = participation.uniform(3)
    options = {"assignment": "dynamic", "width_seed": 3}
    first, second = (run(compose(name, options=options, participation=few))[0] for _ in range(2))
    assert is_equal(first, second)
    fixed = run(compose(name, participation=few))[0]
    assert not is_equal(first.server.shared, fixed.server.shared)


def test_a_file_gives_every_client_its_width(tmp_path):
    path = tmp_path / "widths.csv"
    path.write_text("client,width\n1,0.5\n0,1\n2,0.5\n")
    chosen = capacities.assign_widths(str(path))
    assert chosen.widths == (0.5, 1.0)
    assert [int(chosen.level(jnp.asarray(i), jnp.asarray(0))) for i in range(3)] == [1, 0, 0]
    with pytest.raises(InputError, match="has the widths of 3 clients, but there are 5"):
        compose("heterofl", options={"widths": str(path)}).init(make_key(0), federation().data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": ()}, "the list is empty"),
        ({"widths": (0.0,)}, "widths: must be"),
        ({"widths": (1.5,)}, "widths: must be"),
        ({"width_seed": 1}, "width_seed: has no effect with assignment='fixed'"),
        ({"widths": "missing.csv"}, "widths: cannot read"),
    ],
)
def test_widths_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        algorithm("heterofl", **options)


def test_a_file_and_draws_are_refused(tmp_path):
    (tmp_path / "widths.csv").write_text("client,width\n0,1\n")
    with pytest.raises(InputError, match="assignment: a file gives every client its width"):
        algorithm("heterofl", widths=str(tmp_path / "widths.csv"), assignment="dynamic")


@pytest.mark.every_case
@pytest.mark.extended
@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: model("batch"), "batch norms keep running statistics"),
        (lambda: model("group"), "norms average over units"),
        (lambda: models.lora(2)(model("none")), "adapters and of frozen leaves are not defined"),
        (lambda: models.densenet121(3, width=0.1, norm="none"), "widths of its layers are not known"),
    ],
)
def test_networks_without_sub_networks_are_refused(network, message):
    chosen = data.toy(num_clients=5, image=(32, 32, 1), examples_per_client=(7, 24))
    round = make_round(algorithm("heterofl"), network(), 5, prepare=chosen.prepare)
    with pytest.raises(InputError, match=message):
        start = jax.eval_shape(round.init, make_key(0), chosen.data)
        jax.eval_shape(round.step, start, chosen.data, make_key(0))


@pytest.mark.extended
def test_personal_models_are_sub_networks():
    built = algorithm("heterofl", widths=(0.5, 1.0))
    chosen = data.toy(num_clients=4, image=(6, 6, 1), examples_per_client=(20, 24), valid_fraction=0.2)
    simulation = Simulation(built, model("none"), chosen, rounds=2)
    state, _ = simulation.advance(simulation.start(), 2)
    figures = simulation.evaluate(state)
    assert figures.personal is not None and np.isfinite(figures.personal.loss).all()


@pytest.mark.extended
def test_sub_networks_can_be_combined_with_any_local_update():
    plain = algorithm("fedprox", mu=0.1)
    own = capacities.assign_widths((1.0,))
    change = {"local_update": capacities.with_capacity(plain.local_update, own)}
    assert difference(train("fedprox", mu=0.1), run(compose("fedprox", norm="none", options={"mu": 0.1}, change=change),
                                                      rounds=2)[0].server.shared) < ROUNDING  # fmt: skip
    assert replace(plain, **change).local_update.batch_size == 8
    assert keep_entries({"a": jnp.ones(2)}, {"a": (jnp.array([True, False]),)})["a"].tolist() == [1, 0]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("heterofl", {}),
        ("fedrolex", {"layout": chunked(1)}),
        ("heterofl", {"layout": chunked(1)}),
        ("fedrolex", {}),
    ],
    ids=["heterofl", "fedrolex-chunked(1)", "heterofl-chunked(1)", "fedrolex"],
)
def test_smaller_networks_give_the_results_of_masks(name, options):
    network = models.cnn(3, (4, 6), (8,), kernel=3)
    masked, _ = run(compose(name, network=network, participation=IN_ORDER))
    sliced, _ = run(compose(name, network=network, **options))
    assert difference(masked, sliced) < ROUNDING


@pytest.mark.slow
def test_half_the_width_costs_less_than_half():
    def count_flops(width: float) -> float:
        network = models.mlp(3, (256, 256, 256))
        round = compose("heterofl", network=network, options={"widths": (width,)})
        state = round.init(make_key(0), federation().data)
        step = jax.jit(round.step).lower(state, federation().data, make_key(0))
        return step.compile().cost_analysis()["flops"]

    assert count_flops(0.5) < 0.45 * count_flops(1.0)  # the server works on the whole network
