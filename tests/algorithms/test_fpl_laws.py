"""Laws of FPL."""

import jax
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from tests.harness import compose, difference, federation, run

pytestmark = pytest.mark.extended


@pytest.mark.slow
def test_fpl_begins_as_fedavg_and_then_follows_the_published_clusters():
    round, data, key = compose("fpl", norm="none"), federation().data, make_key(0)
    step = jax.jit(round.step_with_messages)
    first, _, told = step(round.init(key, data), data, key)
    fedavg = compose("fedavg", norm="none")
    assert difference(run(fedavg, rounds=1)[0].server.shared["params"], first.server.shared["params"]) < 1e-6
    published, report = first.server.published["prototypes"], told.uploads.reports["prototypes"]
    assert published["clusters"].shape == (3, 2, 8) and report["means"].shape == (5, 3, 8)
    num_clusters = np.asarray(published["is_cluster"]).sum(axis=1)
    np.testing.assert_array_equal(published["is_known"], (np.asarray(report["counts"]) > 0).any(axis=0))
    expected = np.sum(published["clusters"], axis=1) / np.maximum(num_clusters, 1)[:, None]
    np.testing.assert_allclose(published["means"], expected, rtol=1e-5, atol=1e-6)
    assert tree.num_entries(told.uploads.update) == 5 * tree.num_entries(first.server.shared)

    second = step(first, data, key)[0]
    unknown = jax.tree.map(np.zeros_like, first.server.published)
    plain, _, _ = step(first._replace(server=first.server._replace(published=unknown)), data, key)
    assert difference(plain.server.shared, second.server.shared) > 1e-3
    assert difference(run(fedavg, rounds=2)[0].server.shared["params"], plain.server.shared["params"]) < 1e-6
