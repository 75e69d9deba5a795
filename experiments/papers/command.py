"""The command of all papers: train the missing runs, and write the printed values beside the results."""

import argparse
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError, nearest
from fedjax_het.models import MODELS

from .. import PROGRAM, ROOT
from ..configuration import calls
from ..configuration.command_line import split_overrides, with_exit_status
from ..runs import json_files, plots
from ..runs.results import RunResults
from ..runs.run_directory import run_identity
from ..sweep import grid
from ..sweep.grid import GridRun
from .spec import PRETRAINED, Entry, Experiment, Scale, Settings

Chosen = Mapping[tuple[str, str], tuple[RunResults, str]]
"""{(row, column): (a finished run, the choice that it was trained with)}."""
_MARGIN = 5.0  # per cent below the reference, for which a reason should be given


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
    chosen, entries, text = _write_tables(experiment, scale, common, by_choice, done, failed, stem)
    for result in grid.run_grid(unique, folder):
        if result.is_done:
            done[result.run.name] = RunResults(result.directory)
        else:
            failed[result.run.name] = result.status
        chosen, entries, text = _write_tables(experiment, scale, common, by_choice, done, failed, stem)
    if experiment.draw:
        runs = {place: run for place, (run, _) in chosen.items()}
        plots.write_drawing(stem.with_name(f"{stem.name}.png"), experiment.draw, entries, runs)
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
    text = to_markdown(experiment, scale, entries, common, failed)
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
                is_whole = scale.columns.keys() == experiment.scales["paper"].columns.keys()
                is_compared = scale.is_compared and is_whole
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


def to_markdown(
    experiment: Experiment,
    scale: str,
    entries: Sequence[Entry],
    common: Settings = MappingProxyType({}),
    failed: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Write one table per measure, what was reduced and what failed, and the caveats.

    Args:
        experiment: the table or figure.
        scale: the name of the scale.
        entries: the results.
        common: what the user set.
        failed: {name: error} of the runs that failed.
    """
    parts = [f"# {experiment.title}\n"]
    for measure in experiment.measures:
        of_measure = [entry for entry in entries if entry.measure == measure]
        parts.append(_make_table(measure, experiment, of_measure))
        if experiment.reference:
            parts.append(_list_lower_rows(experiment.reference, of_measure))
    if failed:
        parts.append("Failed:\n\n" + "".join(f"- {name}: {status}\n" for name, status in failed.items()))
    parts.append(_describe_setting(experiment.scales[scale], common))
    if experiment.caveats:
        is_paper = not experiment.scales[scale].reduction
        about = "Caveats" if is_paper else "Caveats of the paper, and the choices made at --scale=paper"
        parts.append(f"{about}:\n\n" + "".join(f"- {caveat}\n" for caveat in experiment.caveats))
    return "\n".join(parts)


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


def _list_lower_rows(reference: str, entries: Sequence[Entry]) -> str:
    """List the rows that are far below the reference in some column."""
    means = {(entry.row, entry.column): entry.mean for entry in entries}
    lower = []
    for (row, column), mean in means.items():
        expected = means[reference, column]
        if mean is not None and expected is not None and expected - mean > _MARGIN:
            lower.append(f"{row} ({column}: {mean - expected:.1f})")
    return f"More than {_MARGIN:g} points below {reference}: {', '.join(lower) or 'none'}.\n"


def _format_entry(entry: Entry) -> dict[str, str]:
    here = "no result" if entry.mean is None else f"{entry.mean:.4g}"
    here += "" if entry.std is None else f" ± {entry.std:.2g}"
    return {
        "paper": ("" if entry.printed is None else f"{entry.printed:g}")
        + ("" if entry.deviation is None else f" ± {entry.deviation:g}"),
        "here": f"{here} ({entry.choice})" if entry.choice else here,
        "difference": "" if entry.difference is None else f"{entry.difference:+.2f}",
    }


def to_csv(entries: Sequence[Entry]) -> str:
    """Write one line per entry, with semicolons between the seeds."""
    header = ("measure", "row", "column", "paper", "paper std", "mean", "std", "difference", "seeds", "choice")
    rows = []
    for entry in entries:
        numbers = (entry.printed, entry.deviation, entry.mean, entry.std, entry.difference)
        rows.append((*entry[:3], *numbers, ";".join(map(str, entry.seeds)), entry.choice))
    return json_files.to_csv(header, rows)
