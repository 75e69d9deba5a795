"""What a round costs as things grow: python -m experiments.benchmarks.scaling --study=population --out=runs/scaling

Studies: population (clients altogether, a fixed cohort; states on the disk, examples streamed), states (the same, with
states in host memory, examples on the device), cohort (a fixed population), parameters, aggregators (how many updates
are edited at once). Writes scaling.csv and a plot a study, with the line of what would be ideal: no growth in the first
two, growth in proportion in the others.
Exit status: 0 = done, 1 = a point failed (it is named, and the others are there), 2 = a mistake.
"""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl.flags import argparse_flags

from fedjax_het.errors import InputError, nearest

from ..runs import json_files, plots
from .scaling_point import Point


class Study(NamedTuple):
    varied: str  # a field of Point
    values: tuple[int, ...]
    algorithms: tuple[str, ...]
    fixed: Mapping[str, Any]
    is_flat: bool = False  # what would be ideal: no growth at all, instead of growth in proportion

    def points(self, largest: int | None) -> list[Point]:
        values = [value for value in self.values if largest is None or value <= largest]
        vary = lambda name, value: {**self.fixed, self.varied: value, "algorithm": name}  # noqa: E731
        return [_whole(vary(name, value)) for name in self.algorithms for value in values]


def _whole(fields: dict[str, Any]) -> Point:
    """A study of cohorts without a population takes everyone."""
    return Point(**{"population": fields["cohort"]} | fields)


_TENS = tuple(10**power for power in range(7))
_OFF_DEVICE = {"client_states": "disk", "examples": "stream"}
STUDIES = {
    "population": Study(
        "population", _TENS[2:], ("fedavg", "scaffold"), {"cohort": 100, "parameters": 10_000} | _OFF_DEVICE, True
    ),
    "states": Study(
        "population", _TENS[3:6], ("scaffold",), {"cohort": 100, "parameters": 1_000, "client_states": "host"}, True
    ),
    "cohort": Study("cohort", _TENS[1:5], ("fedavg",), {"population": 10_000, "parameters": 10_000}),
    "parameters": Study("parameters", (*_TENS[4:], 10**7), ("fedavg",), {"population": 100, "cohort": 10}),
    "aggregators": Study("cohort", (10, 100, 1000), ("fedavg", "fedld", "fedmgc", "fedgh"), {"parameters": 10_000}),
}


def run(studies: Sequence[str], out: Path, largest: int | None) -> int:
    """The exit status. The table is written anew after every point."""
    records, status = [], 0
    for name in studies:
        for point in STUDIES[name].points(largest):
            print(
                f"{name:12s} {point.algorithm:9s} {STUDIES[name].varied} {getattr(point, STUDIES[name].varied):>9,}",
                end="",
            )
            measured = _measured(point)
            if measured is None:
                status = 1
                continue
            print(f"  {measured['seconds_median']:9.4f} s a round  {measured['peak_rss_mb']:8.0f} MB", flush=True)
            records.append({"study": name} | measured)
            json_files.write(out / "scaling.csv", _as_csv(records))
        if found := [record for record in records if record["study"] == name]:
            _plot(STUDIES[name], found, out / f"{name}.png")
    return status


def _measured(point: Point) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "experiments.benchmarks.scaling_point", json.dumps(point._asdict())]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"ended by signal {-done.returncode}"])[-1]
        print(f"  failed: {why}", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def _as_csv(records: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _plot(study: Study, records: Sequence[Mapping[str, Any]], path: Path) -> None:
    with plots.try_drawing(path):
        json_files.write(path, lambda to: plots.draw_growth(records, study.varied, study.is_flat, to))


def main(argv: Sequence[str]) -> int:
    parser = argparse_flags.ArgumentParser(prog="python -m experiments.benchmarks.scaling", allow_abbrev=False)
    parser.add_argument("--study", default="all", help=f"{', '.join(STUDIES)}, with commas between, or all")
    parser.add_argument("--out", type=Path, default=Path("runs/scaling"))
    parser.add_argument("--largest", type=int, help="leave out points beyond this value of what is varied")
    known = parser.parse_args(list(argv))
    names = list(STUDIES) if known.study == "all" else known.study.split(",")
    for name in names:
        if name not in STUDIES:
            print(f"error: --study: there is no '{name}'. {nearest(name, [*STUDIES, 'all'])}", file=sys.stderr)
            return 2
    try:
        json_files.check_writable(known.out)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    known.out.mkdir(parents=True, exist_ok=True)
    return run(names, known.out, known.largest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
