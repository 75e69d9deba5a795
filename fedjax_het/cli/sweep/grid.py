"""Grids of settings: their runs, each in its own directory."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_het.cli.configuration import build, build_data, config_files, settings
from fedjax_het.cli.configuration.config_files import Config
from fedjax_het.cli.runs.run_directory import RunDirectory
from fedjax_het.cli.runs.setting_text import algorithm_title, short_name
from fedjax_het.errors import InputError

UNSEEN = "data.unseen"
SEED = "seed"
_NAME = "algorithm.name"


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


def group_runs(runs: Sequence[GridRun], max_together: int) -> list[list[GridRun]]:
    """Group the runs that have the same `build.common_settings`, at most `max_together` per group."""
    groups: dict[str, list[GridRun]] = {}
    for run in runs:
        common = json.dumps(build.common_settings(run.settings()), sort_keys=True, default=str)
        groups.setdefault(common, []).append(run)
    return [group[i : i + max_together] for group in groups.values() for i in range(0, len(group), max_together)]
