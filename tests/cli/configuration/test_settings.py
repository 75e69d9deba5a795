"""Complete settings from a config file and the command line."""

from functools import wraps
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

from fedjax_het.algorithms import ALGORITHMS, fedprox
from fedjax_het.cli.configuration import build, config_files, settings
from fedjax_het.cli.runs import setting_text
from fedjax_het.data import SOURCES
from fedjax_het.errors import InputError


def complete(overrides=None, **sections):
    return settings.complete_settings(sections, overrides or {})


def test_a_start_builds_the_algorithm_once(monkeypatch):
    built = []
    count = wraps(ALGORITHMS["fedprox"])(lambda **options: built.append(options) or fedprox(**options))
    monkeypatch.setitem(ALGORITHMS, "fedprox", count)
    chosen, _ = complete(algorithm={"name": "fedprox", "mu": 0.5})
    build.build_parts(chosen)
    assert build.build_sweep([chosen]).build({}) and [options["mu"] for options in built] == [0.5]
    worse = chosen | {"algorithm": chosen["algorithm"] | {"mu": -1.0}}
    with pytest.raises(InputError, match=r"^config\.algorithm\.mu: must be"):
        build.build_sweep([chosen, worse])


def test_numbers_that_a_study_searches_are_arguments_of_the_program():
    chosen, _ = complete(algorithm={"name": "fedprox", "mu": 0.5, "learning_rate": 0.1, "momentum": 0.0})
    assert build.build_sweep([chosen]).values == {"learning_rate": [0.1], "mu": [0.5]}
    heavy = chosen | {"algorithm": chosen["algorithm"] | {"momentum": 0.9}}
    assert sorted(build.build_sweep([chosen, heavy]).values) == ["learning_rate", "momentum", "mu"]


def test_an_empty_config_gives_the_default_of_every_option():
    chosen, notes = complete()
    assert notes == []
    assert chosen["rounds"] == 100 and chosen["algorithm"]["name"] == "fedavg"
    assert chosen["data"]["partition"] == {"name": "iid"} and chosen["data"]["test_fraction"] == 0.2
    assert settings.complete_settings(chosen)[0] == chosen


def test_a_config_starts_from_the_defaults_or_from_nothing():
    assert settings.complete_settings(settings.defaults() | {"rounds": 3}) == settings.complete_settings({"rounds": 3})


@pytest.mark.parametrize("name", config_files.embedded_configs())
def test_every_embedded_config_is_complete_except_its_path(name):
    chosen = config_files.load_config(name)
    needs_path = "path" in signature(SOURCES[chosen["data"]["name"]]).parameters
    if needs_path:
        with pytest.raises(InputError, match=r"config\.data\.path is required.*--config\.data\.path="):
            settings.complete_settings(chosen)
    chosen, notes = settings.complete_settings(chosen, {"data.path": "somewhere"} if needs_path else {})
    assert notes == [] and chosen["rounds"] > 0
    assert chosen["layout"] == "auto"  # a fixed layout does not support several processes, or leaves cores idle


def test_overrides_reach_options_that_the_file_does_not_set():
    chosen, _ = complete(
        {
            "algorithm.learning_rate": "1",
            "num_seeds": "3",
            "data.partition.name": "dirichlet",
            "data.partition.alpha": "0.5",
            "model.hidden": "8,8",
        }
    )
    assert chosen["algorithm"]["learning_rate"] == 1.0 and chosen["num_seeds"] == 3
    assert chosen["data"]["partition"]["alpha"] == 0.5 and chosen["model"]["hidden"] == (8, 8)


def test_the_local_rate_follows_a_schedule_that_the_config_names():
    table = {"name": "fedld", "learning_rate_schedule": {"name": "steps", "milestones": (8,)}}
    chosen, notes = complete({"algorithm.learning_rate_schedule.factor": "0.5"}, algorithm=table)
    assert chosen["algorithm"]["learning_rate_schedule"]["factor"] == 0.5 and not notes
    assert settings.complete_settings(chosen)[0] == chosen
    assert build.build_algorithm(chosen).local_update.num_steps(7) > 0
    assert complete()[0]["algorithm"]["learning_rate_schedule"] == {"name": "constant"}
    late = {"algorithm.learning_rate_schedule.milestones": "9,8"}
    with pytest.raises(InputError, match=r"config\.algorithm\.learning_rate_schedule\.milestones: .*ascending order"):
        build.build_algorithm(complete(late, algorithm=table)[0])


def test_options_that_follow_the_run_take_its_rounds_by_default():
    for overrides, rounds in (({}, 20), ({"rounds": "30"}, 30), ({"algorithm.rounds": "7"}, 7)):
        chosen, notes = settings.complete_settings({"rounds": 20, "algorithm": {"name": "fedga"}}, overrides)
        assert chosen["algorithm"]["rounds"] == rounds and not notes
        assert settings.complete_settings(chosen)[0] == chosen
    cosine = {"algorithm.learning_rate_schedule.name": "cosine"}
    assert complete({**cosine, "rounds": "9"})[0]["algorithm"]["learning_rate_schedule"]["rounds"] == 9
    warm_up = {"algorithm.learning_rate_schedule.name": "warm_up"}
    assert complete({**warm_up, "rounds": "9"})[0]["algorithm"]["learning_rate_schedule"]["rounds"] == 5


def test_a_table_of_the_aggregators_options_is_filled_in_and_can_be_overridden():
    table = {"name": "fedld", "aggregation": {"scope": "tensor"}}
    chosen, _ = complete({"algorithm.aggregation.rounding": "ceil"}, algorithm=table)
    aggregation = chosen["algorithm"]["aggregation"]
    assert aggregation["scope"] == "tensor" and aggregation["rounding"] == "ceil"
    assert aggregation["buffers"] == "weighted_mean"
    build.build_algorithm(chosen)
    assert settings.complete_settings(chosen)[0] == chosen


def test_an_aggregator_takes_the_place_of_the_algorithms_own():
    chosen, _ = complete({"aggregator.name": "krum", "aggregator.before": "clip,nnm", "aggregator.num_attackers": "2"})
    assert chosen["aggregator"] == {
        "name": "krum",
        "num_attackers": 2,
        "neighbours": "paper",
        "before": ("clip", "nnm"),
    }
    assert settings.complete_settings(chosen)[0] == chosen
    assert "aggregator" not in complete()[0]
    own, chosen = (build.build_algorithm(x).aggregator.update for x in (complete()[0], chosen))
    assert own.__module__ != chosen.__module__


def test_examples_are_poisoned_before_the_run_is_built():
    table = {"name": "backdoor", "fraction": 0.2, "target": 3}
    chosen, _ = complete({"poison.size": "2", "layout": "vmapped"}, poison=table)
    assert chosen["poison"] == table | {"size": 2, "share": 0.5}
    plain, poisoned = (build.build_parts(x).federation for x in (complete({"layout": "vmapped"})[0], chosen))
    assert poisoned.unseen["backdoor"].count > 0 and not plain.unseen
    changed = np.flatnonzero(poisoned.examples.labels[: len(plain.examples.labels)] != plain.examples.labels)
    assert len(changed) and np.all(poisoned.examples.labels[changed] == 3)
    with pytest.raises(InputError, match=r"config\.poison: clients: there is no client 99"):
        build.build_parts(complete(poison={"name": "flip_labels", "clients": (99,)}, layout="vmapped")[0])


def test_a_preset_gives_the_options_that_are_not_set():
    table = {"name": "fedld", "weighting": "samples", "aggregation": {"scope": "model"}}
    chosen, _ = complete({"algorithm.preset": "released"}, algorithm=table)
    algorithm = chosen["algorithm"]
    assert algorithm["margin_form"] == "softmax_batch" and algorithm["weighting"] == "samples"
    assert algorithm["aggregation"]["scope"] == "model" and algorithm["aggregation"]["eig_norm"] == "sum_all"
    assert complete(algorithm={"name": "fedld"})[0]["algorithm"]["margin_form"] == "logits_mean"
    assert settings.complete_settings(chosen)[0] == chosen


def test_another_name_drops_the_options_of_the_old_one():
    table = {"name": "fedld", "aggregation": {"scope": "tensor", "rounding": "ceil"}}
    chosen, _ = complete({"algorithm.name": "fedgh"}, algorithm=table)
    assert chosen["algorithm"]["aggregation"]["scope"] == "tensor"
    assert "rounding" not in chosen["algorithm"]["aggregation"]


def test_another_name_drops_the_options_in_the_file_with_a_note():
    algorithm = {"name": "fedld", "lam": 0.5, "learning_rate": 0.2}
    chosen, notes = complete({"algorithm.name": "fedprox", "algorithm.mu": "1"}, algorithm=algorithm)
    assert chosen["algorithm"]["mu"] == 1.0 and chosen["algorithm"]["learning_rate"] == 0.2
    assert notes == ["config.algorithm.lam = 0.5 is an option of fedld, not of fedprox: dropped."]
    with pytest.raises(InputError, match=r"--config\.algorithm\.lam is unknown"):
        complete({"algorithm.name": "fedprox", "algorithm.lam": "1"}, algorithm=algorithm)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rouds": "5"}, r"--config\.rouds is unknown. Did you mean 'rounds'"),
        ({"algoritm.mu": "5"}, r"no table 'algoritm'. Did you mean 'algorithm'"),
        ({"algorithm": "fedprox"}, r"Set --config\.algorithm\.name=fedprox"),
        ({"algorithm.name": "fedproxx"}, r"Did you mean 'fedprox'"),
        ({"algorithm.learning_rate": "fast"}, r"--config\.algorithm\.learning_rate: expected float, got 'fast'"),
        ({"algorithm.name": "fedgh", "algorithm.aggregation.scop": "tensor"}, r"aggregation\.scop is unknown.*'scope'"),
        ({"algorithm.name": "fedgh", "algorithm.aggregation": "tensor"}, r"aggregation is a table of options"),
        ({"algorithm.name": "fedld", "algorithm.preset": "relesed"}, r"preset: unknown option 'relesed'.*'released'"),
        ({"rounds": "0"}, r"config\.rounds: must be a whole number from 1 to 2147483647, not 0"),
        ({"evaluate_every": "0"}, r"config\.evaluate_every: .* from 1 to"),
        ({"diagnose_every": "5"}, r"config\.diagnose_every: has no effect without diagnostics"),
        ({"num_seeds": "0"}, r"config\.num_seeds: .* from 1 to"),
        ({"availability": "1.5"}, r"config\.availability: must be a number in \(0, 1\], not 1.5"),
        ({"on_nonfinite": "ignore"}, r"config\.on_nonfinite: unknown option 'ignore'\. Known: drop, raise"),
        ({"layout": "sharded"}, r"config\.layout: .* Write auto, vmapped"),
        ({"aggregator.name": "krumm"}, r"config\.aggregator\.name is unknown.*'krum'"),
        (
            {"aggregator.name": "krum", "aggregator.before": "nmm"},
            r"--config\.aggregator\.before: expected a list of 'nnm'",
        ),
        ({"data.partition.name": "shards"}, r"config\.data\.partition\.classes_per_client is required"),
    ],
)
def test_mistakes_on_the_command_line_are_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        complete(overrides)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"rouds": 5}, r"config\.rouds is unknown. Did you mean 'rounds'"),
        ({"rounds": 5.0}, r"config\.rounds: expected int, got 5.0"),
        ({"model": "mlp"}, r"config\.model must be a table"),
        ({"uplink": [{"name": ["clip"]}]}, r"config\.uplink\.0\.name is unknown: \['clip'\]"),
        ({"data": {"name": "digits", "partition": {"name": "iid"}}}, r"config\.data\.num_clients is required"),
        ({"data": {"name": "digits", "num_clients": 3}}, r"config\.data\.partition\.name is missing"),
    ],
)
def test_mistakes_in_a_file_are_refused(sections, message):
    with pytest.raises(InputError, match=message):
        complete(**sections)


def test_files_that_are_no_config_are_refused(tmp_path):
    with pytest.raises(InputError, match="no Python file"):
        config_files.load_config(tmp_path / "missing.py")
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(InputError, match=r"defines no get_config\(\)"):
        config_files.load_config(tmp_path / "empty.py")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pacs:fedrdd", r"there is no setting 'fedrdd'. Did you mean 'fedrd'\?"),
        ("quickstart:small", r"called with 'small': too many positional arguments"),
        ("pasc:fedrd", r"no embedded config of that name. Did you mean 'pacs:fedrd'\?"),
    ],
)
def test_unknown_settings_of_a_config_are_refused(name, message):
    with pytest.raises(InputError, match=message):
        config_files.load_config(name)


def test_a_setting_is_the_argument_of_get_config(tmp_path):
    (tmp_path / "own.py").write_text("def get_config(rounds='3'):\n    return {'rounds': int(rounds)}\n")
    assert config_files.load_config(tmp_path / "own.py") == {"rounds": 3}
    assert config_files.load_config(f"{tmp_path}/own.py:5") == {"rounds": 5}
    assert config_files.load_config("pacs:fedrd")["algorithm"]["name"] == "fedrd"
    assert config_files.find_config(r"C:\own.py") == (Path(r"C:\own.py"), "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config():\n    return dict(rounds=2\n", r"line 2: SyntaxError: '\(' was never closed$"),
        ("def helper():\n    return 1 / 0\n\n\nget_config = helper\n", r"line 2: ZeroDivisionError: division by zero$"),
        ("import no_such_module\n", r"line 1: ModuleNotFoundError: No module named 'no_such_module'$"),
        (
            "import json\n\ndef get_config():\n    return json.loads('{')\n",
            r"line 4: JSONDecodeError: .* \(.*json.*line \d+\)$",
        ),
        ("def get_config():\n    raise SystemExit('stop')\n", r"line 2: SystemExit: stop$"),
        ("def get_config(scale):\n    return {}\n", r"called without arguments: missing a required argument: 'scale'"),
        ("def get_config():\n    return [1]\n", r"must return a dict, not \[1\]"),
        ("def get_config():\n    pass\n", r"must return a dict, not None"),
        ("def get_config():\n    return {1: 2}\n", r"keys must be text, and 1 is not"),
        ("get_config = 3\n", r"defines no get_config\(\)"),
        (b"\x89PNG\x00", r"SyntaxError: "),
        (b"\xff\xfe", r"SyntaxError: .*codec can't decode byte 0xff"),
    ],
)
def test_an_error_in_a_config_file_is_reported_with_its_line(tmp_path, text, message):
    path = tmp_path / "own.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=message) as refusal:
        config_files.load_config(path)
    assert str(refusal.value).startswith(f"--config: '{path}'") and "\n" not in str(refusal.value)


def test_a_config_with_an_impossible_name_is_refused():
    with pytest.raises(InputError, match=r"--config: cannot read .*name too long"):
        config_files.load_config(f"{'x' * 300}.py")


@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000, "(" * 5000])
def test_infinite_numbers_are_refused(text):
    with pytest.raises(InputError, match=r"--config\.algorithm\.learning_rate: expected float, got ") as refusal:
        complete({"algorithm.learning_rate": text})
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("text", ["9" * 400 + "GB", "0GB", "8", "99999999999999TB"])
def test_unreadable_amounts_of_memory_are_refused(text):
    with pytest.raises(InputError, match=r"memory_budget: cannot read .* Write a number and KB"):
        setting_text.parse_size("memory_budget", text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("vmapped", ("vmapped", ())),
        ("chunked(4)", ("chunked", (4,))),
        ("sharded(2)", ("sharded", (2,))),
        ("sharded( 2, 4 )", ("sharded", (2, 4))),
    ],
)
def test_layouts_are_parsed(text, parts):
    assert setting_text.parse_layout(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vmaped",
        "vmapped(1)",
        "chunked",
        "chunked()",
        "chunked(0)",
        "chunked(1,2)",
        "sharded(2",
        "sharded(1,0)",
        f"sharded({10**30})",
    ],
)
def test_unreadable_layouts_are_refused(text):
    with pytest.raises(InputError, match="Write auto, vmapped, chunked"):
        setting_text.parse_layout(text)


def test_stages_of_the_uplink_are_tables_in_a_list_whose_options_the_command_line_sets():
    stages = ({"name": "clip", "norm": 1.0}, {"name": "clip", "norm": 0.5})
    chosen, _ = complete({"uplink.1.norm": "0.7"}, uplink=stages)
    assert [stage["norm"] for stage in chosen["uplink"]] == [1.0, 0.7]
    assert settings.complete_settings(chosen)[0] == chosen
    assert len(build.build_algorithm(chosen).uplink) == 2
    assert "uplink" not in complete()[0]  # config.json of runs without an uplink does not change


def test_a_stage_that_is_named_next_is_appended_to_the_uplink():
    added = {"uplink.0.name": "clip", "uplink.0.norm": "0.5", "uplink.1.name": "sign"}
    assert [stage["name"] for stage in complete(added)[0]["uplink"]] == ["clip", "sign"]
    with pytest.raises(InputError, match=r"config\.uplink\.0\.norm is required"):
        complete({"uplink.0.name": "clip"})
    with pytest.raises(InputError, match=r"there is no table 'uplink\.1'"):  # no stage before it
        complete({"uplink.1.name": "clip"})


@pytest.mark.parametrize(
    ("overrides", "stages", "message"),
    [
        ({}, {"name": "clip"}, r"config\.uplink must be a list of tables"),
        ({}, "clip", r"config\.uplink must be a list of tables"),
        ({}, [3], r"config\.uplink\.0 must be a table"),
        ({}, [{"name": "clop"}], r"config\.uplink\.0\.name is unknown: 'clop'. Did you mean 'clip'"),
        ({}, [{"name": "clip"}], r"config\.uplink\.0\.norm is required"),
        ({"uplink.0.nor": "1"}, [{"name": "clip", "norm": 1}], r"--config\.uplink\.0\.nor is unknown. Did you mean"),
        ({"uplink.1.norm": "1"}, [{"name": "clip", "norm": 1}], "there is no table 'uplink.1'"),
        ({"uplink": "clip"}, [{"name": "clip", "norm": 1}], r"Give it in a file; set one: --config\.uplink\.0"),
    ],
)
def test_a_wrong_uplink_is_refused_in_one_line(overrides, stages, message):
    with pytest.raises(InputError, match=message):
        complete(overrides, uplink=stages)


def test_a_stage_refuses_a_value_with_its_place_in_the_config():
    with pytest.raises(InputError, match=r"config\.uplink\.0\.norm: "):
        build.build_algorithm(complete(uplink=[{"name": "clip", "norm": -1.0}])[0])


def test_optional_tables_stand_in_the_settings_only_where_they_are_given():
    assert not {"timing", "participation", "uplink"} & complete()[0].keys()
    chosen, _ = complete({"timing.name": "log_normal", "timing.deadline": "3"})
    assert chosen["timing"]["deadline"] == 3.0 and chosen["timing"]["late"] == "partial"
    assert settings.complete_settings(chosen)[0] == chosen
    chosen, _ = complete({"participation.name": "trace"}, participation={"name": "trace", "path": "days.csv"})
    assert chosen["participation"] == {"name": "trace", "path": "days.csv", "period": None}


@pytest.mark.parametrize(
    ("overrides", "sections", "message"),
    [
        ({"timing.deadline": "3"}, {}, r"config\.timing\.name is missing. Known: from_file, log_normal"),
        ({}, {"timing": 3}, r"config\.timing must be a table"),
        ({}, {"timing": {"name": "log_normal", "late": "wait"}}, r"config\.timing\.late: unknown option 'wait'"),
        ({"participation.name": "trace"}, {}, r"config\.participation\.path is required"),
    ],
)
def test_a_wrong_optional_table_is_refused_in_one_line(overrides, sections, message):
    with pytest.raises(InputError, match=message):
        complete(overrides, **sections)
