"""Training with privacy of single examples: the noise of each client, the epsilon of each client, and errors."""

import csv
import json

import jax
import numpy as np
import pytest

from fedjax_het import privacy
from fedjax_het._internal.keys import make_key
from fedjax_het.cli import train
from fedjax_het.cli.__main__ import main
from fedjax_het.cli.configuration import build, build_data, settings
from fedjax_het.cli.configuration.record_privacy import Account
from fedjax_het.engine.round.participation import bernoulli, count_draws, derive_keys, full, poisson, uniform, waiting

FILE = """
def get_config():
    return dict(
        algorithm=dict(name="fedavg", batch_size=8, steps=3),
        model=dict(name="mlp", hidden=()),
        data=dict(name="digits", num_clients=4, partition=dict(name="dirichlet", alpha=0.5)),
        record_privacy=dict(norm=1.0, target_epsilon=3.0, delta=1e-4),
        cohort_size=2, rounds=4, evaluate_every=2, checkpoint_every=2, layout="vmapped",
    )
"""


@pytest.fixture
def start(tmp_path, capsys):
    """Run with these overrides; return (exit status, what was printed)."""
    (tmp_path / "private.py").write_text(FILE)

    def run(*overrides: str, workdir: str = "run") -> tuple[int, str]:
        paths = [f"--config={tmp_path / 'private.py'}", f"--workdir={tmp_path / workdir}"]
        status = train.main([*paths, *overrides])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


@pytest.mark.slow
def test_a_target_finds_the_noise_of_each_client_and_every_client_has_its_epsilon(start, tmp_path):
    status, out = start()
    words = " ".join(out.split())
    assert status == 0 and "at delta 0.0001 after 4 rounds, to add or remove one example" in words
    with (tmp_path / "run" / "per_client.csv").open() as file:
        rows = list(csv.DictReader(file))
    noise = json.loads((tmp_path / "run" / "resolved.json").read_text())["record_noise"]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["record_privacy"]["noise_multiplier"] == noise
    found = np.array([float(row["record_epsilon"]) for row in rows])
    trained = found > 0
    assert np.all((found[trained] >= 2.997) & (found[trained] <= 3)) and trained.any()
    assert f"epsilon at most {found.max():.4g}" in words
    sizes = np.array([int(row["num_train"]) for row in rows])
    steps = [privacy.record_epsilons(privacy.RecordPrivacy(1.0, noise), 8, sizes, [3 * k] * 4, 1e-4) for k in range(5)]
    assert all(any(np.isclose(steps[k][i], found[i]) for k in range(5)) for i in range(4))
    # A stopped run resumes with the same noise and results; another target is another run.
    (tmp_path / "run" / "checkpoints" / "4").rename(tmp_path / "4")
    for name in ("summary.json", "per_client.csv"):
        (tmp_path / "run" / name).rename(tmp_path / name)
    status, out = start()
    assert status == 0, out
    assert (tmp_path / "run" / "per_client.csv").read_text() == (tmp_path / "per_client.csv").read_text()
    status, message = start("--config.record_privacy.target_epsilon=4")
    assert status == 2 and "config.record_privacy.target_epsilon: 3.0 / 4.0" in message
    status, message = start("--config.rounds=8")
    assert status == 2 and "The noise keeps config.record_privacy.target_epsilon" in message


GIVEN = ["--config.record_privacy.target_epsilon=none", "--config.record_privacy.noise_multiplier=1"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--config.record_privacy.noise_multiplier=1,2", GIVEN[0]], "2 numbers for 4 clients"),
        (["--config.record_privacy.target_epsilon=none"], "config.record_privacy.target_epsilon: neither is set"),
        (["--config.record_privacy.noise_multiplier=1"], "config.record_privacy.target_epsilon: both are set"),
        (["--config.record_privacy.delta=1"], "config.record_privacy.delta"),
        (["--config.record_privacy.norm=0"], "config.record_privacy.norm"),
        (["--config.record_privacy.delta=0.5"], "delta: 0.5 allows the release of single examples"),
        (["--config.algorithm.steps=none", *GIVEN], "steps: not set, and with record_privacy there are no epochs"),
        (["--config.model.norm=batch", "--config.model.hidden=4,", *GIVEN], "mixes the examples of a batch"),
        (["--config.data.standardise=true", *GIVEN], "standardise: the moments of all clients' examples"),
        (["--config.algorithm.name=fedsam", *GIVEN], "several gradients per step"),
    ],
)
def test_what_breaks_the_guarantee_is_refused_before_anything_is_written(start, tmp_path, overrides, message):
    status, out = start(*overrides)
    assert status == 2 and message in out and out.count("error: ") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.extended
def test_draws_are_counted_as_rounds_draw_them_and_bounded_where_they_depend_on_others():
    keys = jax.random.split(make_key(0), 2)
    for rule in (uniform(2), poisson(0.4, slots=2), bernoulli(0.5)):
        expected = np.zeros((2, 5), int)
        for run, key in enumerate(keys):
            for number in range(6):
                cohort, is_here = rule.draw(derive_keys(key, number)[0], 5, number)
                np.add.at(expected[run], np.asarray(cohort), np.asarray(is_here))
        assert np.array_equal(count_draws(rule, 5, 6, keys), expected)
    assert np.all(count_draws(full(), 5, 6, keys) == 6)
    assert np.all(count_draws(waiting(1, 4), 5, 6, keys) == 2)


@pytest.mark.extended
def test_the_largest_epsilon_of_a_run_is_that_of_its_smallest_client():
    """Not that of the pooled data, which is smaller."""
    chosen = {"algorithm": {"name": "fedavg", "batch_size": 8, "steps": 3}, "rounds": 4}
    chosen["data"] = {"name": "digits", "num_clients": 4, "partition": {"name": "dirichlet", "alpha": 0.5}}
    chosen["record_privacy"] = {"norm": 1.0, "noise_multiplier": 1.2, "delta": 1e-4, "accountant": "rdp"}
    complete, _ = settings.complete_settings(chosen)
    _, federation = build_data.build_federation(complete["data"])
    account = Account(complete, build.build_algorithm(complete).local_update, federation, full())
    epsilons, sizes = account.epsilons(4)[0], np.asarray(federation.data.train.count)
    assert np.argmax(epsilons) == np.argmin(sizes) and f"{epsilons.max():.4g}" in account.describe()
    pooled = privacy.record_epsilons(privacy.RecordPrivacy(1.0, 1.2), 8, [sizes.sum()], [12], 1e-4, "rdp")
    assert pooled[0] < epsilons.min()


def test_the_command_accounts_steps_on_examples(capsys):
    arguments = ["--probability=0.1", "--rounds=20", "--delta=1e-4", "--accountant=rdp", "--noise_multiplier=2"]
    assert main(["privacy", *arguments, "--unit=example"]) == 0
    assert "to add or remove one example" in capsys.readouterr().out
    assert main(["privacy", "--unit=example", "--cohort_size=2", "--num_clients=4", *arguments[1:]]) == 2
    assert "--unit: has no effect with --cohort_size" in capsys.readouterr().err
