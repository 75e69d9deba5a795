"""Read, check and distribute the data of a config without training:

python -m experiments.check_data --config=configs/pacs/fedavg.py --config.data.path=data/pacs

Prints what was found by domain, split and class, which client gets how much, and what would be trained on and measured
on. The decoded images stay in the cache,
where a training finds them. Exit status: 0 = a training could start with them, 2 = something to mend, said on stderr.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments import build, data_usage, found, outputs, settings, terminal
from experiments.arguments import apart
from fedjax_het.errors import InputError


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    own, overrides = apart(argv)
    parser = argparse.ArgumentParser(
        prog="python -m experiments.check_data",
        description="Read, check and distribute the data of a config without training.",
        epilog="--config.<key>=<value> sets any key: --config.data.path=data/pacs --config.data.size=64",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, required=True, help="a Python file with get_config()")
    known = parser.parse_args(own)
    found.tell_progress()
    try:
        chosen, notes = settings.complete(settings.load(known.config), overrides)
        for note in notes:
            print(f"note: {note}")
        dataset, federation = build.data(chosen["data"])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found.show(dataset, is_whole=True)
    Console(markup=False).print(found.clients(federation))
    partition = outputs.partition(federation)
    print(terminal.basis(partition, data_usage.measured_groups(partition, False, False)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
