"""Combinations of parts of several papers, and ablations of a paper's parts."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from fedjax_het import sharing, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedadam, fedga, fedprox
from fedjax_het.engine.round.program import make_round
from tests.harness import TINY, compose, difference, federation, model, reference_run, run, task_loss

pytestmark = pytest.mark.extended

ABLATIONS = [
    pytest.param("fedld", {"principal": False}, id="fedld-margin-only"),
    pytest.param("fedld", {"lam": 0.0}, id="fedld-principal-only"),
    pytest.param("fedrd", {"debiased": False}, id="fedrd-without-debiased-classifier"),
    pytest.param("fedrd", {"guided": False}, id="fedrd-without-global-aggregation"),
    pytest.param("harmofl", {"alpha": 0.0}, id="harmofl-amplitude-only"),
    pytest.param("harmofl", {"band": None}, id="harmofl-perturbation-only"),
    pytest.param("fedmgc", {"dominant": False}, id="fedmgc-focal-only"),
    pytest.param("fedavg_dgc", {}, id="fedmgc-dgc-only"),
]


@pytest.mark.parametrize(("name", "options"), ABLATIONS)
def test_an_ablation_learns_and_differs_from_the_full_method_and_fedavg(name, options):
    round = compose(name, options=options)
    before = round.init(make_key(0), federation().data)
    after, _ = run(round)
    whole = reference_run("fedmgc" if name == "fedavg_dgc" else name)[0]
    assert task_loss(round, after) < task_loss(round, before)
    assert difference(whole.server.shared["params"], after.server.shared["params"]) > 1e-4
    assert difference(reference_run("fedavg")[0].server.shared["params"], after.server.shared["params"]) > 1e-4


@pytest.mark.slow
def test_fedga_fedprox_fedbn_and_fedadam_can_be_combined():
    weighted = fedga(**TINY)
    mixture = replace(
        fedprox(mu=0.1, **TINY),
        memory=weighted.memory,
        reports=weighted.reports,
        aggregator=weighted.aggregator,
        sharing=sharing.batch_norms,
        server_optimizer=fedadam().server_optimizer,
    )
    round = make_round(mixture, model(), 5, prepare=federation().prepare)
    before = round.init(make_key(0), federation().data)
    after, _ = run(round, rounds=20)
    assert task_loss(round, after) < 0.8 * task_loss(round, before)
    assert np.ptp(after.server.aggregator.weights) > 1e-3
    norms = after.clients.personal["params"]
    assert norms
    assert not set(tree.paths(norms)) & set(tree.paths(after.server.shared["params"]))
    assert difference(jax.tree.map(lambda x: x[:1], norms), jax.tree.map(lambda x: x[1:2], norms)) > 1e-3
