"""The command line: fedjax-het COMMAND ..., or in a checkout python -m experiments COMMAND ...

Each command is a module that can also be run directly. Exit status: that of the command,
or 2 for an unknown command.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import fedjax_het
from fedjax_het.cli import collect_garbage_rarely
from fedjax_het.errors import nearest

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "train": ("train", "train from a config, or resume a run"),
        "compare": ("compare", "train a grid of settings and tabulate the results"),
        "study": ("study.__main__", "compare methods, each with its best of equally many trials"),
        "report": ("report.__main__", "write one HTML page that compares runs"),
        "export": ("export", "write a run's model as a PyTorch state dict"),
        "calibrate": ("calibrate", "calibrate the head of a run's model on virtual features (CCVR)"),
        "privacy": ("account_privacy", "compute epsilon from noise, or noise from epsilon, without training"),
        "check-data": ("check_data", "read, check and distribute the data of a config without training"),
        "list": ("list_algorithms", "list the algorithms and the configs, or show all of one algorithm"),
    }
)
"""{command: (its module below this package, its description)}."""


def format_usage() -> str:
    """Format the text for --help: all commands."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:{width}}{words}" for name, (_, words) in COMMANDS.items()]
    head = "usage: fedjax-het COMMAND ... | --version | --completion SHELL"
    return "\n".join([head, "", *lines, "", "COMMAND --help describes its options."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The command and its arguments; those of the process by default.

    Returns:
        The exit status.

    Raises:
        SystemExit: Raised by the command's parser for --help and unknown arguments.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv in (["--help"], ["-h"]):
        print(format_usage())
        return 0
    if argv == ["--version"]:
        print(f"fedjax-het {fedjax_het.__version__}")
        return 0
    if not argv:
        print(format_usage(), file=sys.stderr)
        return 2
    name, *rest = argv
    if name.partition("=")[0] == "--completion":
        from fedjax_het.cli import completion

        return completion.main(" ".join(argv).removeprefix("--completion")[1:], COMMANDS, main)
    if name not in COMMANDS:
        print(f"error: there is no command '{name}'. {nearest(name, COMMANDS)}", file=sys.stderr)
        return 2
    return importlib.import_module(f"fedjax_het.cli.{COMMANDS[name][0]}").main(rest)


def run() -> int:
    """Run the command of this process."""
    collect_garbage_rarely()
    return main()


if __name__ == "__main__":
    sys.exit(run())
