"""Read, check and distribute the data of a config without training:

python -m experiments.check_data --config=configs/pacs/fedavg.py --config.data.path=data/pacs

Prints what was found by domain, split and class, which client gets how much, and what would be trained on and measured
on. The decoded images stay in the cache,
where a training finds them. Exit status: 0 = a training could start with them, 2 = something to mend, said on stderr.
"""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from fedjax_het.errors import InputError

from . import PROGRAM
from .configuration import build, settings
from .configuration.overrides import split_overrides
from .runs import data_usage, dataset_table, records
from .training import terminal


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    own, overrides = split_overrides(argv)
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} check-data",
        description="Read, check and distribute the data of a config without training.",
        epilog="--config.<key>=<value> sets any key: --config.data.path=data/pacs --config.data.size=64",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        type=settings.find_config,
        required=True,
        help="a Python file with get_config(), or the name of an embedded config",
    )
    known = parser.parse_args(own)
    dataset_table.print_progress()
    try:
        chosen, notes = settings.complete_settings(settings.load_settings(known.config), overrides)
        for note in notes:
            print(f"note: {note}")
        dataset, federation = build.build_federation(chosen["data"])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    dataset_table.print_dataset(dataset, is_whole=True)
    Console(markup=False).print(dataset_table.client_table(federation))
    partition = records.describe_partition(federation)
    print(terminal.describe_data_usage(partition, data_usage.measured_groups(partition, False, False)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
