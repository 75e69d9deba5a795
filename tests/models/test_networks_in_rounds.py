"""The larger networks under the algorithms: whole rounds are traced, and nothing is compiled."""

import functools

import jax
import numpy as np
import pytest

from fedjax_het import data, models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.engine import make_round
from fedjax_het.errors import InputError
from fedjax_het.models import from_flax
from fedjax_het.models._resnet import ResNet
from tests.golden.replay import client_data
from tests.harness import ADAPTERS, CAPACITIES, PROMPTS, algorithm, every_algorithm, every_algorithm_slowly, supply

pytestmark = pytest.mark.extended

KEY = make_key(0)


@functools.cache
def federation():
    return data.toy(num_clients=3, image=(16, 16, 3), examples_per_client=(10, 20), valid_fraction=0.2)


def trace(round, data):
    """(the state before, the state after) a round."""
    before = jax.eval_shape(round.init, KEY, data)
    return before, jax.eval_shape(round.step, before, data, KEY)[0]


def check_round(name, network):
    built = algorithm(name, **({"targets": "conv_*"} if name in ADAPTERS else {}))
    round = make_round(built, network, 3, prepare=federation().prepare)
    if name in [*PROMPTS, *CAPACITIES]:
        with pytest.raises(InputError, match=r"no text tower|batch norms keep running statistics"):
            trace(round, federation().data)
        return
    before, after = trace(round, supply(round.algorithm, federation()).data)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), before) == jax.tree.map(lambda x: (x.shape, x.dtype), after)


@pytest.mark.slow
@every_algorithm_slowly
def test_a_short_resnet_can_be_traced_in_a_round_of_every_algorithm(name):
    check_round(name, from_flax(ResNet(3, (1, 1), (4, 8), False, "imagenet", "batch", "auto")))


@pytest.mark.slow
@every_algorithm
def test_a_thin_resnet18_can_be_traced_in_a_round(name):
    check_round(name, models.resnet18(3, width=0.05))


def test_fedbn_keeps_every_norm_of_a_resnet_personal():
    network = models.resnet18(3, width=0.05)
    round = make_round(algorithm("fedbn"), network, 3, prepare=federation().prepare)
    state = jax.eval_shape(round.init, KEY, federation().data)
    personal = tree.paths(state.clients.personal)
    assert len(personal) == 4 * 20
    assert sum("norm_shortcut" in path for path in personal) == 4 * 3
    assert not any("norm" in path for path in tree.paths(state.server.shared))


@pytest.mark.slow
def test_a_unet_can_be_traced_in_a_round_on_masks():
    images, masks = np.zeros((6, 16, 16, 3), np.float32), np.zeros((6, 16, 16), np.int32)
    masked = client_data(images, masks, [3, 3])
    round = make_round(algorithm("fedavg"), models.unet(2, width=0.1), 2)
    before, after = trace(round, masked)
    assert jax.tree.structure(before) == jax.tree.structure(after)
