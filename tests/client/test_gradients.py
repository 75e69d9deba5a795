import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het.client.gradients import full_gradient, perturbation, sharpness_aware
from fedjax_het.errors import InputError
from tests.client.test_local_updates import INPUTS, LABELS, PROBLEM, WEIGHTS, view

GRADIENT = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}


def test_a_perturbation_has_the_requested_radius():
    assert float(tree.norm(perturbation(GRADIENT, 0.1))) == pytest.approx(0.1)
    each = perturbation(GRADIENT, 0.1, "tensor")
    assert [float(tree.norm(leaf)) for leaf in jax.tree.leaves(each)] == pytest.approx([0.1, 0.1])


def test_a_zero_gradient_gives_no_perturbation():
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(perturbation(tree.zeros_like(GRADIENT), 0.1)))


def test_the_scale_of_the_gradient_does_not_change_the_perturbation():
    scaled = perturbation(tree.scale(1e3, GRADIENT), 0.1)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), scaled, perturbation(GRADIENT, 0.1))


def test_an_unknown_norm_is_refused():
    with pytest.raises(InputError, match="norm: unknown option"):
        sharpness_aware(0.1, "layer")


@pytest.mark.parametrize("batch_size", [3, 7, 50])
def test_the_full_gradient_is_the_mean_over_examples_for_any_batch_size(batch_size):
    rows = np.arange(11)
    ours = full_gradient(PROBLEM, view(np.pad(rows, (0, 9)), 11), batch_size)["w"]
    scores = jax.nn.softmax(INPUTS[rows] @ WEIGHTS["w"])
    wanted = INPUTS[rows].T @ (scores - np.eye(3)[LABELS[rows]]) / 11
    np.testing.assert_allclose(ours, wanted, atol=1e-6)
