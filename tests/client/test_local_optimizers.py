"""Local optimizers against PyTorch's rules in NumPy, and their restriction to some parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_het.client.optimizers import local_optimizer, torch_adam, torch_sgd, trainable_only
from fedjax_het.errors import InputError

GRADIENTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def optimize(optimizer, w):
    state = optimizer.init(w)
    for gradient in GRADIENTS:
        update, state = optimizer.update(gradient, state, w)
        w = optax.apply_updates(w, update)
    return w


@pytest.mark.parametrize("betas", [None, (0.9, 0.999), (0.8, 0.99)])
def test_adam_matches_pytorch(betas):
    b1, b2 = betas or (0.9, 0.999)
    start = np.float32([1.0, -2.0, 3.0])
    w, first, second = start.astype(np.float64), np.zeros(3), np.zeros(3)
    for t, gradient in enumerate(GRADIENTS.astype(np.float64), start=1):
        gradient = gradient + 0.1 * w
        first, second = b1 * first + (1 - b1) * gradient, b2 * second + (1 - b2) * gradient**2
        w = w - 0.01 * (first / (1 - b1**t)) / (np.sqrt(second / (1 - b2**t)) + 1e-8)
    optimizer = local_optimizer("adam", 0.01, weight_decay=0.1, betas=betas)
    np.testing.assert_allclose(optimize(optimizer, start), w, rtol=1e-5)


def test_sgd_matches_pytorch():
    start = np.float32([1.0, -2.0, 3.0])
    w, buffer = start.astype(np.float64), np.zeros(3)
    for gradient in GRADIENTS.astype(np.float64):
        buffer = 0.9 * buffer + gradient + 0.1 * w
        w = w - 0.01 * buffer
    np.testing.assert_allclose(optimize(torch_sgd(0.01, 0.9, 0.1), start), w, rtol=1e-5)


def test_an_optimizer_is_chosen_by_name_by_transformation_or_by_default():
    start = np.ones(3, np.float32)
    for choice, same in [(None, torch_sgd(0.1, 0.9)), ("adam", torch_adam(0.1)), (torch_sgd(0.5), torch_sgd(0.5))]:
        np.testing.assert_array_equal(optimize(local_optimizer(choice, 0.1, 0.9), start), optimize(same, start))


def test_an_unknown_optimizer_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"optimizer: unknown option 'adma'.*'adam'"):
        local_optimizer("adma", 0.1)


@pytest.mark.parametrize(
    ("choice", "betas", "message"),
    [
        (None, (0.9, 0.99), "betas: only Adam has betas. Set optimizer"),
        (torch_sgd(0.1), (0.9, 0.99), "betas: only Adam has betas"),
        ("adam", (0.9, 1.0), "betas: must be a list in which each is a number in \\[0, 1\\)"),
        ("adam", (0.9,), "betas: must be a list with 2 entries"),
    ],
)
def test_unused_and_invalid_betas_are_refused(choice, betas, message):
    with pytest.raises(InputError, match=message):
        local_optimizer(choice, 0.1, betas=betas)


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
