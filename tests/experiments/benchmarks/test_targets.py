"""Devices that are compiled for without being there: what is refused, and what their rates make of costs."""

import importlib.util

import pytest

from experiments.benchmarks import targets
from experiments.benchmarks.costs import Costs
from fedjax_het.errors import InputError

CHIP = targets.Chip({"default": 50.0, "highest": 25.0}, memory=10.0, links=1.0)


def test_the_estimate_is_the_slower_of_arithmetic_and_memory_and_then_the_collectives():
    collectives = {"all-reduce": 3.0, "all-gather": 1.0}
    costs = Costs(flop={"default": 200.0, "highest": 50.0}, bytes=20.0, collectives=collectives)
    assert targets.estimate_seconds(costs, CHIP) == 6 + 4
    assert targets.estimate_seconds(Costs(bytes=20.0), CHIP) == 2


def test_a_product_of_unknown_rate_is_an_error():
    with pytest.raises(KeyError, match="float64"):
        targets.estimate_seconds(Costs(flop={"float64": 1.0}), CHIP)


@pytest.mark.parametrize("name", targets.CHIPS)
def test_the_more_exact_a_product_the_slower_it_is(name):
    rates = [targets.CHIPS[name].products[kind] for kind in ("bfloat16", "default", "high", "highest")]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("topology", ["v5e:2x2", "h100", "h100:", "h100:0", "h100:2x2", "b17:1"])
def test_what_is_no_number_of_known_gpus_is_refused_with_those_that_are_known(topology):
    with pytest.raises(InputError, match="Write h100:1 or a100:1 or l4:1"):
        targets.find_target("cuda", topology)


def test_a_topology_is_refused_for_a_cpu():
    with pytest.raises(InputError, match="--topology: 'v5e:1x1' is no part of --platform=cpu"):
        targets.find_target("cpu", "v5e:1x1")


@pytest.mark.parametrize(("platform", "topology", "extra"), [("tpu", "v5e:1x1", "tpu"), ("cuda", "h100:1", "cuda12")])
def test_a_missing_compiler_is_named_with_how_to_install_it(platform, topology, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf'pip install "fedjax-het\[{extra}\]"'):
        targets.find_target(platform, topology)


@pytest.mark.parametrize(("topology", "platform"), [("v5e:2x2", "tpu"), ("h100:1", "cuda"), ("l4:4", "cuda")])
def test_the_platform_follows_from_the_topology(topology, platform):
    assert targets.platform_of(topology) == platform


def test_gpus_are_described_with_the_rates_that_estimates_take():
    assert targets.GPUS.keys() <= targets.CHIPS.keys()
    text = targets.describe_gpu(targets.GPUS["h100"], targets.CHIPS["h100"])
    assert "memory_bandwidth: 3350000000000" in text
    assert "cuda_compute_capability { major: 9 minor: 0 }" in text
