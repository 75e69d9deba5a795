"""Laws of perturbations, and of the gradients taken there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.client.gradients import plain_gradient
from fedjax_het.client.objectives import cross_entropy, proximal
from fedjax_het.client.sharpness import adaptive_scales, perturbation, sharpness_aware
from fedjax_het.errors import InputError
from fedjax_het.types import Batch
from tests.client.test_local_updates import INPUTS, LABELS, PROBLEM, WEIGHTS, view

GRADIENT = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
SCALES = {"a": jnp.array([0.5, 2.0]), "b": jnp.array([[3.0]])}
BATCH, KEY = Batch(jnp.asarray(INPUTS), jnp.asarray(LABELS), jnp.ones(30)), make_key(0)


def norm(values) -> float:
    return float(tree.norm(values))


def multiply(a, b):
    return jax.tree.map(jnp.multiply, a, b)


def assert_near(a, b, rtol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-7), a, b)


def test_a_perturbation_has_the_requested_radius():
    assert norm(perturbation(GRADIENT, 0.1)) == pytest.approx(0.1)
    step = perturbation(GRADIENT, 0.1, "tensor")
    assert [norm(leaf) for leaf in jax.tree.leaves(step)] == pytest.approx([0.1, 0.1])
    delta = perturbation(GRADIENT, 0.1, scales=SCALES)
    assert norm(jax.tree.map(jnp.divide, delta, SCALES)) == pytest.approx(0.1)
    assert_near(perturbation(GRADIENT, 0.1, "none"), tree.scale(0.1, GRADIENT))
    assert_near(perturbation(GRADIENT, 0.5, "none"), perturbation(GRADIENT, 0.5 * norm(GRADIENT)))


@pytest.mark.parametrize("options", [{}, {"norm": "tensor"}, {"scales": SCALES}, {"scales": tree.zeros_like(SCALES)}])
def test_a_zero_gradient_gives_no_perturbation(options):
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(perturbation(tree.zeros_like(GRADIENT), 0.1, **options)))


@pytest.mark.parametrize("scales", [None, SCALES])
def test_the_scale_of_the_gradient_does_not_change_the_perturbation(scales):
    assert_near(perturbation(tree.scale(1e3, GRADIENT), 0.1, scales=scales), perturbation(GRADIENT, 0.1, scales=scales))


def test_a_perturbation_rotates_with_the_weights():
    rotation = jnp.asarray(np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0])
    gradient = jnp.arange(5.0)
    assert_near(perturbation({"w": rotation @ gradient})["w"], rotation @ perturbation({"w": gradient})["w"])


def test_an_adaptive_perturbation_without_offset_scales_with_the_weights():
    """A e(w, g) = e(A w, g / A) for positive diagonal A; with an offset it does not."""

    def perturb(weights, gradient, offset):
        return perturbation(gradient, 0.3, scales=adaptive_scales(weights, "all", offset))

    diagonal, weights = tree.scale(2.0, SCALES), {"a": jnp.array([-1.0, 2.0]), "b": jnp.array([[0.5]])}
    for offset, is_equal in ((0.0, True), (0.2, False)):
        rescaled = perturb(multiply(diagonal, weights), jax.tree.map(jnp.divide, GRADIENT, diagonal), offset)
        distance = norm(tree.subtract(multiply(diagonal, perturb(weights, GRADIENT, offset)), rescaled))
        assert (distance < 1e-6) == is_equal


def test_biases_are_no_weights():
    params = {"conv": {"kernel": jnp.array([-2.0]), "bias": jnp.array([3.0])}, "norm": {"scale": jnp.array([0.0])}}
    weights, everything = (adaptive_scales(params, adaptive, 0.5) for adaptive in ("weights", "all"))
    assert_near(weights, {"conv": {"kernel": [2.5], "bias": [1.0]}, "norm": {"scale": [0.5]}})
    assert_near(everything, {"conv": {"kernel": [2.5], "bias": [3.5]}, "norm": {"scale": [0.5]}})
    biases = {"first": {"bias": GRADIENT["a"]}, "second": {"bias": GRADIENT["b"]}}
    assert_near(perturbation(biases, scales=adaptive_scales(biases, "weights", 0.2)), perturbation(biases))


def test_a_large_offset_perturbs_along_the_gradient_of_the_weights():
    params = {"kernel": jnp.array([1.0, -2.0]), "bias": jnp.array([1.0])}
    gradient = {"kernel": jnp.array([3.0, 4.0]), "bias": jnp.array([2.0])}
    delta = perturbation(gradient, 0.1, scales=adaptive_scales(params, "weights", 1e4))
    assert_near(delta["kernel"], 0.1 * 1e4 * gradient["kernel"] / 5, rtol=1e-3)
    assert float(jnp.abs(delta["bias"][0])) < 1e-4


def direction(rule, *terms, params=WEIGHTS):
    problem = PROBLEM._replace(objective=(cross_entropy(), *terms))
    return rule(problem, params, {}, BATCH, view(np.arange(30), 30), KEY)


@pytest.mark.extended
def test_added_terms_enter_neither_the_perturbation_nor_the_perturbed_pass():
    params, rule = tree.scale(1.5, WEIGHTS), sharpness_aware(0.5)
    (loss, _), task = direction(rule, params=params)
    (total, _), summed = direction(rule, proximal(0.7), proximal(0.3), params=params)
    pull = tree.subtract(params, WEIGHTS)
    assert_near(summed, tree.add(task, pull))
    np.testing.assert_allclose(total - loss, 0.5 * tree.squared_norm(pull), rtol=1e-5)
    whole = tree.add(direction(plain_gradient, params=params)[1], pull)  # direction for the whole objective
    leaked = direction(plain_gradient, proximal(1.0), params=tree.add(params, perturbation(whole, 0.5)))[1]
    assert norm(tree.subtract(summed, leaked)) > 1e-2 * norm(summed)


@pytest.mark.extended
def test_a_mixture_has_its_share_of_the_plain_gradient():
    plain, perturbed = direction(plain_gradient)[1], direction(sharpness_aware(0.5))[1]
    wanted = tree.add(tree.scale(0.3, plain), tree.scale(0.7, perturbed))
    assert_near(direction(sharpness_aware(0.5, mix=0.7))[1], wanted)


def test_parameters_that_are_not_trained_are_not_perturbed():
    two = {"head": jnp.array([3.0]), "body": jnp.array([4.0])}
    seen = []

    class Recorder:
        objective = (cross_entropy(),)

        def value_and_grad(self, params, state, *rest):
            seen.append(params)
            return (jnp.zeros(()), state), two

    sharpness_aware(1.0, only="params/head")(Recorder(), two, {}, BATCH, view(np.arange(30), 30), KEY)
    assert_near(seen[1], {"head": [4.0], "body": [4.0]})


def test_radius_or_mixture_zero_is_the_plain_gradient():
    assert sharpness_aware(0.0) is plain_gradient
    assert sharpness_aware(0.1, mix=0.0) is plain_gradient


def test_an_unknown_option_is_refused():
    with pytest.raises(InputError, match="norm: unknown option"):
        sharpness_aware(0.1, "layer")
    with pytest.raises(InputError, match="adaptive: unknown option"):
        sharpness_aware(0.1, adaptive="kernels")
