"""Scaling studies, the cost of a round as one size grows:

    python -m experiments.benchmarks.scaling --study=population --out=runs/scaling

Studies: population (all clients, for a fixed cohort, with states on disk and streamed examples), states (the same, with
states in host memory and examples on the device), cohort (for a fixed population), parameters, aggregators (the
number of updates that are edited at once), and models (a model for each client without a server, and several models of
the server; all clients take part). Writes scaling.csv and one plot per study, with the ideal as a line: no
growth in the first two, proportional growth in the others.
Exit status: 0 = done, 1 = a point failed (it is named; the others are written), 2 = an input error.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl.flags import argparse_flags

from fedjax_het.cli import module_command, module_environment
from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.runs import json_files, plots
from fedjax_het.cli.runs.figures import Curve, Panel, View
from fedjax_het.cli.runs.setting_text import select_names

from .scaling_point import Point


class Study(NamedTuple):
    varied: str  # a field of Point
    values: tuple[int, ...]
    algorithms: tuple[str, ...]  # "name option=value ..."
    fixed: Mapping[str, Any]
    is_flat: bool = False  # whether the ideal is no growth instead of proportional growth

    def points(self, largest: int | None) -> list[Point]:
        values = [value for value in self.values if largest is None or value <= largest]
        fields: list[dict[str, Any]] = [
            {**self.fixed, self.varied: value, "algorithm": name} for name in self.algorithms for value in values
        ]
        # The population is the cohort by default.
        return [Point(**{"population": point["cohort"]} | point) for point in fields]


_POWERS_OF_TEN = tuple(10**power for power in range(7))
_OFF_DEVICE = {"client_states": "disk", "examples": "stream"}
STUDIES = {
    "population": Study(
        "population",
        _POWERS_OF_TEN[2:],
        ("fedavg", "scaffold"),
        {"cohort": 100, "parameters": 10_000} | _OFF_DEVICE,
        True,
    ),
    "states": Study(
        "population",
        _POWERS_OF_TEN[3:6],
        ("scaffold",),
        {"cohort": 100, "parameters": 1_000, "client_states": "host"},
        True,
    ),
    "cohort": Study("cohort", _POWERS_OF_TEN[1:5], ("fedavg",), {"population": 10_000, "parameters": 10_000}),
    "parameters": Study("parameters", (*_POWERS_OF_TEN[4:], 10**7), ("fedavg",), {"population": 100, "cohort": 10}),
    "aggregators": Study("cohort", (10, 100, 1000), ("fedavg", "fedld", "fedmgc", "fedgh"), {"parameters": 10_000}),
    "models": Study(
        "cohort",
        _POWERS_OF_TEN[2:5],
        ("fedavg", "dpsgd topology=ring", "dpsgd topology=exponential", "ifca num_models=4"),
        {"parameters": 10_000},
    ),
}


def run_studies(studies: Sequence[str], out: Path, largest: int | None) -> int:
    """Measure all points and return the exit status; the table is written again after every point."""
    records, status = [], 0
    for name in studies:
        for point in STUDIES[name].points(largest):
            print(
                f"{name:12s} {point.algorithm:26s} {STUDIES[name].varied} {getattr(point, STUDIES[name].varied):>9,}",
                end="",
            )
            measured = _measure_in_process(point)
            if measured is None:
                status = 1
                continue
            print(f"  {measured['seconds_median']:9.4f} s per round  {measured['peak_rss_mb']:8.0f} MB", flush=True)
            records.append({"study": name} | measured)
            json_files.write(out / "scaling.csv", json_files.to_csv(records[0], (point.values() for point in records)))
        if study_records := [record for record in records if record["study"] == name]:
            plots.write_drawing(out / f"{name}.png", _draw, STUDIES[name], study_records)
    return status


def _measure_in_process(point: Point) -> dict[str, Any] | None:
    command = module_command("experiments.benchmarks.scaling_point", json.dumps(point._asdict()))
    done = subprocess.run(command, capture_output=True, text=True, env=module_environment())
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"ended by signal {-done.returncode}"])[-1]
        print(f"  failed: {reason}", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def _draw(study: Study, records: Sequence[Mapping[str, Any]]) -> plots.Drawing:
    """Draw seconds per round and peak memory against the varied number: one curve per algorithm, and the ideal.

    The memory is ideally constant. Ideally constant quantities are shown from 0, so that a tenth appears as a tenth.
    """
    panels = []
    for key, label in {"seconds_median": "seconds per round", "peak_rss_mb": "MB"}.items():
        curves = []
        for i, name in enumerate(dict.fromkeys(record["algorithm"] for record in records)):
            own = [record for record in records if record["algorithm"] == name]
            x, y = ([record[column] for record in own] for column in (study.varied, key))
            curves.append(Curve(name, i, x, y))
        is_flat = study.is_flat or key != "seconds_median"
        first, last = (end((record[study.varied], record[key]) for record in records) for end in (min, max))
        ideal = first[1] if is_flat else first[1] * last[0] / first[0]
        curves.append(Curve("ideal", len(curves), [first[0], last[0]], [first[1], ideal]))
        y_range, y_scale = ((0, None), "linear") if is_flat else (None, "log")
        panels.append(Panel("", study.varied, label, curves, y_range, x_scale="log", y_scale=y_scale))
    return plots.draw_view(View("", panels))


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse_flags.ArgumentParser(prog="python -m experiments.benchmarks.scaling", allow_abbrev=False)
    parser.add_argument("--study", default="all", help=f"{', '.join(STUDIES)}, comma-separated, or all")
    parser.add_argument("--out", type=Path, default=Path("runs/scaling"))
    parser.add_argument("--largest", type=int, help="the largest value of the varied size")
    flags = parser.parse_args(list(argv))
    names = select_names("--study", flags.study, STUDIES)
    json_files.check_writable(flags.out, "--out")
    flags.out.mkdir(parents=True, exist_ok=True)
    return run_studies(names, flags.out, flags.largest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
