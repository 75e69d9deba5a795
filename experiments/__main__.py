"""The command line: fedjax-het COMMAND ..., or in a checkout python -m experiments COMMAND ...

Each command is a module that can also be run itself, as python -m experiments.train. Exit status: that of the command,
or 2 for an unknown command.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import fedjax_het
from fedjax_het.errors import nearest

from . import PROGRAM

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
        **{
            f"paper {name}": (f"papers.{name}", f"train a table or figure of the {title} paper, and compare")
            for name, title in {"fedld": "FedLD", "fedmgc": "FedMGC", "fedrd": "FedRD", "harmofl": "HarmoFL"}.items()
        },
        "paper fl_simulator": ("papers.fl_simulator", "train FL-Simulator's table of CIFAR-10, and compare"),
        "paper baselines": ("papers.baselines", "train all algorithms on real data with skewed classes, and compare"),
    }
)
"""{command: (its module below this package, its description)}."""


def format_usage(group: str = "") -> str:
    """Format the text for --help of all commands, or of those of a group ("paper")."""
    commands = {name: words for name, (_, words) in COMMANDS.items() if name.startswith(f"{group} " if group else "")}
    width = max(map(len, commands)) + 2
    lines = [f"  {name:{width}}{words}" for name, words in commands.items()]
    head = (
        f"usage: {PROGRAM} {group} NAME ..."
        if group
        else f"usage: {PROGRAM} COMMAND ... | --version | --completion SHELL"
    )
    return "\n".join([head, "", *lines, "", "COMMAND --help describes its options."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The command and its arguments; those of the process by default.

    Returns:
        The exit status.

    Raises:
        SystemExit: From the command's parser, for --help and for arguments that it does not know.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    group = "paper" if argv[:1] == ["paper"] else ""
    rest = argv[len(group.split()) :]
    if rest in (["--help"], ["-h"]):
        print(format_usage(group))
        return 0
    if argv == ["--version"]:
        print(f"fedjax-het {fedjax_het.__version__}")
        return 0
    if argv and argv[0].partition("=")[0] == "--completion":
        from . import completion

        return completion.main(" ".join(argv).removeprefix("--completion")[1:], COMMANDS, main)
    if not rest:
        print(format_usage(group), file=sys.stderr)
        return 2
    name = next((name for name in (" ".join(argv[:2]), argv[0]) if name in COMMANDS), None)
    if name is None:
        command = " ".join(argv[:2]) if argv[0] == "paper" else argv[0]
        print(f"error: there is no command '{command}'. {nearest(command, COMMANDS)}", file=sys.stderr)
        return 2
    module, rest = importlib.import_module(f"{__package__}.{COMMANDS[name][0]}"), argv[len(name.split()) :]
    if name.startswith("paper "):
        from .papers import command

        return command.main(rest, name.removeprefix("paper "), module.EXPERIMENTS)
    return module.main(rest)


if __name__ == "__main__":
    sys.exit(main())
