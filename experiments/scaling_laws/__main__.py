"""Scaling laws of client counts, accuracy and cost over clients per round and over the number of clients:

    python -m experiments.scaling_laws --data fashion_mnist.npz cifar10.npz

trains the runs that are missing, and writes for each data set a CSV of the points, one of the laws, and a picture. The
same command resumes. Exit status: 0 = all runs are done; 1 = some failed; 2 = an error of input.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import LogLocator, NullLocator

from fedjax_het.cli.configuration.command_line import make_parser, split_overrides, with_exit_status
from fedjax_het.cli.runs import json_files, plots
from fedjax_het.cli.runs.figures import Curve, Panel, View, mean_curve
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.runs.run_directory import RunDirectory
from fedjax_het.cli.runs.setting_text import select_names
from fedjax_het.cli.sweep import grid
from fedjax_het.cli.sweep.grid import GridRun
from fedjax_het.errors import InputError

from ..tradeoffs import ALGORITHMS
from .laws import fit_laws, list_quantities, select_rows
from .points import DATA_SETS, EXAMPLES_PER_CLIENT, PARTS, Plan, Row, make_places, make_run, read_row


def draw(plan: Plan, targets: Sequence[float], rows: Sequence[Row]) -> Drawing:
    """Draw a row of panels over clients per round, and one over the number of clients; bands from lowest to highest."""
    panels, titles = [], {"cohort": f"{plan.population:,} clients", "population": f"{plan.cohort} clients per round"}
    labels = {"cohort": "clients per round", "population": "clients"}
    for axis, title in titles.items():
        for quantity in (each for each in list_quantities(plan, targets) if axis in each.axes):
            curves: list[Curve] = []
            for color, name in enumerate(ALGORITHMS):
                found = [row for row in select_rows(plan, rows, axis, name) if quantity.read(row)]
                points = sorted((getattr(row.place, axis), list(quantity.read(row))) for row in found)
                if points:
                    x, values = map(list, zip(*points, strict=True))
                    curve = mean_curve(name, color, x, values)
                    curves.append(curve._replace(y=[float(np.median(each)) for each in values]))
            if curves:
                panels.append(
                    Panel(title, labels[axis], quantity.label, curves, None, None, False, (), "log", quantity.y_scale)
                )
    drawing = plots.draw_view(View("", panels), across=2, size=(3.7, 2.4))  # two side by side: legible in a page
    ticks = {labels["cohort"]: plan.cohorts, labels["population"]: plan.populations}
    for axis in drawing.axes:
        if values := list(ticks.get(axis.get_xlabel(), ())):
            axis.set_xticks(values, [f"{value:,}" for value in values])
            axis.set_xticks([], minor=True)
        if axis.get_yscale() == "log":
            low, high = axis.get_ylim()
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 3) if high > 10 * low else (1, 1.5, 2, 3, 5, 7)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_locator(NullLocator())
    return drawing


def write_files(name: str, plan: Plan, rows: Sequence[Row], out: Path) -> None:
    """Write the points, the laws and, once there are points, the picture of a data set."""
    targets = DATA_SETS[name].targets
    header = ["algorithm", "clients", "clients per round"]
    for length in (f"{plan.rounds} rounds", f"{plan.visits} visits"):
        header += [f"accuracy after {length}, %", "seeds"]
    header += [*(f"rounds to {target:g} %" for target in targets), "examples per round", "MB up per round"]
    header += ["seconds per round", "lowest", "highest", "peak MB", "client states", "examples", "accuracy", "cost"]
    lines = []
    for row in rows:
        line: list[object] = list(row.place)
        for seeds in (row.by_rounds, row.by_visits):
            line += [round(float(np.mean(seeds)), 3) if seeds else None, ";".join(map(str, seeds))]
        timed = [f"{end(row.seconds):.4g}" if row.seconds else None for end in (np.median, min, max)]
        sizes = [None if size is None else f"{size:.5g}" for size in (row.up_mb, row.peak_mb)]
        line += [
            *row.targets,
            row.place.cohort * EXAMPLES_PER_CLIENT,
            sizes[0],
            *timed,
            sizes[1],
            *row.where,
            *row.status,
        ]
        lines.append(line)
    json_files.write(out / f"scaling_{name}.csv", json_files.to_csv(header, lines))
    header = ("quantity", "law", "algorithm", "a", "b", "b / a", "largest deviation, %", "points")
    json_files.write(out / f"scaling_{name}_laws.csv", json_files.to_csv(header, fit_laws(plan, targets, rows)))
    if any(row.by_rounds or row.seconds for row in rows):
        drawing = draw(plan, targets, rows)
        json_files.write(out / f"scaling_{name}.svg", lambda file: plots.save(drawing, file, "svg"))


@with_exit_status("stopped; the same command resumes")
def main(argv: Sequence[str], plan: Plan = Plan()) -> int:
    """Run the command; return the exit status."""
    own, common = split_overrides(argv)
    parser = make_parser(
        "python -m experiments.scaling_laws",
        "Show accuracy and cost over clients per round and over the number of clients: train and draw.",
    )
    names = " and ".join(f"{name}.npz" for name in DATA_SETS)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help=f"files of data, named {names}")
    parser.add_argument("--parts", default="all", help=f"{', '.join(PARTS)}, comma-separated, or all: what is trained")
    parser.add_argument("--workdir", type=Path, default=Path("runs/scaling_laws"), help="of the runs")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="of the CSV files and pictures")
    flags = parser.parse_args(own)
    parts = select_names("--parts", flags.parts, PARTS)
    for path in flags.data:
        if path.stem not in DATA_SETS or not path.exists():
            raise InputError(f"--data: '{path}' does not exist or has another name. Give files named {names}.")
    json_files.check_writable(flags.out, "--out")
    places, runs = make_places(plan), {}
    for path in flags.data:
        given = {**DATA_SETS[path.stem].settings, **common, "data.path": str(path.resolve())}
        runs[path.stem] = {
            place: [make_run(plan, place, given, is_cost=is_cost) for is_cost in (False, True)]
            for place in places["costs"]
        }
        grid.check_runs([run for pair in runs[path.stem].values() for run in pair], flags.workdir / path.stem)
    flags.out.mkdir(parents=True, exist_ok=True)
    failed: dict[tuple[str, str], str] = {}
    for part in parts:
        for name, of_data in runs.items():
            wanted = [of_data[place][part == "costs"] for place in places[part]]
            try:
                for result in grid.run_grid(wanted, flags.workdir / name):
                    if not result.is_done:
                        failed[name, result.run.name] = result.status
            finally:  # a command that is stopped shows what is done
                rows = []
                for place, pair in of_data.items():
                    found = [_find_results(run, flags.workdir / name, failed.get((name, run.name))) for run in pair]
                    rows.append(read_row(plan, place, DATA_SETS[name].targets, found))
                write_files(name, plan, rows, flags.out)
    return int(bool(failed))


def _find_results(run: GridRun, workdir: Path, error: str | None) -> RunResults | str:
    """The results of a run that is complete, or why there are none."""
    directory = workdir / run.name
    if RunDirectory(directory).check(run.settings(), is_thorough=False).is_complete:
        return RunResults(directory)
    return error or "not run"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
