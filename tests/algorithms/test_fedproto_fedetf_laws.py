"""Laws of FedProto and FedETF."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.client.objectives._label_skew import balanced_losses
from fedjax_het.errors import InputError
from fedjax_het.models._simplex_frame import framed_logits, simplex_frame
from tests.harness import algorithm, compose, difference, federation, is_equal, run

pytestmark = pytest.mark.extended

RNG = np.random.default_rng(0)


def personal(name: str, rounds: int, **changes):
    return run(compose(name, norm="none", **changes), rounds=rounds)[0].clients.personal


@pytest.mark.slow
def test_fedproto_without_its_term_is_local_training():
    change = {name: getattr(algorithm("fedproto"), name) for name in ("sharing", "adapt")}
    alone = personal("fedavg", 2, change=change)
    assert difference(alone, personal("fedproto", 2, options={"lam": 0.0})) < 1e-6
    assert difference(alone, personal("fedproto", 2, options={"lam": 5.0})) > 1e-4
    assert (
        difference(alone["params"]["classifier"], tree.take(alone, np.array([1, 2, 3, 4, 0]))["params"]["classifier"])
        > 1e-2
    )


@pytest.mark.slow
def test_fedproto_sends_prototypes_and_no_weights_and_starts_without_a_term():
    round, data, key = compose("fedproto", norm="none"), federation().data, make_key(0)
    state, _, told = jax.jit(round.step_with_messages)(round.init(key, data), data, key)
    assert tree.num_entries(told.uploads.update) == 0 and tree.num_entries(told.received.shared) == 0
    report = told.uploads.reports["prototypes"]
    assert report["means"].shape == (5, 3, 8) and report["counts"].shape == (5, 3)
    has = np.asarray(report["counts"]) > 0
    expected = np.sum(np.where(has[..., None], report["means"], 0), axis=0) / has.sum(axis=0)[:, None]
    np.testing.assert_allclose(state.server.published["prototypes"]["means"], expected, rtol=1e-5, atol=1e-6)
    without = personal("fedproto", 1, options={"lam": 0.0})
    assert difference(without, state.clients.personal) < 1e-6


@pytest.mark.parametrize(("width", "num_classes"), [(8, 5), (6, 6), (3, 2)])
def test_a_simplex_frame_has_unit_columns_at_equal_angles(width, num_classes):
    frame = simplex_frame(RNG.uniform(size=(width, num_classes)))
    expected = np.eye(num_classes) * num_classes / (num_classes - 1) - 1 / (num_classes - 1)
    np.testing.assert_allclose(frame.T @ frame, expected, atol=1e-12)
    np.testing.assert_allclose(frame.sum(axis=1), 0, atol=1e-12)


def test_framed_logits_follow_directions_alone_and_vanish_for_the_zero_vector():
    frame = jnp.asarray(simplex_frame(RNG.uniform(size=(6, 4))), jnp.float32)
    features = jnp.asarray(RNG.normal(size=(5, 6)), jnp.float32).at[2].set(0.0)
    logits = framed_logits(features, frame, 2.0)
    np.testing.assert_allclose(framed_logits(7 * features, frame, 2.0), logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(logits.sum(axis=1), 0, atol=1e-5)
    gradient = jax.grad(lambda g: jnp.sum(jnp.square(framed_logits(g, frame, 2.0))))(features)
    assert not np.any(logits[2]) and not np.any(gradient[2])
    np.testing.assert_allclose(jnp.sum(gradient * features, axis=1), 0, atol=1e-4)


def test_balanced_losses_ignore_equal_counts_and_common_factors():
    logits, labels = jnp.asarray(RNG.normal(size=(6, 3))), np.array([0, 1, 2, 0, 1, 2])
    plain = balanced_losses(logits, labels, jnp.ones(3))
    np.testing.assert_allclose(balanced_losses(logits, labels, jnp.full(3, 9.0)), plain, rtol=1e-5)
    counts = jnp.array([3.0, 10.0, 1.0])
    skewed = balanced_losses(logits, labels, counts)
    np.testing.assert_allclose(balanced_losses(logits, labels, 4 * counts), skewed, rtol=1e-5)
    np.testing.assert_allclose(balanced_losses(logits, labels, counts, 0.0), plain, rtol=1e-5)
    missing = jnp.array([3.0, 10.0, 0.0])  # counts as one example
    np.testing.assert_allclose(balanced_losses(logits, labels, missing), skewed, rtol=1e-6)


@pytest.mark.slow
def test_fedetf_trains_projection_and_scale_and_sends_no_frame():
    round = compose("fedetf", norm="none", options={"width": 5})
    start = round.init(make_key(0), federation().data).server.shared
    assert start["params"]["projection"]["kernel"].shape == (8, 5)
    assert set(start["params"]["classifier"]) == {"scale", "classes"}
    trained = run(round, rounds=1)[0].server.shared
    assert not is_equal(start["params"]["projection"], trained["params"]["projection"])
    assert float(trained["params"]["classifier"]["scale"]) != 10
    other = run(compose("fedetf", norm="none", options={"width": 5, "frame_seed": 1}), rounds=1)[0].server.shared
    assert difference(trained, other) > 1e-4


def test_a_frame_of_too_few_dimensions_is_refused():
    with pytest.raises(InputError, match=r"^width: 2 dimensions hold frames of 2 to 2 vectors, not 3"):
        compose("fedetf", norm="none", options={"width": 2}).init(make_key(0), federation().data)
