"""Training of every algorithm on masks, or an error before anything is compiled."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het import data, engine, models
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.errors import InputError
from fedjax_het.models._norms import norm
from tests.harness import ADAPTERS, CAPACITIES, PROMPTS, every_algorithm_slowly, supply

pytestmark = pytest.mark.extended

FEDERATION = data.toy(num_clients=3, num_classes=2, image=(16, 16, 1), masks=True, examples_per_client=(12, 16))
# Prototypes, a distribution for each class, correlations of features, a frame, a mean, parts of features, neighbours.
OF_CLASSES = {
    *("fedpac", "fedsr", "fedproto", "feddecorr", "fedetf", "fpl"),
    *("fedmd", "feddistill", "fedtgp", "fedgen"),
    *("feddbe", "fedas", "fedcp", "gpfl", "pfedfda", "knnper", "glfc", "depthfl"),
}
DISTILLED = {"feddf": {"distillation_steps": 2, "distillation_batch_size": 4}, "fedmd": {"sample_size": 8}}


class PixelClassifier(nn.Module):
    """Two convolutions, batch normalisation and a head for every pixel."""

    def setup(self):
        self.classifier = nn.Dense(FEDERATION.num_classes)

    @nn.compact
    def encode(self, x, mask, is_training):
        for _ in range(2):
            x = nn.relu(nn.Conv(4, (3, 3))(x))
        return norm("batch")(x, mask, is_training)

    def classify(self, features):
        return self.classifier(features)


def simulation(name, model=None, **options):
    algorithm = ALGORITHMS[name](learning_rate=0.1, batch_size=8, **DISTILLED.get(name, {}))
    network, federation = model or models.from_flax(PixelClassifier()), supply(algorithm, FEDERATION)
    return engine.Simulation(algorithm, network, federation, rounds=3, **options)


@pytest.mark.slow
@every_algorithm_slowly
def test_every_algorithm_trains_on_masks_or_refuses_them(name):
    if name in [*OF_CLASSES, *PROMPTS, *ADAPTERS, *CAPACITIES]:
        refusal = r"features (are|have shape|that are)|no text tower|matches no dense layer|"
        refusal += "widths of its layers are not known|expected one label per example"
        with pytest.raises(InputError, match=refusal):
            simulation(name)
        return
    run = simulation(name)
    state, metrics = run.advance(run.start(), 3)
    assert np.isfinite(metrics.loss).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.server.shared))


@pytest.mark.slow
def test_evaluation_measures_the_overlap_of_shared_and_personal_models():
    run = simulation("fedbn", model=models.unet(2, norm="batch", width=1 / 16), evaluate_every=3)
    state, _ = run.advance(run.start(), 3)
    figures = engine.flatten_evaluation(run.evaluate(state))
    for name in ("dice", "iou", "dice_foreground", "iou_foreground"):
        for group in ("clients", "personal"):
            assert 0 <= figures[f"{group}/{name}_mean"][0] <= 1
        assert figures[f"test/{name}"].shape == (1,)
    assert figures["test/iou"] < figures["test/dice"]


@pytest.mark.slow
def test_training_on_masks_increases_dice():
    """The box is much brighter than its surroundings, so a single threshold finds it."""
    federation = data.toy(num_clients=2, num_classes=2, image=(16, 16, 1), masks=True, feature_shift=0.0, seed=3)
    algorithm = ALGORITHMS["fedavg"](learning_rate=0.5, batch_size=16, epochs=4)
    run = engine.Simulation(algorithm, models.from_flax(PixelClassifier()), federation, rounds=10)
    start = engine.flatten_evaluation(run.evaluate(run.start()))["test/dice"]
    state, _ = run.advance(run.start(), 10)
    assert engine.flatten_evaluation(run.evaluate(state))["test/dice"][0] > max(0.8, start[0] + 0.2)


@pytest.mark.slow
def test_diagnostics_of_masks_agree_with_each_other():
    chosen = {name: DIAGNOSTICS[name] for name in ("classes", "decomposition")}
    run = simulation("fedavg", diagnostics=chosen)
    found = jax.tree.map(lambda x: x[0], run.diagnose(run.start()))
    counts, losses = found["classes"]["counts"], found["classes"]["losses"]
    pixels = FEDERATION.data.train.count * 16 * 16
    np.testing.assert_array_equal(counts.sum(axis=1), pixels)
    own = np.nansum(losses * counts, axis=1) / pixels
    np.testing.assert_allclose(own, np.diag(found["decomposition"]["losses"]), rtol=1e-5)
