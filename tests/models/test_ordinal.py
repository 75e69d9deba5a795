"""CORAL's head: at the start all ranks have the same probability, and heads without features are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import lstm, mlp, ordinal, unet
from fedjax_het.types import Context


@pytest.mark.extended
def test_ranks_are_equally_likely_at_a_score_of_0_and_share_their_direction():
    model, inputs = ordinal(mlp(4, hidden=(3,))), jnp.ones((2, 5))
    variables = model.init(make_key(0), inputs)
    head = variables["params"]["classifier"]
    assert {name: leaf.shape for name, leaf in head.items()} == {"kernel": (3, 1), "bias": (3,)}
    chances = jax.nn.sigmoid(model.classify(variables["params"], jnp.zeros((1, 3))))
    np.testing.assert_allclose(chances, [[0.75, 0.5, 0.25]], rtol=1e-6)
    context = Context(jnp.ones(2), jnp.int32(0), make_key(0), False)
    features, _ = model.encode(variables, inputs, context)[0]
    logits = model.classify(variables["params"], features)
    np.testing.assert_allclose(logits - head["bias"], (features @ head["kernel"]) * jnp.ones(3), rtol=1e-5)
    narrow = model.narrowed(0.0).init(make_key(0), inputs)["params"]["classifier"]
    assert narrow["kernel"].shape == (1, 1) and narrow["bias"].shape == (3,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (unet(3, width=0.1, levels=1), jnp.ones((1, 8, 8, 1))),
        (lstm(3, vocabulary=5, embedding=2, hidden=(2,), outputs="every"), jnp.ones((1, 4), jnp.int32)),
        (mlp(1), jnp.ones((1, 2))),
    ],
)
def test_a_head_that_cannot_order_examples_is_refused(model, inputs):
    with pytest.raises(InputError, match="ranks: "):
        ordinal(model).init(make_key(0), inputs)
