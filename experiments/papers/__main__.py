"""Train a table or figure of a paper: python -m experiments.papers fedld --what=table2 --scale=cpu --data=cxr.npz

`python -m experiments.papers.fedld --what=table2 ...` is the same command.
"""

import sys
from importlib import import_module

from fedjax_het.errors import nearest

from .command import main

PAPERS = ("fedld", "fedmgc", "fedrd", "harmofl")

if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in PAPERS:
        print(f"error: '{name}' is no paper. {nearest(name, PAPERS)}", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[2:], name, import_module(f".{name}", __package__).EXPERIMENTS))
