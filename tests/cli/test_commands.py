"""The console command, the configs that it finds by name, and the processes that commands start."""

import contextlib
import gc
import os
import subprocess
import sys

import pytest

import fedjax_het
from fedjax_het.cli import CONFIGS, train
from fedjax_het.cli import __main__ as console
from fedjax_het.cli.configuration import config_files
from fedjax_het.errors import InputError
from tests.shared import ROOT


@pytest.fixture
def run():
    """Run a command in this process and return its exit status."""

    def run(*arguments):
        try:
            return console.main(arguments)
        except SystemExit as ended:
            return ended.code

    return run


def test_the_version_is_printed(run, capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"fedjax-het {fedjax_het.__version__}\n"


def test_the_usage_names_every_command(run, capsys):
    assert run("--help") == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in console.COMMANDS)
    assert run() == 2 and capsys.readouterr() == ("", out)


@pytest.mark.parametrize("name", console.COMMANDS)
def test_every_command_has_a_help_text_with_its_name(run, name, capsys):
    assert run(name, "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: fedjax-het {name} ")


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """Complete the last word of a command line that bash splits into these words."""
    script = tmp_path_factory.mktemp("completion") / "script"
    with script.open("w") as file, contextlib.redirect_stdout(file):
        assert console.main(["--completion", "bash"]) == 0

    def complete(*words):
        program = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fedjax_het; echo "${COMPREPLY[@]}"'
        command = ["bash", "-uc", program, script, "fedjax-het", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()

    return complete


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        (["tr"], ["train"]),
        (["--v"], ["--version"]),
        (["train", "--work"], ["--workdir"]),
        (["train", "--workdir=run", "--dist"], ["--distributed"]),
        (["train", "--config", "=", "quick"], ["quickstart"]),
        (["train", "--config", "quick"], ["quickstart"]),
        (["train", "--config=quick"], ["--config=quickstart"]),
        (["train", "--workdir", "=", "tr"], []),
        (["report", "ru"], []),
    ],
)
def test_bash_completes(complete, words, choices):
    assert complete(*words) == choices


def test_bash_completes_every_command_and_config(complete):
    assert set(console.COMMANDS) <= set(complete(""))
    assert complete("compare", "--config", "=") == sorted(path.stem for path in CONFIGS.glob("[!_]*.py"))


def test_zsh_reads_the_script_of_bash(run, capsys):
    assert run("--completion=bash") == 0
    script = capsys.readouterr().out
    assert run("--completion=zsh") == 0
    first, rest = capsys.readouterr().out.split("\n", 1)
    assert "bashcompinit" in first and rest == script


@pytest.mark.parametrize("flags", [["--completion"], ["--completion", "fish"], ["--completion=fish"]])
def test_completion_of_another_shell_is_refused(run, flags, capsys):
    assert run(*flags) == 2
    assert "error: --completion: unknown shell" in capsys.readouterr().err


def test_the_exit_status_is_that_of_the_command(run, tmp_path, capsys):
    assert run("export", f"--workdir={tmp_path}", "--to=model.safetensors") == 2
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.parametrize(("asked", "nearest"), [("trian", "train"), ("reprot", "report")])
def test_an_unknown_command_is_refused_with_the_nearest(run, asked, nearest, capsys):
    assert run(asked) == 2
    assert capsys.readouterr().err.startswith(f"error: there is no command '{asked}'. Did you mean '{nearest}'?")


def test_an_embedded_config_is_found_by_its_name_in_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_files.load_config(config_files.find_config("quickstart"))["algorithm"]["name"] == "fedld"
    command = train.parse(["--config=vlcs:fedrd"])
    assert (str(command.workdir), command.config) == ("runs/vlcs-fedrd", (ROOT / "configs" / "vlcs.py", "fedrd"))
    assert config_files.load_config(command.config)["data"]["name"] == "vlcs"
    with pytest.raises(InputError, match=r"no embedded config of that name. Did you mean 'quickstart'\?"):
        config_files.load_config(config_files.find_config("quickstrat"))


def test_a_config_imports_modules_of_its_own_folder_only(tmp_path):
    shared = "def base(rounds):\n    return {'rounds': rounds}\n"
    for folder, rounds in (("a", 3), ("b", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "base.py").write_text(f"{shared}ROUNDS = {rounds}\n")
        (tmp_path / folder / "own.py").write_text(
            "from .base import ROUNDS\n\ndef get_config():\n    from .base import base\n    return base(ROUNDS)\n"
        )
    assert config_files.load_config(tmp_path / "a" / "own.py") == {"rounds": 3}
    assert config_files.load_config(tmp_path / "b" / "own.py") == {"rounds": 5}
    assert not [name for name in sys.modules if name.startswith("_configs_beside")]


@pytest.mark.slow
def test_child_processes_import_this_package_in_any_directory(tmp_path):
    """The process that starts another has the checkout on its path, and not the current directory."""
    (tmp_path / "fedjax_het.py").write_text("raise ImportError('another module of this name')\n")
    program = """
import subprocess, sys
from fedjax_het import cli
sys.exit(subprocess.run(cli.module_command("fedjax_het.errors"), env=cli.module_environment()).returncode)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config=quickstart", "--rounds=5"], "Did you mean --config.rounds=5?"),
        (["--config=quickstart", "--lr=0.1"], "Did you mean --config.algorithm.learning_rate=0.1?"),
        (["--config=quickstart", "--config.lr=0.1"], "Did you mean '--config.algorithm.learning_rate'?"),
        (["--config=quickstart", "--config.lam=0.1"], "Did you mean '--config.algorithm.lam'?"),
        (["--config=quickstrat"], "no embedded config of that name. Did you mean 'quickstart'?\n"),
    ],
)
@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_near_miss_is_answered_with_the_right_name(run, command, flags, message, tmp_path, capsys):
    assert run(command, *flags, f"--workdir={tmp_path}") == 2
    assert message in capsys.readouterr().err


def test_the_process_of_a_command_collects_garbage_rarely(monkeypatch, capsys):
    thresholds, frozen = [], []
    monkeypatch.setattr(sys, "argv", ["fedjax-het", "--version"])
    monkeypatch.setattr(gc, "set_threshold", lambda *values: thresholds.append(values))
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(thresholds)))
    assert console.run() == 0 and fedjax_het.__version__ in capsys.readouterr().out
    assert frozen == [0] and thresholds == [(100_000,)]
