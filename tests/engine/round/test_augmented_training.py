"""Augmentation inside a round: only in training, determined by client, round and step."""

import numpy as np
import pytest

from fedjax_het import algorithms, data, models
from fedjax_het._internal.keys import make_key
from fedjax_het.engine.parallel.layout import chunked, vmapped
from fedjax_het.engine.round.program import make_round
from tests.harness import difference, run

pytestmark = pytest.mark.extended

FLIP = data.AUGMENTATIONS["images"](flip=0.5)
JITTER = data.AUGMENTATIONS["images"](crop=(0.5, 1.0), flip=0.5, brightness=0.5, grayscale=0.5)


def federation(augment, is_symmetric=False):
    random = np.random.default_rng(0)
    inputs = random.integers(0, 256, (60, 6, 6, 3), np.uint8)
    if is_symmetric:
        inputs[:, :, 3:] = inputs[:, :, 2::-1]
    dataset = data.assemble("images", inputs, random.integers(0, 3, 60), class_names=("a", "b", "c"))
    return data.federate(dataset, data.dirichlet(alpha=5.0), 4, augment=augment)


def train(federated, layout=vmapped, algorithm="fedavg"):
    built = algorithms.ALGORITHMS[algorithm](learning_rate=0.1, batch_size=4)
    network = models.mlp(3, hidden=(8,))
    round = make_round(built, network, 4, layout=layout, prepare=federated.prepare, augment=federated.augment)
    return run(round, 3, federated.data)[0].server.shared


@pytest.mark.slow
def test_flipping_symmetric_images_does_not_change_training():
    plain, flipped = (train(federation(augment, is_symmetric=True)) for augment in (None, FLIP))
    assert difference(plain, flipped) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "harmofl"])
def test_augmentation_changes_training(algorithm):
    plain, flipped = (train(federation(augment), algorithm=algorithm) for augment in (None, FLIP))
    assert difference(plain, flipped) > 1e-3


@pytest.mark.slow
def test_augmentation_does_not_depend_on_the_layout():
    federated = federation(JITTER)
    assert difference(train(federated), train(federated, chunked(1))) < 1e-5


@pytest.mark.slow
def test_another_key_augments_differently():
    federated = federation(JITTER)
    keys = [make_key(0), make_key(1)]
    first, second = (federated.augment(key, federated.examples.inputs[:2], np.zeros(2, int))[0] for key in keys)
    assert not np.allclose(first, second)
