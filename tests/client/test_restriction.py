import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_het.client.optimizers import torch_sgd, trainable_only
from fedjax_het.errors import InputError

PARAMS = {"body": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "classifier": {"kernel": jnp.ones((2, 3))}}


def step(only, optimizer=None):
    optimizer = trainable_only(optimizer or torch_sgd(0.1, 0.9, weight_decay=0.5), only)
    updates, _ = optimizer.update(jax.tree.map(jnp.ones_like, PARAMS), optimizer.init(PARAMS), PARAMS)
    return optax.apply_updates(PARAMS, updates)


@pytest.mark.parametrize(
    ("only", "trained"),
    [
        ("params/classifier/*", {"classifier/kernel"}),
        ("!params/classifier/*", {"body/kernel", "body/bias"}),
        ("*/bias", {"body/bias"}),
        ("*", {"body/bias", "body/kernel", "classifier/kernel"}),
    ],
)
def test_only_matching_parameters_are_updated(only, trained):
    after = jax.tree_util.tree_leaves_with_path(step(only))
    moved = {"/".join(key.key for key in path) for path, leaf in after if np.any(leaf != 1)}
    assert moved == trained
    assert all(np.all(np.isclose(leaf, 1 - 0.1 * 1.5) | (leaf == 1)) for _, leaf in after)


def test_without_a_pattern_the_optimizer_is_returned_unchanged():
    optimizer = optax.adam(0.1)
    assert trainable_only(optimizer, None) is optimizer


def test_parameters_that_are_not_trained_have_no_optimizer_state():
    sizes = [
        sum(x.size for x in jax.tree.leaves(trainable_only(optax.trace(0.9), only).init(PARAMS)))
        for only in ("params/classifier/*", "*")
    ]
    assert sizes == [6, 12]


@pytest.mark.parametrize("only", ["params/clasifier/*", "!params/clasifier/*"])
def test_a_pattern_that_matches_no_parameter_is_refused(only):
    with pytest.raises(InputError, match=r"only: no parameter of the model matches 'params/clasifier/\*'"):
        step(only)


def test_a_pattern_that_leaves_no_parameter_to_train_is_refused():
    with pytest.raises(InputError, match=r"leaves no parameter to train"):
        step("!*")
