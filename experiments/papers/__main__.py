"""Reproductions: python -m experiments.papers fedld --what=table2 --scale=cpu --data=cxr.npz"""

import importlib
import sys
from collections.abc import Sequence

from experiments.papers import command
from fedjax_het.errors import nearest

PAPERS = {
    "fedld": "tables and figures of FedLD",
    "fedmgc": "tables and figures of FedMGC",
    "fedrd": "tables and figures of FedRD",
    "harmofl": "tables and figures of HarmoFL",
    "fl_simulator": "FL-Simulator's table of CIFAR-10",
    "baselines": "all algorithms on real data with skewed classes",
}


def main(argv: Sequence[str]) -> int:
    """Run the command of a paper, given its name and its arguments, and return the exit status."""
    if not argv or argv[0] not in PAPERS:
        lines = [f"  {name:14}{title}" for name, title in PAPERS.items()]
        print("\n".join(["usage: python -m experiments.papers NAME --help", "", *lines]))
        if argv and argv[0] not in ("--help", "-h"):
            print(f"error: there is no paper '{argv[0]}'. {nearest(argv[0], PAPERS)}", file=sys.stderr)
        return int(argv not in (["--help"], ["-h"])) * 2
    name, *rest = argv
    return command.main(rest, name, importlib.import_module(f"experiments.papers.{name}").EXPERIMENTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
