"""Check of the data of a config, which are read and distributed without training:

fedjax-het check-data --config=pacs --config.data.path=data/pacs

Prints the examples by domain, split and class, those of each client by class, and the examples that a run would train
on and be measured on. Decoded images stay in the cache for training. Exit status: 0 = the data can be used, 2 = an
input error, printed on stderr.
"""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from fedjax_het.cli.configuration import build_data, config_files, settings
from fedjax_het.cli.configuration.command_line import add_config_flag, split_overrides, with_exit_status
from fedjax_het.cli.runs import data_usage, dataset_table, records
from fedjax_het.cli.training import terminal


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    own, overrides = split_overrides(argv)
    parser = argparse.ArgumentParser(
        prog="fedjax-het check-data",
        description="Read, check and distribute the data of a config without training.",
        epilog="--config.<key>=<value> sets any key: --config.data.path=data/pacs --config.data.size=64",
        allow_abbrev=False,
    )
    add_config_flag(parser)
    flags = parser.parse_args(own)
    dataset_table.print_progress()
    run_settings, notes = settings.complete_settings(config_files.load_config(flags.config), overrides)
    for note in notes:
        print(f"note: {note}")
    dataset, federation = build_data.build_federation(run_settings["data"])
    dataset_table.print_dataset(dataset, is_whole=True)
    Console(markup=False).print(dataset_table.client_table(federation))
    partition = records.describe_partition(federation)
    print(terminal.describe_data_usage(partition, data_usage.measured_groups(partition, False, False)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
