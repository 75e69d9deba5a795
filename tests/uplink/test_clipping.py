"""Clipping of updates to a norm."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het import tree
from fedjax_het.uplink import clip

UPDATE = {"params": {"w": np.array([[3.0, 0.0], [0.0, 4.0]], np.float32), "b": np.array([0.0, 12.0], np.float32)}}


@pytest.mark.extended
@settings(max_examples=20, deadline=None)
@given(bound=st.floats(1e-3, 12.9), scale=st.floats(1, 1e6))
def test_a_longer_update_ends_at_the_bound_in_its_own_direction(bound, scale):
    update = tree.scale(np.float32(scale), UPDATE)
    clipped = clip(bound).send(update, None).update
    assert float(tree.norm(clipped)) == pytest.approx(bound, rel=1e-5)
    ratios = [c[u != 0] / u[u != 0] for c, u in zip(jax.tree.leaves(clipped), jax.tree.leaves(update), strict=True)]
    np.testing.assert_allclose(np.concatenate(ratios), bound / (13 * scale), rtol=1e-5)


@pytest.mark.parametrize("bound", [13.0, 13.1, 1e9])
def test_an_update_within_the_bound_keeps_its_bits(bound):
    clipped = clip(bound).send(UPDATE, None).update
    for first, second in zip(jax.tree.leaves(clipped), jax.tree.leaves(UPDATE), strict=True):
        np.testing.assert_array_equal(first, second)


def test_zeros_stay_zeros():
    zeros = tree.zeros_like(UPDATE)
    for leaf in jax.tree.leaves(clip(1.0).send(zeros, None).update):
        np.testing.assert_array_equal(leaf, 0)


def test_layers_are_clipped_by_themselves_to_a_share_of_the_bound():
    clipped = clip(2.0, per_layer=True).send(UPDATE, None).update["params"]
    for leaf in jax.tree.leaves(clipped):
        assert np.linalg.norm(leaf) == pytest.approx(2 / 2**0.5, rel=1e-6)
    assert float(tree.norm(clipped)) == pytest.approx(2.0, rel=1e-6)
