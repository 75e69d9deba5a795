"""The command of all papers: train the missing runs, and write the printed values beside the results."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from fedjax_het._internal.keys import make_key
from fedjax_het.cli.configuration import calls
from fedjax_het.cli.configuration.command_line import make_parser, split_overrides, with_exit_status
from fedjax_het.cli.runs import json_files, plots
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.sweep import grid
from fedjax_het.cli.sweep.grid import GridRun
from fedjax_het.errors import InputError, nearest
from fedjax_het.models import MODELS

from .spec import PRETRAINED, Entry, Experiment, Scale, Settings
from .tables import to_csv, to_markdown

Chosen = Mapping[tuple[str, str], tuple[RunResults, str]]
"""{(row, column): (a finished run, the choice that it was trained with)}."""


@with_exit_status("stopped; the same command resumes")
def main(argv: Sequence[str], paper: str, experiments: Mapping[str, Experiment]) -> int:
    """Run the command and return the exit status: 0 = all is done, 1 = some runs failed, 2 = an error of input."""
    own, common = split_overrides(argv)
    parser = make_parser(
        f"python -m experiments.papers {paper}",
        "Train a table or figure of the paper and compare the results with the printed values.",
        ", for example --config.model.pretrained=FILE, where the paper's own scale requires it",
    )
    parser.add_argument("--what", required=True, choices=experiments, help="the table or figure")
    parser.add_argument("--scale", default="cpu", choices=("smoke", "cpu", "paper"), help="the size of the experiment")
    parser.add_argument("--data", action="append", default=[], metavar="PATH", help="NAME=PATH where several are read")
    parser.add_argument("--workdir", type=Path, default=Path("runs") / "papers" / paper, help="of runs and results")
    flags = parser.parse_args(own)
    done, text = run(experiments[flags.what], flags.scale, flags.data, common, flags.workdir, flags.what)
    print(text)
    return int(not done)


def run(
    experiment: Experiment, scale: str, data: Sequence[str], common: Settings, workdir: Path, what: str
) -> tuple[bool, str]:
    """Train the runs that are not finished, and write the comparison.

    Args:
        experiment: the table or figure.
        scale: the name of the scale.
        data: the texts of --data.
        common: the user's settings for all runs.
        workdir: the folder of runs and results.
        what: the name of the experiment.

    Returns:
        (whether all runs are done, the comparison as Markdown).

    Raises:
        InputError: The scale, the data or the settings cannot be used.
    """
    if scale not in experiment.scales:
        raise InputError(f"--scale={scale}: '{what}' exists at {', '.join(experiment.scales)}. Choose one of these.")
    paths = parse_paths(experiment.scales[scale].data, data)
    _check_pretrained(experiment.scales[scale].pretrained, scale, common)
    if key := next((key for settings in experiment.choices.values() for key in settings if key in common), None):
        chosen_from = ", ".join(experiment.choices)
        raise InputError(f"--config.{key}: it is chosen for each row, from {chosen_from}. Leave it out.")
    by_choice = {choice: experiment.make_runs(scale, common, paths, choice) for choice in experiment.choices}
    places = next(iter(by_choice.values()))
    unique = list({run.name: run for place in places for runs in by_choice.values() for run in [runs[place]]}.values())
    folder = runs_folder(unique[0], scale, workdir)
    grid.check_runs(unique, folder)
    _check_weights(unique)
    done: dict[str, RunResults] = {}
    failed: dict[str, str] = {}
    workdir.mkdir(parents=True, exist_ok=True)
    stem = workdir / f"{what}-{scale}"
    write = partial(_write_tables, experiment, scale, common, by_choice, done, failed, stem)
    for result in grid.run_grid(unique, folder):
        if result.is_done:
            done[result.run.name] = RunResults(result.directory)
        else:
            failed[result.run.name] = result.status
        write()
    chosen, entries, text = write()
    if experiment.draw:
        runs = {place: run for place, (run, _) in chosen.items()}
        plots.write_drawing(stem.with_name(f"{stem.name}.png"), experiment.draw, entries, runs)
    return all(entry.seeds for entry in entries), text


def runs_folder(run: GridRun, scale: str, workdir: Path) -> Path:
    """Return the folder of all runs with this config and these common settings, which several tables may share."""
    shared = json.dumps([run.config.name, dict(run.common)], sort_keys=True)
    return workdir / f"{scale}-{hashlib.sha256(shared.encode()).hexdigest()[:8]}"


# ---- checks ----------------------------------------------------------------------------------------------------------
def _check_pretrained(pretrained: str, scale: str, common: Settings) -> None:
    if pretrained and PRETRAINED not in common:
        raise InputError(
            f"--scale={scale}: training starts from {pretrained}. Give --config.{PRETRAINED}=FILE.safetensors "
            f"(or .npz, PyTorch's state dict), or --config.{PRETRAINED}=none for random weights, which the "
            "result then says."
        )


def _check_weights(runs: Sequence[GridRun]) -> None:
    """Raise InputError for weights that cannot be read or do not fit their network."""
    tables = {json.dumps(table): table for run in runs if (table := run.settings()["model"]).get("pretrained")}
    for table in tables.values():
        model = calls.build_from_table(table, MODELS, "config.model", num_classes=2)
        jax.eval_shape(model.init, make_key(0), jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32))


def parse_paths(needed: Mapping[str, str], given: Sequence[str]) -> dict[str, str]:
    """Parse {name: path} from --data=PATH, if one is needed, or --data=NAME=PATH for each."""
    if len(needed) == 1 and len(given) == 1 and not given[0].startswith(f"{next(iter(needed))}="):
        paths = {next(iter(needed)): given[0]}
    else:
        paths = {name: path for name, _, path in (each.partition("=") for each in given)}
    for name, description in needed.items():
        if not paths.get(name):
            form = "PATH" if len(needed) == 1 else f"{name}=PATH"
            raise InputError(f"--data: this experiment reads {description}. Give --data={form}.")
    if extra := next((name for name in paths if name not in needed), None):
        raise InputError(f"--data={extra}: this experiment does not read it. {nearest(extra, needed)}")
    for name, path in paths.items():
        if not Path(path).exists():
            raise InputError(f"--data: '{path}' does not exist. Give the path of {needed[name]}.")
    return paths


# ---- results ---------------------------------------------------------------------------------------------------------
def _write_tables(
    experiment: Experiment,
    scale: str,
    common: Settings,
    by_choice: Mapping[str, Mapping[tuple[str, str], GridRun]],
    done: Mapping[str, RunResults],
    failed: Mapping[str, str],
    stem: Path,
) -> tuple[Chosen, list[Entry], str]:
    """Write the tables of the runs so far, so that a command that is stopped leaves those of the finished runs."""
    chosen = _choose_runs(experiment, by_choice, done, failed)
    entries = _read_entries(experiment, experiment.scales[scale], next(iter(by_choice.values())), chosen)
    runs = {place: run for place, (run, _) in chosen.items()}
    text = to_markdown(experiment, scale, entries, common, failed, runs)
    json_files.write(stem.with_name(f"{stem.name}.md"), text)
    json_files.write(stem.with_name(f"{stem.name}.csv"), to_csv(entries))
    return chosen, entries, text


def _choose_runs(
    experiment: Experiment,
    by_choice: Mapping[str, Mapping[tuple[str, str], GridRun]],
    done: Mapping[str, RunResults],
    failed: Mapping[str, str],
) -> Chosen:
    """Choose for each row and column, as soon as the runs of all choices have ended, the one that did best."""
    chosen: dict[tuple[str, str], tuple[RunResults, str]] = {}
    for place in next(iter(by_choice.values())):
        names = {choice: runs[place].name for choice, runs in by_choice.items()}
        candidates = [(done[name], choice) for choice, name in names.items() if name in done]
        if not candidates or not all(name in done or name in failed for name in names.values()):
            continue
        chosen[place] = candidates[0]
        if (measure := experiment.chosen_by) is not None:
            chosen[place] = max(candidates, key=lambda each: _mean(measure(each[0], place[1])))
    return chosen


def _read_entries(
    experiment: Experiment, scale: Scale, places: Iterable[tuple[str, str]], chosen: Chosen
) -> list[Entry]:
    """Read every result and its printed value; a printed average stands only beside one over the paper's columns."""
    entries = []
    for name, measure in experiment.measures.items():
        for row in experiment.rows:
            of_row = []
            for place in (place for place in places if place[0] == row):
                run, choice = chosen.get(place, (None, ""))
                seeds = measure(run, place[1]) if run else []
                of_row.append(_make_entry(experiment, (name, *place), seeds, scale.is_compared, choice))
            entries += of_row
            if experiment.average:
                place = name, row, experiment.average
                paper = experiment.scales.get("paper")
                is_compared = scale.is_compared and paper is not None and scale.columns.keys() == paper.columns.keys()
                entries.append(_make_entry(experiment, place, _average_columns(of_row), is_compared))
    return entries


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _make_entry(
    experiment: Experiment, place: tuple[str, str, str], seeds: list[float], is_compared: bool, choice: str = ""
) -> Entry:
    """place: (measure, row, column)."""
    value, deviation = experiment.printed_value(*place) if is_compared else (None, None)
    return Entry(*place, value, seeds, deviation, choice)


def _average_columns(entries: Sequence[Entry]) -> list[float]:
    """Average over columns, seed by seed; empty if one of them failed."""
    seeds = [entry.seeds for entry in entries]
    return [_mean(values) for values in zip(*seeds, strict=True)] if all(seeds) else []
