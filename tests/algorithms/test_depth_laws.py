"""Laws of DepthFL, and exits of networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import models
from fedjax_het._internal.keys import make_key
from fedjax_het.client.depths import exits_in_order, scale_exits
from fedjax_het.engine.round.participation import Participation
from fedjax_het.errors import InputError
from fedjax_het.models import with_exits
from fedjax_het.types import Context
from tests.harness import ROUNDING, compose, difference, federation, run

DEEP = models.mlp(3, hidden=(8, 6, 5))


def predict(model, variables, inputs):
    context = Context(jnp.ones(len(inputs)), jnp.int32(0), make_key(0), False)
    (features, _), _ = model.encode(variables, inputs, context)
    return model.classify(variables["params"], features)


def only(client: int) -> Participation:
    return Participation(lambda n: 1, lambda key, n, number: (jnp.array([client]), jnp.ones(1, bool)))


def changed_layers(before, after) -> set[str]:
    """The layers, and exits by "exits/" and the layer that they precede, of which a leaf has changed."""
    pairs = {name: (before[name], after[name]) for name in after if name != "exits"}
    pairs |= {f"exits/{name}": (before["exits"][name], after["exits"][name]) for name in after["exits"]}
    return {name for name, (old, new) in pairs.items() if difference(old, new) > 0}


@pytest.mark.parametrize("depth", [1, 2, 3, 9])
@pytest.mark.extended
def test_a_client_changes_the_layers_before_its_exits_alone(depth):
    round = compose("depthfl", network=DEEP, participation=only(1), options={"depths": (1, depth), "weight": 0.5})
    start = round.init(make_key(0), federation().data).server.shared["params"]
    after = run(round, rounds=1)[0].server.shared["params"]
    expected = {1: set(), 2: {"exits/dense_2", "dense_1"}, 3: {"exits/dense_2", "dense_1", "dense_2", "classifier"}}
    assert changed_layers(start, after) == {"dense_0", "exits/dense_1"} | expected[min(depth, 3)]


@pytest.mark.extended
def test_a_network_without_further_exits_trains_as_fedavg_with_equal_weights():
    ours = run(compose("depthfl", norm="none"))[0].server.shared["params"]
    fedavg = run(compose("fedavg", norm="none", options={"weighting": "uniform"}))[0].server.shared["params"]
    assert difference({name: leaf for name, leaf in ours.items() if name != "exits"}, fedavg) < ROUNDING


@pytest.mark.extended
def test_logits_are_the_mean_of_the_exits():
    model, inputs = with_exits()(models.cnn(3, (2, 3), (4,))), jax.random.normal(make_key(1), (5, 8, 8, 1))
    variables = model.init(make_key(0), inputs)
    names = exits_in_order(model, variables["params"], inputs)
    assert names == ["conv_1", "dense_0", "classifier"]
    alone = [
        predict(model, {"params": scale_exits(variables["params"], {n: jnp.float32(3 * (n == name)) for n in names})},
                inputs) for name in names
    ]  # fmt: skip
    np.testing.assert_allclose(predict(model, variables, inputs), np.mean(alone, axis=0), rtol=1e-5, atol=1e-6)
    own = predict(models.cnn(3, (2, 3), (4,)), {"params": {**variables["params"]}}, inputs)
    np.testing.assert_allclose(alone[-1], own, rtol=1e-5, atol=1e-6)


def test_layers_that_do_not_exist_are_named():
    with pytest.raises(InputError, match="'dense_7' is not a layer"):
        with_exits(("dense_7",))(DEEP).init(make_key(0), jnp.zeros((1, 4)))
