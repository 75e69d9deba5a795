import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.errors import InputError
from fedjax_het.server.summaries import mean_direction
from fedjax_het.types import ServerView, Upload

UPDATES = np.array([[-1.0, 2.0], [4.0, 0.0], [8.0, -8.0]], np.float32)
REACHES = jnp.array([0.5, 2.0, 4.0])
COUNTS = jnp.array([1.0, 3.0, 4.0])


def direction(is_present=(True, True, True), reaches=REACHES, **options):
    summary, shared = mean_direction(**options), {"params": {"w": jnp.zeros(2)}}
    uploads = Upload({"params": {"w": jnp.asarray(UPDATES)}}, {"momentum": reaches}, COUNTS, jnp.ones(3))
    uploads = tree.where(jnp.array(is_present), uploads, tree.zeros_like(uploads))
    updates, reports = StackedUpdates(uploads.update), StackedUpdates(uploads.reports["momentum"])
    view = ServerView(None, uploads, jnp.arange(3), jnp.array(is_present), 9, updates)
    return np.asarray(summary.update(summary.init(None, shared, 9, 3), reports, view)["w"])


def test_every_client_by_its_own_steps():
    np.testing.assert_allclose(direction(), -(UPDATES / np.asarray(REACHES)[:, None]).mean(axis=0), rtol=1e-6)


def test_the_mean_update_by_the_mean_steps():
    wanted = -UPDATES.mean(axis=0) / np.mean(REACHES)
    np.testing.assert_allclose(direction(normalisation="cohort"), wanted, rtol=1e-6)


@pytest.mark.parametrize("normalisation", ["client", "cohort"])
def test_equal_steps_make_both_the_same(normalisation):
    ours = direction(reaches=jnp.full(3, 0.5), normalisation=normalisation)
    np.testing.assert_allclose(ours, -2 * UPDATES.mean(axis=0), rtol=1e-6)


def test_weighted_by_examples():
    wanted = -np.asarray(COUNTS) / 8 @ (UPDATES / np.asarray(REACHES)[:, None])
    np.testing.assert_allclose(direction(weighting="samples"), wanted, rtol=1e-6)


@pytest.mark.parametrize("normalisation", ["client", "cohort"])
def test_absent_and_idle_clients_are_left_out(normalisation):
    ours = direction((True, False, True), jnp.array([0.5, 2.0, 0.0]), normalisation=normalisation)
    np.testing.assert_allclose(ours, -UPDATES[0] / 0.5, rtol=1e-6)


def test_nobody_moved():
    assert not np.any(direction(reaches=jnp.zeros(3)))


def test_unknown_options():
    with pytest.raises(InputError, match=r"normalisation: unknown option 'clients'\. Did you mean 'client'"):
        mean_direction(normalisation="clients")
    with pytest.raises(InputError, match="weighting: unknown"):
        mean_direction("equal")
