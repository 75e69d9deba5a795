"""Laws of the accounting, and refusals."""

import sys

import pytest

from fedjax_het.cli.__main__ import main
from fedjax_het.errors import InputError
from fedjax_het.privacy import (
    FixedSizeSampling,
    LocalNoise,
    PoissonSampling,
    epsilon,
    noise_multiplier,
)

DELTA = 1e-5


def test_epsilon_falls_with_noise_and_delta_and_grows_with_rounds_and_sampling():
    smallest = epsilon(2.0, PoissonSampling(0.05), 50, DELTA, "rdp")
    for more in (
        epsilon(1.5, PoissonSampling(0.05), 50, DELTA, "rdp"),
        epsilon(2.0, PoissonSampling(0.1), 50, DELTA, "rdp"),
        epsilon(2.0, PoissonSampling(0.05), 60, DELTA, "rdp"),
        epsilon(2.0, PoissonSampling(0.05), 50, 1e-6, "rdp"),
        epsilon(2.0, FixedSizeSampling(100, 5), 50, DELTA),
        epsilon(2.0, PoissonSampling(1.0), 50, DELTA, "rdp"),
    ):
        assert more > smallest * 1.05
    assert epsilon(2.0, PoissonSampling(0.05), 0, DELTA) == 0
    assert epsilon(0.0, PoissonSampling(0.05), 1, DELTA) == float("inf")


def test_rounds_of_everyone_are_one_round_with_less_noise():
    single, many = epsilon(3.0, PoissonSampling(1.0), 1, DELTA), epsilon(12.0, PoissonSampling(1.0), 16, DELTA)
    assert many == pytest.approx(single, rel=1e-3)


@pytest.mark.slow
def test_places_for_all_clients_are_no_truncation_and_fewer_cost_more():
    plain = epsilon(2.0, PoissonSampling(0.1), 20, DELTA)
    assert epsilon(2.0, PoissonSampling(0.1, 50, 50), 20, DELTA) == plain
    assert epsilon(2.0, PoissonSampling(0.1, 50, 20), 20, DELTA) == pytest.approx(plain, rel=1e-2)
    assert epsilon(2.0, PoissonSampling(0.1, 50, 5), 20, DELTA) > 1.2 * plain


@pytest.mark.extended
def test_replacing_a_client_costs_twice_the_sensitivity_with_either_accountant():
    """A fixed cohort of everyone, and noise at clients, are plain Gaussians of sensitivity 2 C."""
    added = epsilon(2.0, PoissonSampling(1.0), 10, DELTA, "rdp")
    assert epsilon(4.0, FixedSizeSampling(10, 10), 10, DELTA) == pytest.approx(added, rel=1e-2)
    assert epsilon(4.0, LocalNoise(), 10, DELTA, "rdp") == pytest.approx(added, rel=1e-9)
    assert epsilon(4.0, LocalNoise(), 10, DELTA) == pytest.approx(epsilon(2.0, PoissonSampling(1.0), 10, DELTA), 1e-3)


@pytest.mark.slow
def test_the_noise_for_an_epsilon_gives_that_epsilon():
    for sampling in (PoissonSampling(0.2), FixedSizeSampling(50, 10)):
        z = noise_multiplier(3.0, sampling, 10, DELTA, "rdp")
        assert epsilon(z, sampling, 10, DELTA, "rdp") == pytest.approx(3.0, rel=1e-4)
    with pytest.raises(InputError, match="epsilon: 100000 needs a noise_multiplier below"):
        noise_multiplier(1e5, PoissonSampling(0.2), 10, DELTA, "rdp")


@pytest.mark.parametrize(
    ("sampling", "accountant", "message"),
    [
        (FixedSizeSampling(10, 2), "pld", "fixed size"),
        (PoissonSampling(0.1, 50, 20), "rdp", "fixed number of places"),
        (PoissonSampling(0.1), "gdp", "accountant"),
    ],
)
def test_an_accountant_without_a_bound_is_refused(sampling, accountant, message):
    with pytest.raises(InputError, match=message):
        epsilon(1.0, sampling, 10, DELTA, accountant)


def test_a_missing_accountant_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"dp-accounting, which is not installed.*fedjax-het\[privacy\]"):
        epsilon(1.25, PoissonSampling(0.1), 3, DELTA)


def test_a_large_epsilon_is_computed_on_a_coarser_grid_within_seconds():
    assert epsilon(0.1, PoissonSampling(0.1), 512, 1e-6) == pytest.approx(4115.63, rel=1e-3)


@pytest.mark.slow
def test_the_noise_for_a_large_epsilon_and_few_places_is_found():
    sampling = PoissonSampling(0.5, 12, 7)
    z = noise_multiplier(30.0, sampling, 10, 1e-3)
    assert epsilon(z, sampling, 10, 1e-3) == pytest.approx(30.0, rel=1e-3)


POISSON = ["--probability=0.1", "--rounds=512", "--delta=1e-6"]
COHORT = ["--cohort_size=5", "--num_clients=9", "--rounds=5", "--delta=1e-6"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--noise_multiplier=3", *POISSON], "epsilon 3.7697 at delta 1e-06 after 512 rounds"),
        pytest.param(["--epsilon=1", *POISSON], "noise multiplier 9.66183, Poisson", marks=pytest.mark.slow),
        pytest.param(
            ["--epsilon=2", "--probability=0.001", "--rounds=1500", "--delta=1e-6"],
            "noise multiplier 0.61614",
            marks=pytest.mark.slow,
        ),
        (
            ["--noise_multiplier=3", "--cohort_size=100", "--num_clients=1000", "--rounds=512", "--delta=1e-6"],
            "epsilon 23.764 at delta 1e-06 after 512 rounds, to replace one client",
        ),
    ],
)
def test_published_values_are_printed_by_the_command(arguments, expected, capsys):
    assert main(["privacy", *arguments]) == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--noise_multiplier=3", "--rounds=5", "--delta=1e-6"], "--probability"),
        (["--noise_multiplier=3", "--probability=2", "--rounds=5", "--delta=1e-6"], "probability: must be"),
        (["--noise_multiplier=3", "--cohort_size=9", "--rounds=5", "--delta=1e-6"], "--num_clients"),
        (["--noise_multiplier=3", "--probability=0.1", "--rounds=5", "--delta=1"], "delta"),
        (["--noise_multiplier=3", *POISSON, "--slots=0", "--num_clients=9"], "slots: must be"),
        (["--noise_multiplier=3", *POISSON, "--slots=-2", "--num_clients=9"], "slots: must be"),
        (["--noise_multiplier=3", *POISSON, "--slots=2"], "num_clients: give it together with slots"),
        (["--noise_multiplier=3", *POISSON, "--num_clients=-5"], "num_clients: must be"),
        (["--noise_multiplier=3", *POISSON, "--num_clients=5"], "num_clients: give it together with slots"),
        (["--noise_multiplier=3", *POISSON, "--noise_at=clients"], "--probability: has no effect with --noise_at"),
        (["--noise_multiplier=3", *COHORT, "--slots=4"], "--slots: has no effect with --cohort_size"),
        (["--noise_multiplier=3", "--cohort_size=9", "--num_clients=8", "--rounds=5", "--delta=1e-6"], "at most"),
        (["--noise_multiplier=1e-9", *POISSON], "too large for the accountant"),
        (["--noise_multiplier=1e-9", *POISSON, "--accountant=rdp"], "too large for the accountant"),
        (["--noise_multiplier=0.01", "--noise_at=clients", "--rounds=5", "--delta=1e-6"], "too large for the"),
        (["--epsilon=1e-12", *POISSON, "--accountant=rdp", "--rounds=2000000000"], "noise_multiplier above 1e+06"),
    ],
)
def test_wrong_arguments_of_the_command_are_refused_in_one_line(arguments, message, capsys):
    assert main(["privacy", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and err.startswith("error: ") and err.count("\n") == 1
