"""The command of all papers: train the missing runs, and write the printed values beside the results."""

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError, nearest
from fedjax_het.models import MODELS

from .. import PROGRAM, ROOT
from ..configuration import calls
from ..configuration.command_line import split_overrides, with_exit_status
from ..runs import data_usage, json_files, plots
from ..runs.results import RunResults
from ..runs.run_directory import run_identity
from ..sweep import grid
from ..sweep.grid import GridRun
from .spec import PRETRAINED, Entry, Experiment, Runs, Scale, Settings


@with_exit_status("stopped; the same command resumes")
def main(argv: Sequence[str], paper: str, experiments: Mapping[str, Experiment]) -> int:
    """Run the command and return the exit status: 0 = all is done, 1 = some runs failed, 2 = an error of input."""
    own, common = split_overrides(argv)
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} paper {paper}",
        description="Train a table or figure of the paper and compare the results with the printed values.",
        epilog="--config.<key>=<value> sets a key in all runs, for example --config.model.pretrained=FILE, where the "
        "paper's own scale requires it.",
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
    paths = _parse_paths(experiment.scales[scale].data, data)
    _check_pretrained(experiment.scales[scale].pretrained, scale, common)
    run_of_place = experiment.make_runs(scale, common, paths)
    unique = list({each.name: each for each in run_of_place.values()}.values())
    folder = runs_folder(unique[0], scale, workdir)
    grid.check_runs(unique, folder)
    _check_weights(unique)
    results = grid.run_grid(unique, folder)
    results = {each.run.name: RunResults(each.directory) for each in results if each.is_done}
    runs = {place: results[each.name] for place, each in run_of_place.items() if each.name in results}
    entries = _read_entries(experiment, experiment.scales[scale], run_of_place, runs)
    text = to_markdown(experiment, scale, entries, common, runs)
    json_files.write(workdir / f"{what}-{scale}.md", text)
    json_files.write(workdir / f"{what}-{scale}.csv", to_csv(entries))
    if experiment.draw:
        plots.write_drawing(workdir / f"{what}-{scale}.png", experiment.draw, entries, runs)
    return all(entry.seeds for entry in entries), text


def runs_folder(run: GridRun, scale: str, workdir: Path) -> Path:
    """Return the folder of all runs with this config and these common settings, which several tables may share."""
    shared = json.dumps([str(run.config.relative_to(ROOT)), dict(run.common)], sort_keys=True)
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
        jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32))


def _parse_paths(needed: Mapping[str, str], given: Sequence[str]) -> dict[str, str]:
    """Parse {name: path} from --data=PATH, if one is needed, or --data=NAME=PATH for each."""
    if len(needed) == 1 and len(given) == 1 and not given[0].startswith(f"{next(iter(needed))}="):
        paths = {next(iter(needed)): given[0]}
    else:
        paths = {name: path for name, _, path in (each.partition("=") for each in given)}
    for name, description in needed.items():
        if not paths.get(name):
            form = "PATH" if len(needed) == 1 else f"{name}=PATH"
            raise InputError(f"--data: this scale reads {description}. Give --data={form}.")
    if extra := next((name for name in paths if name not in needed), None):
        raise InputError(f"--data={extra}: this scale does not read it. {nearest(extra, needed)}")
    for name, path in paths.items():
        if not Path(path).exists():
            raise InputError(f"--data: '{path}' does not exist. Give the path of {needed[name]}.")
    return paths


# ---- results ---------------------------------------------------------------------------------------------------------
def _read_entries(
    experiment: Experiment, scale: Scale, run_of_place: Mapping[tuple[str, str], GridRun], runs: Runs
) -> list[Entry]:
    """Read every result and its printed value; a printed average stands only beside one over the paper's columns."""
    entries = []
    is_whole = scale.columns.keys() == experiment.scales["paper"].columns.keys()
    for name, measure in experiment.measures.items():
        for row in experiment.rows:
            of_row = []
            for place in (place for place in run_of_place if place[0] == row):
                seeds = measure(runs[place], place[1]) if place in runs else []
                of_row.append(_make_entry(experiment, (name, *place), seeds, scale.is_compared))
            entries += of_row
            if experiment.average:
                place = name, row, experiment.average
                is_compared = scale.is_compared and is_whole
                entries.append(_make_entry(experiment, place, _average_columns(of_row), is_compared))
    return entries


def _make_entry(experiment: Experiment, place: tuple[str, str, str], seeds: list[float], is_compared: bool) -> Entry:
    """place: (measure, row, column)."""
    value, deviation = experiment.printed_value(*place) if is_compared else (None, None)
    return Entry(*place, value, seeds, deviation)


def _average_columns(entries: Sequence[Entry]) -> list[float]:
    """Average over columns, seed by seed; empty if one of them failed."""
    seeds = [entry.seeds for entry in entries]
    return [sum(values) / len(values) for values in zip(*seeds, strict=True)] if all(seeds) else []


def to_markdown(
    experiment: Experiment,
    scale: str,
    entries: Sequence[Entry],
    common: Settings = MappingProxyType({}),
    runs: Runs = MappingProxyType({}),
) -> str:
    """Write one table per measure, what the runs are measured on, what was reduced, what the user set (`common`), and
    the caveats."""
    parts = [f"# {experiment.title}\n"]
    for measure in experiment.measures:
        of_measure = [entry for entry in entries if entry.measure == measure]
        parts.append(_make_table(measure, experiment, of_measure))
    parts += [f"{text}\n" for text in [_describe_data(runs)] if text]
    parts.append(_describe_setting(experiment.scales[scale], common))
    if experiment.caveats:
        is_paper = not experiment.scales[scale].reduction
        about = "Caveats" if is_paper else "Caveats of the paper, and the choices made at --scale=paper"
        parts.append(f"{about}:\n\n" + "".join(f"- {caveat}\n" for caveat in experiment.caveats))
    return "\n".join(parts)


def _describe_data(runs: Runs) -> str:
    """Describe the examples that the runs of each column are trained on and measured on."""
    groups = [group.partition("/")[0] for each in runs.values() for group in data_usage.groups_of(each.final)]
    known = [(column, "", each.partition) for (_, column), each in runs.items() if each.partition]
    return data_usage.describe_runs(known, list(dict.fromkeys(groups)))


def _describe_setting(scale: Scale, common: Settings) -> str:
    """Describe the difference of the runs from the published setting."""
    changed = dict(common)
    text = f"Reduced: {scale.reduction}" if scale.reduction else "The published setting"
    if scale.pretrained and calls.parse_text(changed.pop(PRETRAINED, "none"), str | None) is None:
        text += f", but training starts from random weights, not from {scale.pretrained}"
    relevant = [f"{key}={value}" for key, value in run_identity(changed).items() if key != "data.cache"]
    return f"{text}.\n" + (f"\nSet on the command line: {', '.join(relevant)}.\n" if relevant else "")


def _make_table(measure: str, experiment: Experiment, entries: Sequence[Entry]) -> str:
    """Write paper, here and difference under each column; here alone where nothing is printed."""
    columns = list(dict.fromkeys(entry.column for entry in entries))
    is_compared = any(entry.printed is not None for entry in entries)
    kinds = ("paper", "here", "difference") if is_compared else ("here",)
    head = [measure, *(f"{column} {kind}" if is_compared else column for column in columns for kind in kinds)]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for row in experiment.rows:
        cells = {entry.column: entry for entry in entries if entry.row == row}
        texts = [_format_entry(cells[column]) for column in columns]
        lines.append([row, *(each[kind] for each in texts for kind in kinds)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _format_entry(entry: Entry) -> dict[str, str]:
    here = "failed" if entry.mean is None else f"{entry.mean:.4g}"
    return {
        "paper": ("" if entry.printed is None else f"{entry.printed:g}")
        + ("" if entry.deviation is None else f" ± {entry.deviation:g}"),
        "here": here if entry.std is None else f"{here} ± {entry.std:.2g}",
        "difference": "" if entry.difference is None else f"{entry.difference:+.2f}",
    }


def to_csv(entries: Sequence[Entry]) -> str:
    """Write one line per entry, with semicolons between the seeds."""
    header = ("measure", "row", "column", "paper", "paper std", "mean", "std", "difference", "seeds")
    rows = []
    for entry in entries:
        numbers = (entry.printed, entry.deviation, entry.mean, entry.std, entry.difference)
        rows.append((*entry[:3], *numbers, ";".join(map(str, entry.seeds))))
    return json_files.to_csv(header, rows)
