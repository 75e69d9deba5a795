"""Fixtures of commands: a small config, and compiled programs that runs of equal settings share."""

import pytest

from fedjax_het.cli.configuration import build
from fedjax_het.cli.runs import json_files

FILE = """
def get_config():
    return dict(
        algorithm=dict(name="fedprox", mu=0.01, batch_size=20),
        model=dict(name="mlp", hidden=()),
        data=dict(
            name="digits", num_clients=4, unseen_clients=1, client_test_fraction=0.2, partition=dict(name="iid")
        ),
        rounds=4, cohort_size=2, num_seeds=2, evaluate_every=2, checkpoint_every=3,
    )
"""


@pytest.fixture(scope="module")
def config(request, tmp_path_factory):
    """The config FILE of the test module, by default the one above."""
    path = tmp_path_factory.mktemp("config") / "small.py"
    path.write_text(getattr(request.module, "FILE", FILE))
    return path


@pytest.fixture(scope="module")
def compiled_once():
    """Runs with the same settings share compiled programs."""
    compile, kept = build.build_simulation, {}

    def simulation(parts, runs, folder):
        key = json_files.to_json(runs)
        kept[key] = kept.get(key) or compile(parts, runs, folder)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "build_simulation", simulation)
        yield
