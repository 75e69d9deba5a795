"""Options that would have no effect beside the others are refused."""

from dataclasses import replace

import pytest

from fedjax_het import algorithms, data, participation, timing, uplink
from fedjax_het.engine import Simulation
from fedjax_het.errors import InputError
from fedjax_het.server import aggregators
from tests.harness import algorithm, federation, model

PRIVATE = {"norm": 1.0, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("factory", "others", "option", "value", "reason"),
    [
        (uplink.gaussian_mechanism, PRIVATE, "count_noise", 1.0, "without target_quantile"),
        (uplink.gaussian_mechanism, PRIVATE, "quantile_rate", 0.1, "without target_quantile"),
        (uplink.gaussian_mechanism, PRIVATE, "bounded_fraction", True, "without target_quantile"),
        (timing.log_normal, {}, "late", "drop", "without a deadline"),
        (timing.from_file, {"path": "speeds.csv"}, "late", "drop", "without a deadline"),
        (timing.log_normal, {"sigma": 0.0}, "speed_seed", 1, "with sigma=0"),
        (aggregators.trimmed_mean, {}, "bucket_size", 3, "without 'bucketing' in before"),
        (aggregators.krum, {"before": ("nnm",)}, "seed", 1, "without 'bucketing' in before"),
        (aggregators.geometric_median, {"before": ("arc",)}, "clip_norm", 1.0, "without 'clip' in before"),
        (uplink.attack_sign_flip, {"clients": (1,)}, "seed", 1, "with clients"),
        (data.flip_labels, {"clients": (1,)}, "seed", 0, "with clients"),
        (aggregators.principal_directions, {}, "projection", "cosine", "with correction='per_axis'"),
        (aggregators.harmonized_mean, {}, "seed", 1, "with pair_order='lexicographic'"),
        (algorithms.fedsam, {}, "swa_cycle", 5, "without swa_start"),
        (algorithms.fedasam, {}, "swa_cycle", 5, "without swa_start"),
        (algorithms.fedbabu, {"fine_tune_epochs": 0}, "fine_tune_part", "head", "with fine_tune_epochs=0"),
        (algorithms.fedbabu, {"fine_tune_epochs": 0}, "fine_tune_learning_rate", 0.1, "with fine_tune_epochs=0"),
        (algorithms.term, {"normalised": False}, "weighting", "samples", "with normalised=False"),
        (algorithms.fedpac, {"collaborate": False}, "threshold", 0.1, "with collaborate=False"),
        (algorithms.fedld, {"principal": False}, "fraction", 0.5, "with principal=False"),
        (algorithms.fedmgc, {"dominant": False}, "fraction", 0.3, "with dominant=False"),
        (algorithms.feddisco, {"metric": "l2"}, "normalise_kl", False, "with metric='l2'"),
        (algorithms.fedrd, {"debiased": False}, "divergence", "frobenius", "with debiased=False"),
        (algorithms.fedrd, {"epochs": 1}, "divergence", "frobenius", "with one epoch per round"),
        (algorithms.fedrd, {"guided": False}, "distance", "cosine", "with guided=False"),
        (algorithms.fedrep, {"head_epochs": 0}, "head_learning_rate", 0.1, "without epochs of the head"),
    ],
)
def test_an_option_without_effect_beside_the_others_is_refused(factory, others, option, value, reason):
    with pytest.raises(InputError, match=f"^{option}: has no effect {reason}"):
        factory(**others, **{option: value})


def test_options_at_their_defaults_are_accepted():
    uplink.gaussian_mechanism(**PRIVATE, quantile_rate=0.2, count_noise=None, bounded_fraction=False)
    timing.log_normal(late="partial", speed_seed=0)
    aggregators.principal_directions(projection="orthogonal", correction="per_axis")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"participation": participation.poisson(0.5, slots=6)}, "slots: 6 slots for 5 clients"),
        (
            {"aggregator": aggregators.multi_krum(1, 6)},
            {},
            "num_selected: expected at most 5, the updates of a round, got 6",
        ),
        ({"uplink": (uplink.attack_gaussian(fraction=0.05),)}, {}, "fraction: 0.05 of 5 clients rounds to no attacker"),
    ],
)
def test_an_option_without_effect_on_this_federation_is_refused(change, options, message):
    chosen = replace(algorithm("fedavg"), **change)
    with pytest.raises(InputError, match=message):
        Simulation(chosen, model("none"), federation(), rounds=1, **options)
