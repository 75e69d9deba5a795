"""The command that all papers share: train what is missing, and write what was printed beside what came out."""

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError, nearest
from fedjax_het.models import MODELS

from .. import PROGRAM, ROOT
from ..configuration import calls, overrides
from ..runs import json_files, plots
from ..runs.run_directory import RunDirectory
from ..sweep import grid, run_grid
from ..sweep.grid import GridRun
from . import comparison
from .comparison import Entry
from .spec import PRETRAINED, Experiment, Scale, Settings


def main(argv: Sequence[str], paper: str, experiments: Mapping[str, Experiment]) -> int:
    """The exit status: 0 = all is done, 1 = some runs failed, 2 = something to mend, said before the first."""
    own, common = overrides.split_overrides(argv)
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} paper {paper}",
        description="Train a table or figure of the paper, and compare.",
        epilog="--config.<key>=<value> sets a key in all runs; --config.model.pretrained=FILE, say, where the paper's "
        "own scale asks for it.",
    )
    parser.add_argument("--what", required=True, choices=experiments, help="the table or figure")
    parser.add_argument("--scale", default="cpu", choices=("smoke", "cpu", "paper"), help="how large")
    parser.add_argument("--data", action="append", default=[], metavar="PATH", help="NAME=PATH where several are read")
    parser.add_argument("--workdir", type=Path, default=Path("runs") / "papers" / paper, help="of runs and results")
    known = parser.parse_args(own)
    experiment = experiments[known.what]
    try:
        done, text = run(experiment, known.scale, known.data, common, known.workdir, known.what)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    print(text)
    return int(not done)


def run(
    experiment: Experiment, scale: str, data: Sequence[str], common: Settings, workdir: Path, what: str
) -> tuple[bool, str]:
    """(whether all runs are done, the comparison as Markdown). What is finished is not trained again."""
    if scale not in experiment.scales:
        raise InputError(f"--scale={scale}: '{what}' is there at {', '.join(experiment.scales)}. Take one of these.")
    paths = _paths(experiment.scales[scale].data, data)
    _check_asked(experiment.scales[scale].pretrained, scale, common)
    cell_of_place = experiment.cells(scale, common, paths)
    unique = list({cell.name: cell for cell in cell_of_place.values()}.values())
    folder = home(unique[0], scale, workdir)
    grid.check_runs(unique, folder)
    _check_weights(unique)
    ended = run_grid.run_grid(unique, folder)
    directories = {each.cell.name: RunDirectory(each.directory) for each in ended if each.is_done}
    entries = _read(experiment, experiment.scales[scale], cell_of_place, directories)
    text = comparison.markdown(experiment, scale, entries, common)
    json_files.write(workdir / f"{what}-{scale}.md", text)
    json_files.write(workdir / f"{what}-{scale}.csv", comparison.comma_separated(entries))
    if experiment.draw:
        runs = {place: directories[cell.name] for place, cell in cell_of_place.items() if cell.name in directories}
        with plots.try_drawing(picture := workdir / f"{what}-{scale}.png"):
            json_files.write(picture, lambda path: experiment.draw(entries, runs, path))
    return all(entry.seeds for entry in entries), text


def home(cell: GridRun, scale: str, workdir: Path) -> Path:
    """The folder of all runs with this cell's config and common settings: tables that have both share their runs."""
    shared = json.dumps([str(cell.config.relative_to(ROOT)), dict(cell.common)], sort_keys=True)
    return workdir / f"{scale}-{hashlib.sha256(shared.encode()).hexdigest()[:8]}"


def _check_asked(pretrained: str, scale: str, common: Settings) -> None:
    """Raises InputError where training starts from weights that nobody gave."""
    if pretrained and PRETRAINED not in common:
        raise InputError(
            f"--scale={scale}: training starts from {pretrained}. Give --config.{PRETRAINED}=FILE.safetensors "
            f"(or .npz, PyTorch's state dict), or --config.{PRETRAINED}=none for random weights, which the "
            "result then says."
        )


def _check_weights(unique: Sequence[GridRun]) -> None:
    """Raises InputError for weights that cannot be read or do not fit their network."""
    tables = {json.dumps(table): table for cell in unique if (table := cell.settings()["model"]).get("pretrained")}
    for table in tables.values():
        model = calls.build_from_table(table, MODELS, "config.model", num_classes=2)
        jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32))


def _read(
    experiment: Experiment,
    scale: Scale,
    cell_of_place: Mapping[tuple[str, str], GridRun],
    done: Mapping[str, RunDirectory],
) -> list[Entry]:
    """Every result; beside it what was printed, an average only where it is over the paper's columns."""
    entries = []
    is_whole = scale.columns.keys() == experiment.scales["paper"].columns.keys()
    for name, measure in experiment.measures.items():
        for row in experiment.rows:
            found = []
            for column, cell in ((column, cell) for (of, column), cell in cell_of_place.items() if of == row):
                seeds = measure(done[cell.name], column) if cell.name in done else []
                found.append(_entry(experiment, (name, row, column), seeds, scale.is_compared))
            entries += found
            if experiment.average:
                place = name, row, experiment.average
                entries.append(_entry(experiment, place, _mean(found), scale.is_compared and is_whole))
    return entries


def _entry(experiment: Experiment, place: tuple[str, str, str], seeds: list[float], is_compared: bool) -> Entry:
    """place: its measure, row and column."""
    if not is_compared:
        return Entry(*place, None, seeds)
    return Entry(*place, experiment.value(*place), seeds, experiment.deviation(*place))


def _mean(entries: Sequence[Entry]) -> list[float]:
    """Over columns, seed by seed; empty where one of them failed."""
    seeds = [entry.seeds for entry in entries]
    return [sum(values) / len(values) for values in zip(*seeds, strict=True)] if all(seeds) else []


def _paths(needed: Mapping[str, str], given: Sequence[str]) -> dict[str, str]:
    """{name: path} from --data=PATH, where one is needed, or --data=NAME=PATH for each."""
    if len(needed) == 1 and len(given) == 1 and not given[0].startswith(f"{next(iter(needed))}="):
        paths = {next(iter(needed)): given[0]}
    else:
        paths = dict(each.partition("=")[::2] for each in given)
    for name, words in needed.items():
        if not paths.get(name):
            form = "PATH" if len(needed) == 1 else f"{name}=PATH"
            raise InputError(f"--data: this scale reads {words}. Give --data={form}.")
    if extra := next((name for name in paths if name not in needed), None):
        raise InputError(f"--data={extra}: nothing here reads it. {nearest(extra, needed)}")
    for name, path in paths.items():
        if not Path(path).exists():
            raise InputError(f"--data: '{path}' does not exist. Give the path of {needed[name]}.")
    return paths
