"""Activations of frozen layers that are computed once for each example."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het import cache_features, data, models, simulate
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from tests.harness import algorithm, difference, federation, model


class Skipping(nn.Module):
    """Three convolutions; the third one's output is added to the first one's."""

    dropout: float = 0.0

    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(4, (3, 3), name="first")(x)
        x = nn.BatchNorm(use_running_average=not train, name="norm")(x)
        x = nn.Dropout(self.dropout, deterministic=not train)(nn.relu(x))
        y = nn.relu(nn.Conv(4, (3, 3), name="second")(x))
        return nn.Dense(3)((x + nn.Conv(4, (3, 3), name="third")(y)).mean((1, 2)))


def start_alike(network):
    """The network with the same initial weights for every seed, as if they were read from a file."""
    return network._replace(init=lambda key, inputs: network.init(make_key(7), inputs))


def skipping(*frozen, dropout=0.0):
    return models.freeze(frozen)(start_alike(models.from_flax(Skipping(dropout))))


def train(network, clients, name="fedavg"):
    return simulate(algorithm(name), network, clients, rounds=2, evaluate_every=2, cohort_size=3, seed=4)


def probed(norm="batch"):
    return models.train_only("params/classifier/*")(start_alike(model(norm)))


HEAD = probed()
BLOCK = models.freeze("*dense_0/*")(start_alike(models.mlp(3, hidden=(8, 6), norm="none")))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
@pytest.mark.parametrize(
    ("network", "num_features"),
    [(HEAD, 8), (BLOCK, 8), (skipping("*first/*"), 6 * 6 * 4)],
    ids=["head", "block", "conv"],
)
def test_training_gives_the_same_numbers(network, num_features, name):
    cached, clients = cache_features(network, federation())
    assert clients.examples.inputs.shape == (len(clients.examples.labels), num_features)
    plain, other = train(network, federation(), name), train(cached, clients, name)
    assert difference(plain.evaluation, other.evaluation) < 1e-5
    assert difference(plain.state.server.shared, other.state.server.shared) < 1e-5
    jax.tree.map(np.testing.assert_array_equal, plain.state.server.frozen, other.state.server.frozen)


@pytest.mark.parametrize(
    ("frozen", "dropout", "num_features"),
    [
        (("first", "norm", "second", "third"), 0.0, 4),
        (("first", "norm", "second"), 0.0, 6 * 6 * 4),  # the sum reads the norm's output, too
        (("first", "norm", "second", "third"), 0.5, 6 * 6 * 4),  # the dropout is not frozen
    ],
)
def test_the_network_is_cut_where_one_output_is_enough(frozen, dropout, num_features):
    _, clients = cache_features(skipping(*[f"*{name}/*" for name in frozen], dropout=dropout), federation())
    assert clients.examples.inputs.shape[1] == num_features


@pytest.mark.slow
def test_norms_that_use_the_batch_are_not_cached():
    kernels = models.freeze("*dense_0/*")(start_alike(model("batch")))
    cached, clients = cache_features(kernels, federation())
    assert difference(train(kernels, federation()).evaluation, train(cached, clients).evaluation) < 1e-5


@pytest.mark.slow
def test_a_folder_keeps_features_until_a_weight_or_an_example_changes(tmp_path):
    def files(network, clients):
        _, cached = cache_features(network, clients, folder=tmp_path / "features")
        np.testing.assert_allclose(cached.examples.inputs, expected(network, clients), atol=1e-6)
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "features").iterdir()}

    def expected(network, clients):
        return cache_features(network, clients)[1].examples.inputs

    first = files(BLOCK, federation())
    assert len(first) == 1 and files(BLOCK, federation()) == first
    examples = federation().examples
    changed = federation().data._replace(examples=examples._replace(inputs=examples.inputs + 1))
    assert len(files(BLOCK, replace(federation(), data=changed))) == 2
    weights = BLOCK._replace(init=lambda key, inputs: jax.tree.map(lambda leaf: 2 * leaf, BLOCK.init(key, inputs)))
    assert len(files(weights, federation())) == 3
    (path,) = first
    path.write_bytes(path.read_bytes()[:-4])
    assert len(files(BLOCK, federation())) == 3 and path.stat().st_size % 4 == 0


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cache_features: cannot write .*Make room"):
        cache_features(BLOCK, federation(), folder=tmp_path / "file")


@pytest.mark.parametrize(
    ("network", "clients", "message"),
    [
        (models.train_only("params/classifier/*")(model("none")), None, "random and differs between seeds"),
        (model(), None, "no leaf of the model is frozen"),
        (models.freeze("*/dense_1/*")(start_alike(models.mlp(3, hidden=(8, 6)))), None, "before the first trained"),
        (HEAD, "augmented", "inputs are augmented"),
    ],
)
def test_what_cannot_be_cached_is_refused(network, clients, message):
    clients = federation()
    if message == "inputs are augmented":
        augment = data.AUGMENTATIONS["images"](flip=0.5)
        clients = replace(clients, prepare=replace(clients.prepare, augment=augment))
    with pytest.raises(InputError, match=message):
        cache_features(network, clients)


def test_algorithms_that_read_images_are_refused():
    cached, clients = cache_features(BLOCK, federation())
    with pytest.raises(InputError, match="image"):
        train(cached, clients, "harmofl")
