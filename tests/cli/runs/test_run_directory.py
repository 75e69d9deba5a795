"""Run directories: complete files, one run each, and the refusal of another run with the difference."""

import json

import numpy as np
import pytest

from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.run_directory import RunDirectory, describe_differences
from fedjax_het.errors import InputError
from tests.cli.report import sample_runs

EVERY = {"evaluate_every": 1, "checkpoint_every": 1, "diagnostics": "", "seed": 0, "num_seeds": 1}
TABLES = {"algorithm": {"name": "fedavg"}, "data": {"name": "digits"}}
SETTINGS = {"rounds": 3, "model": {"name": "mlp", "hidden": (4, 4)}, **EVERY, **TABLES}


@pytest.fixture
def directory(tmp_path):
    directory = RunDirectory(tmp_path / "runs" / "x")
    with directory.lock():
        directory.write("config.json", SETTINGS)
        yield directory


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    json_files.write(path, "old")

    def torn(temporary):
        temporary.write_text("ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        json_files.write(path, torn)
    assert path.read_text() == "old"
    json_files.write(path, b"new")
    assert path.read_text() == "new" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_json_has_plain_types_and_no_nan():
    value = {"a": np.float32(0.5), "b": (1, np.arange(2)), "c": float("nan"), 3: np.array([np.inf])}
    assert json.loads(json_files.to_json(value)) == {"a": 0.5, "b": [1, [0, 1]], "c": None, "3": [None]}


def test_checking_a_directory_writes_nothing(tmp_path):
    RunDirectory(tmp_path / "a" / "b").check(SETTINGS)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--workdir: cannot write to .*file"):
        RunDirectory(tmp_path / "file" / "run").check(SETTINGS)


def test_equal_settings_are_accepted_and_others_refused_with_the_difference(directory):
    directory.check(SETTINGS)
    other = SETTINGS | {"rounds": 4, "model": {"name": "mlp", "width": 2.0}}
    with pytest.raises(InputError, match="another config") as raised:
        directory.check(other)
    assert str(raised.value).splitlines()[1:] == [
        "  config.rounds: 3 / 4",
        "  config.model.hidden: [4, 4] / unset",
        "  config.model.width: unset / 2.0",
    ]


def test_more_rounds_are_accepted_and_fewer_refused(directory):
    assert "the run of 3 rounds" in directory.check(SETTINGS | {"rounds": 4}).notes[0]
    with pytest.raises(InputError, match=r"config\.rounds: 3 / 2"):
        directory.check(SETTINGS | {"rounds": 2})


@pytest.mark.parametrize(
    "settings, more, message",
    [
        (
            {"algorithm": {"learning_rate_schedule": {"name": "cosine", "rounds": 3}}},
            {"algorithm": {"learning_rate_schedule": {"name": "cosine", "rounds": 6}}},
            r"set --config\.algorithm\.learning_rate_schedule\.rounds=3\.",
        ),
        ({"asynchronous": {"name": "fedbuff"}}, {}, "the server's history"),
        (
            {"privacy": {"delta": 1e-3, "epsilon": 2.0}, "uplink": [{"noise_multiplier": 1.0}]},
            {},
            r"config\.privacy\.epsilon",
        ),
        ({"diagnostics": "drift", "diagnose_every": 3}, {}, "a multiple of 3"),
    ],
)
def test_more_rounds_are_refused_where_rounds_before_would_have_been_others(directory, settings, more, message):
    directory.write("config.json", SETTINGS | settings)
    with pytest.raises(InputError, match=r"3 rounds in .* cannot continue to round 6.*" + message):
        directory.check(SETTINGS | settings | more | {"rounds": 6})


def test_another_layout_or_tracker_is_accepted(directory):
    directory.write("config.json", SETTINGS | {"layout": "sharded(8)"})
    directory.check(SETTINGS | {"layout": "sharded(2)", "live": "tensorboard"})


def test_values_of_auto_are_compared_as_far_as_the_directory_records_them(directory):
    resolved = SETTINGS | {"data": {"client_test_fraction": 0.2}, "personal_on_test": False}
    directory.write("config.json", resolved)
    open_settings = SETTINGS | {"data": {"client_test_fraction": "auto"}, "personal_on_test": "auto"}
    partition = sample_runs.make_partition([])
    directory.write("partition.json", partition | {"fractions": {"test": 0.0, "client_test": 0.2}})
    directory.check(open_settings)
    common_or_own = ({"test": None, "client_test": 0.2}, {"test": 0.2, "client_test": 0.2})
    for fractions in (*common_or_own, {"test": 0.0, "client_test": None}):
        directory.write("partition.json", partition | {"fractions": fractions})
        with pytest.raises(InputError, match=r"config\.data\.client_test_fraction: 0\.2 / 0\.0"):
            directory.check(open_settings)
    with pytest.raises(InputError, match="personal_on_test: False / True"):
        directory.check(resolved | {"personal_on_test": True})


def test_equal_tables_have_no_differences():
    assert list(describe_differences({"a": {"b": 1}}, {"a": {"b": 1}})) == []


def test_results_without_a_config_are_not_overwritten(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match=r"config\.json: it is gone, but metrics\.jsonl is there"):
        RunDirectory(tmp_path).check(SETTINGS)


def test_an_unreadable_file_is_named_in_the_error(directory):
    (directory / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json: not JSON .*Delete it"):
        directory.check(SETTINGS)


def test_other_data_are_refused(directory):
    directory.check_partition("abc")
    directory.write("partition.json", sample_runs.make_partition([]) | {"fingerprint": "abc"})
    directory.check_partition("abc")
    with pytest.raises(InputError, match="other data: fingerprint abc there, def here"):
        directory.check_partition("def")


def test_a_directory_is_locked_and_leftovers_are_removed(directory):
    with pytest.raises(InputError, match="another process"):
        RunDirectory(directory.path).open()
    directory.close()
    (directory / ".partial.summary.json").write_text("{")
    with RunDirectory(directory.path).lock():
        assert [path.name for path in directory.path.iterdir()] == ["config.json"]
