"""Grids of settings: their runs, each in its own directory, which are trained in subprocesses."""

import itertools
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_het._internal.regular_files import open_regular, read_regular
from fedjax_het.cli import module_command, module_environment
from fedjax_het.cli.configuration import build, build_data, config_files, settings
from fedjax_het.cli.configuration.config_files import Config
from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.run_directory import RunDirectory
from fedjax_het.cli.runs.setting_text import algorithm_title, short_name
from fedjax_het.cli.training import terminal
from fedjax_het.errors import InputError

UNSEEN = "data.unseen"
SEED = "seed"
LOG = "train.log"
MAX_TOGETHER = 8  # runs in one program; their memory adds up
_NAME = "algorithm.name"
_LOG_INTERVAL = 1.0  # seconds between two looks into a run's log
_Show = Callable[[int, str], None]  # of the rounds that a run has done, and its last line


class GridRun(NamedTuple):
    """One run of a grid: its config and the keys that are set in addition."""

    config: Config
    common: Mapping[str, str]  # those of all runs, {"rounds": "20"}
    own: Mapping[str, str]  # those that the grid varies, {"data.unseen": "sketch"}

    @property
    def name(self) -> str:
        """The name of its directory, "fedld,lam=0.1,unseen=sketch"."""
        parts = [f"{short_name(key)}={text}" for key, text in self.own.items()]
        return re.sub(r"[^\w.=,+-]+", "_", ",".join([self.config.name, *parts]))

    @property
    def overrides(self) -> dict[str, str]:
        return {**self.common, **self.own}

    def settings(self) -> settings.Settings:
        return settings.complete_settings(config_files.load_config(self.config), self.overrides)[0]


def make_grid(
    configs: Sequence[Config], common: Mapping[str, str], varied: Mapping[str, Sequence[str]]
) -> list[GridRun]:
    """Combine every config with every combination of the varied values.

    Args:
        configs: the config files.
        common: {key: text} of all runs.
        varied: {key: texts}; "all" for `data.unseen` leaves out each domain of the config's data set in turn.

    Returns:
        The runs, the last key varying fastest.

    Raises:
        InputError: Two runs have the same name, or all domains are to be left out in turn and there is only one.
    """
    runs = []
    for config in configs:
        values = dict(varied)
        if tuple(values.get(UNSEEN, ())) == ("all",):
            values[UNSEEN] = _read_domains(GridRun(config, common, {}))
        runs += [
            GridRun(config, common, dict(zip(values, combination, strict=True)))
            for combination in itertools.product(*values.values())
        ]
    names = [run.name for run in runs]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise InputError(
            f"two runs of the grid have the name '{duplicate}'. Give configs with different file names, and each value "
            "once."
        )
    return runs


def label_runs(runs: Sequence[GridRun]) -> list[str]:
    """Return each run's row in a table: what distinguishes it from others, except the domain left out and the seed.

    Algorithms, and configs that have the name of one, are named as papers print them.
    """
    has_several_configs = len({run.config for run in runs}) > 1

    def label(run: GridRun) -> str:
        varied = [f"{short_name(key)}={text}" for key, text in run.own.items() if key not in (UNSEEN, SEED, _NAME)]
        names = [run.config.name] if has_several_configs or _NAME not in run.own else []
        names += [run.own[_NAME]] if _NAME in run.own else []
        return " ".join([*map(algorithm_title, names), *varied])

    return [label(run) for run in runs]


def _read_domains(run: GridRun) -> tuple[str, ...]:
    dataset = build_data.read_dataset(run.settings()["data"])
    if len(dataset.domain_names) < 2:
        raise InputError(
            f"--vary=data.unseen=all: {dataset.name} has only one domain, so that no training data would be left."
        )
    return dataset.domain_names


def check_runs(runs: Sequence[GridRun], workdir: Path) -> list[str]:
    """Check the settings and the directory of each run; return the names of the complete runs.

    Raises:
        InputError: Settings cannot be read, or a directory holds another run; the message names the run.
    """
    complete = []
    for run in runs:
        try:
            build.check_rules(run_settings := run.settings())
            if RunDirectory(workdir / run.name).check(run_settings).is_complete:
                complete.append(run.name)
        except InputError as error:
            raise InputError(f"{run.name}: {error}") from error
    return complete


# ---- training --------------------------------------------------------------------------------------------------------
class GridResult(NamedTuple):
    """How a run of a grid ended."""

    run: GridRun
    directory: Path
    status: str  # "done", "was done", or the error
    seconds: float  # of its process
    num_others: int = 0  # the other runs of the process

    @property
    def is_done(self) -> bool:
        return self.status in ("done", "was done")

    def to_record(self) -> dict[str, Any]:
        """Make its record in grid.json."""
        run = self.run
        return {"cell": run.name, "config": str(run.config), "set": run.overrides, "status": self.status}


def run_grid(runs: Sequence[GridRun], workdir: Path, max_together: int = MAX_TOGETHER) -> Iterator[GridResult]:
    """Train the runs that are not complete, and print one line per run.

    Each program is a process, so that an error that ends one, such as a lack of memory, does not end the others.

    Args:
        runs: the runs of the grid.
        workdir: the parent of their directories.
        max_together: the number of runs in one program; if it fails, each of them is trained by itself.

    Yields:
        The results, complete runs first.
    """
    for number, result in enumerate(_train_runs(runs, workdir, max_together), 1):
        seconds = f", {result.seconds:.0f} s" if result.seconds else ""
        others = f" together with {result.num_others} more" if result.num_others else ""
        print(f"[{number}/{len(runs)}] {result.run.name}: {result.status}{seconds}{others}", flush=True)
        yield result


def _train_runs(runs: Sequence[GridRun], workdir: Path, max_together: int) -> Iterator[GridResult]:
    incomplete = []
    for run in runs:
        if _is_done(run, workdir):
            yield GridResult(run, workdir / run.name, "was done", 0.0)
        else:
            incomplete.append(run)
    rounds = {run.name: run.settings()["rounds"] for run in incomplete}
    with terminal.show_progress(0, sum(rounds.values()), interval=30) as progress:
        done, show = 0, progress.show
        for group in group_runs(incomplete, max_together):
            start = time.perf_counter()
            if len(group) > 1:
                _train_group(group, workdir, lambda now, text, n=len(group), done=done: show(done + n * now, text))
            seconds = time.perf_counter() - start
            for run in group:
                if _is_done(run, workdir):
                    yield GridResult(run, workdir / run.name, "done", seconds, len(group) - 1)
                else:
                    yield _train_one(run, workdir / run.name, lambda now, text, done=done: show(done + now, text))
                done += rounds[run.name]


def group_runs(runs: Sequence[GridRun], max_together: int) -> list[list[GridRun]]:
    """Group the runs that have the same `build.common_settings`, at most `max_together` per group."""
    groups: dict[str, list[GridRun]] = {}
    for run in runs:
        common = json.dumps(build.common_settings(run.settings()), sort_keys=True, default=str)
        groups.setdefault(common, []).append(run)
    return [group[i : i + max_together] for group in groups.values() for i in range(0, len(group), max_together)]


def _is_done(run: GridRun, workdir: Path) -> bool:
    return RunDirectory(workdir / run.name).check(run.settings(), is_thorough=False).is_complete


def _train_one(run: GridRun, directory: Path, show: _Show) -> GridResult:
    start = time.perf_counter()
    flags = [f"--config={run.config}", f"--workdir={directory}"]
    flags += [f"--config.{key}={text}" for key, text in run.overrides.items()]
    code = _run_module(["fedjax_het.cli.train", *flags], directory / LOG, run.name, show)
    status = "done" if code == 0 else _find_error(directory / LOG, code)
    return GridResult(run, directory, status, time.perf_counter() - start)


def _train_group(runs: Sequence[GridRun], workdir: Path, show: _Show) -> None:
    records = [{"config": str(run.config), "set": run.overrides, "workdir": str(workdir / run.name)} for run in runs]
    folder = workdir / runs[0].name
    folder.mkdir(parents=True, exist_ok=True)
    json_files.write(folder / "together.json", json_files.to_json(records, indent=2) + "\n")
    name = f"{runs[0].name} and {len(runs) - 1} more"
    _run_module(["fedjax_het.cli.sweep.batched", str(folder / "together.json")], folder / LOG, name, show)


def _run_module(command: Sequence[str], log: Path, name: str, show: _Show) -> int:
    """Run a module with its output appended to a file, and show its rounds; return its exit status."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        before, process = log.stat().st_size, module_command(*command)
        with subprocess.Popen(process, stdout=file, stderr=subprocess.STDOUT, env=module_environment()) as running:
            try:
                while True:
                    try:
                        return running.wait(_LOG_INTERVAL)
                    except subprocess.TimeoutExpired:
                        show(*_read_progress(log, before, name))
            except BaseException:
                running.kill()
                raise


def _read_progress(log: Path, start: int, name: str) -> tuple[int, str]:
    """Read (the rounds done, the last line with the name of the run before it) from a log, from a position on."""
    with open_regular(log) as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    rounds = [int(found[1]) for line in lines if (found := re.match(r"round (\d+)/", line))]
    return (rounds or [0])[-1], f"{name}: {next(filter(str.strip, reversed(lines)), 'starting')}"


def _find_error(log: Path, code: int) -> str:
    """Return the exit status and the log's last error line, or its last line if there is none."""
    lines = [line for line in read_regular(log).decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "rror:" in line]
    return f"exit status {code}: {(errors or lines or ['no output'])[-1]}"
