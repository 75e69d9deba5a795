"""Masks instead of labels: every algorithm trains on them, or says before anything is compiled that it cannot."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het import data, engine, models
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.errors import InputError
from tests.harness import every_algorithm

FEDERATION = data.toy(num_clients=3, num_classes=2, image=(8, 8, 1), masks=True, examples_per_client=(12, 16))
OF_CLASSES = {"fedpac", "fedsr"}  # prototypes, and a distribution of the features for each class


class Pixels(nn.Module):
    """Two convolutions and a head for every pixel."""

    def setup(self):
        self.classifier = nn.Dense(FEDERATION.num_classes)

    @nn.compact
    def encode(self, x, mask, is_training):
        for _ in range(2):
            x = nn.relu(nn.Conv(4, (3, 3))(x))
        return x

    def classify(self, features):
        return self.classifier(features)


def simulation(name, **options):
    algorithm = ALGORITHMS[name](learning_rate=0.1, batch_size=8)
    return engine.Simulation(algorithm, models.from_flax(Pixels()), FEDERATION, rounds=3, **options)


@every_algorithm
def test_trains_on_masks_or_refuses(name):
    if name in OF_CLASSES:
        with pytest.raises(InputError, match=r"features (are|have shape)"):
            simulation(name)
        return
    run = simulation(name)
    state, metrics = run.advance(run.start(), 3)
    assert np.isfinite(metrics.loss).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.server.shared))
