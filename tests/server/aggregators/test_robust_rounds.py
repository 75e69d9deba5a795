"""Robust rules in whole rounds: the same in every layout, with a state that is kept, and with absent clients."""

import jax
import pytest

from fedjax_het import aggregators, tree
from fedjax_het.algorithm import Aggregator
from fedjax_het.engine.parallel.layout import chunked, sharded
from fedjax_het.engine.round.participation import bernoulli
from fedjax_het.types import Aggregate
from fedjax_het.uplink import attack_mimic
from tests.harness import ROUNDING, compose, difference, run

RULES = (
    aggregators.multi_krum(1, before=("nnm",)),
    aggregators.trimmed_mean(1),
    aggregators.coordinate_median(0, before=("bucketing",)),
    aggregators.centred_clipping(),
    aggregators.geometric_median(),
)


def mean_of_rules() -> Aggregator:
    """All rules in one program."""

    def update(problem, state, view):
        decided = [rule.update(problem, rule_state, view) for rule, rule_state in zip(RULES, state, strict=True)]
        total = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *(aggregate.update for aggregate, _ in decided))
        return Aggregate(total, {}), tuple(rule_state for _, rule_state in decided)

    init = lambda shared, num_clients: tuple(rule.init(shared, num_clients) for rule in RULES)  # noqa: E731
    return Aggregator(init, update, reads="gram")


@pytest.mark.slow
def test_rules_and_a_mimic_agree_in_every_layout():
    change = {"aggregator": mean_of_rules(), "uplink": (attack_mimic(clients=(4,)),)}
    options = {"change": change, "options": {"weighting": "uniform"}, "participation": bernoulli(0.7)}
    expected, metrics = run(compose("fedavg", **options))
    assert any(metric.num_reporting < 5 for metric in metrics)
    centre = expected.server.aggregator[3]
    assert float(tree.norm(centre)) > 0
    for layout in (chunked(2), sharded(2)):
        state, _ = run(compose("fedavg", layout=layout, **options))
        assert difference(expected.server.shared, state.server.shared) < ROUNDING
        assert difference(expected.server.uplink, state.server.uplink) < 10 * ROUNDING
