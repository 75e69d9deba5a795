import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.errors import InputError
from fedjax_het.server.weightings import WEIGHTINGS, resolve_weighting
from fedjax_het.types import ServerView, Upload

counts_and_presence = st.lists(st.tuples(st.integers(0, 500), st.booleans()), min_size=1, max_size=9)


def weigh(name, counts, is_present):
    upload = Upload({}, {}, jnp.asarray(counts, float), jnp.ones(len(counts)))
    view = ServerView(None, upload, jnp.arange(len(counts)), jnp.asarray(is_present), len(counts), None)
    weighting = resolve_weighting(name)
    return np.asarray(weighting.update(weighting.init({}, len(counts)), view)[0])


@pytest.mark.extended
@pytest.mark.parametrize("name", WEIGHTINGS)
@given(clients=counts_and_presence, seed=st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_weights_sum_to_one_over_present_clients_in_any_order(name, clients, seed):
    counts, present = np.array([max(n, p) for n, p in clients]), np.array([p for _, p in clients])
    weights = weigh(name, counts, present)
    assert np.all(weights >= 0) and np.all(weights[~present] == 0)
    assert weights.sum() == pytest.approx(1.0 if present.any() else 0.0, abs=1e-6)
    order = np.random.default_rng(seed).permutation(len(counts))
    np.testing.assert_allclose(weigh(name, counts[order], present[order]), weights[order], rtol=1e-6)


def test_weighting_samples_gives_shares_of_examples():
    np.testing.assert_allclose(weigh("samples", [1, 3, 6], [True, True, False]), [0.25, 0.75, 0.0])


def test_an_unknown_weighting_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'uniform'"):
        resolve_weighting("unifrom")
