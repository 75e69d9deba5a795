"""FedNova's normalized mean and FedRD's sum of models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.algorithm import Weighting
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import mean, normalized_mean, sum_of_models
from fedjax_het.types import Broadcast, ServerView, Upload
from tests.golden.replay import aggregate

RNG = np.random.default_rng(0)
STACK = RNG.normal(size=(4, 30)).astype(np.float32)
COUNTS = np.array([3, 1, 4, 2])
NORMS = jnp.array([2.0, 5.0, 1.0, 3.0])


def combine_vectors(stack=STACK, counts=COUNTS, norms=NORMS, **options):
    reports = {"a_norm": jnp.asarray(norms, jnp.float32)}
    update, _ = aggregate(normalized_mean(**options), {"params": {"w": stack}}, counts, reports)
    return update["params"]["w"]


def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(a, b, atol=tolerance * np.abs(b).max())


def test_the_normalized_mean_matches_its_formula():
    shares = COUNTS / COUNTS.sum()
    directions = shares @ (STACK / np.asarray(NORMS)[:, None])
    close(combine_vectors(), shares @ np.asarray(NORMS) * directions)
    close(combine_vectors(tau_eff=7.0), 7 * directions)
    close(combine_vectors(tau_eff="steps"), directions)  # everyone on this stage took one step


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_with_equal_norms_the_normalized_mean_is_the_mean(weighting):
    plain, _ = aggregate(mean(weighting), {"params": {"w": STACK}}, COUNTS)
    close(combine_vectors(norms=np.full(4, 3.7), weighting=weighting), plain["params"]["w"])


def test_a_single_client_gives_its_update():
    close(combine_vectors(STACK[:1], COUNTS[:1], NORMS[:1]), STACK[0])


def test_the_order_of_clients_does_not_matter():
    order = RNG.permutation(4)
    close(combine_vectors(STACK[order], COUNTS[order], NORMS[order]), combine_vectors())


def test_clients_without_work_or_examples_are_left_out():
    present = np.array([0, 2])
    wanted = combine_vectors(STACK[present], COUNTS[present], NORMS[present])
    idle = STACK.copy()
    idle[1] = 1e6  # whoever did not work has not moved, but let it
    close(combine_vectors(idle, np.array([3, 1, 4, 0]), jnp.array([2.0, 0.0, 1.0, 3.0])), wanted)


def test_without_work_the_update_is_zero():
    assert not np.any(combine_vectors(norms=np.zeros(4)))


def test_other_collections_use_the_plain_mean():
    stack = {"params": {"w": STACK}, "batch_stats": {"var": np.abs(STACK)}}
    update, _ = aggregate(normalized_mean(), stack, COUNTS, {"a_norm": NORMS})
    close(update["batch_stats"]["var"], COUNTS / COUNTS.sum() @ np.abs(STACK))


def test_the_error_for_a_missing_norm_names_the_report():
    with pytest.raises(InputError, match=r"reads reports\['a_norm'\].*coefficient_norm"):
        aggregate(normalized_mean(), {"params": {"w": STACK}})


@pytest.mark.parametrize("tau_eff", ["step", 0, -1.0, float("inf")])
def test_invalid_values_of_tau_eff_are_refused(tau_eff):
    with pytest.raises(InputError, match="tau_eff"):
        normalized_mean(tau_eff=tau_eff)


def test_tau_eff_can_be_traced():
    close(jax.jit(lambda tau: combine_vectors(tau_eff=tau))(7.0), combine_vectors(tau_eff=7.0))


GENERATOR = np.random.default_rng(0)
START, MODELS = GENERATOR.normal(size=(4, 2)), GENERATOR.normal(size=(3, 4, 2))


def apply_to_models(aggregator) -> np.ndarray:
    upload = Upload({}, {}, jnp.arange(1.0, 4.0), jnp.ones(3))
    received = Broadcast(jnp.zeros((), int), {"params": {"w": jnp.asarray(START)}}, {})
    updates = StackedUpdates({"params": {"w": jnp.asarray(MODELS - START)}})
    view = ServerView(received, upload, jnp.arange(3), jnp.ones(3, bool), 3, updates)
    aggregate, _ = aggregator.update(None, aggregator.init(received.shared, 3), view)
    return START + aggregate.update["params"]["w"]


@pytest.mark.extended
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_with_weights_that_sum_to_one_the_sum_of_models_is_the_mean(weighting):
    np.testing.assert_allclose(apply_to_models(sum_of_models(weighting)), apply_to_models(mean(weighting)), atol=1e-5)


def test_with_weights_below_one_the_sum_of_models_shrinks():
    weights = np.array([0.1, 0.2, 0.3])
    weighting = Weighting(lambda shared, num_clients: (), lambda state, view: (jnp.asarray(weights), state))
    np.testing.assert_allclose(apply_to_models(sum_of_models(weighting)), np.tensordot(weights, MODELS, 1), atol=1e-6)
