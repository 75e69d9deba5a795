"""The parts that command lines share: the flag --config, overrides of the config, and the exit status."""

import argparse
import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

from fedjax_het.errors import InputError, NonFiniteError

from .. import PROGRAM
from . import config_files, settings

_P = ParamSpec("_P")


def add_config_flag(parser: argparse.ArgumentParser, **options: Any) -> None:
    about = f"a Python file with get_config(), or an embedded config (`{PROGRAM} list` names them)"
    parser.add_argument("--config", type=config_files.find_config, required=True, help=about, **options)


def make_parser(prog: str, description: str, more: str = "") -> argparse.ArgumentParser:
    """Make the parser of a command that trains runs: its help says what overrides are, followed by `more`."""
    epilog = f"--config.<key>=<value> sets a key in all runs{more}."
    parser = argparse.ArgumentParser(prog=prog, description=description, epilog=epilog, allow_abbrev=False)
    return with_hints(parser)


_Parser = TypeVar("_Parser", bound=argparse.ArgumentParser)


def with_hints(parser: _Parser) -> _Parser:
    """Let the parser's error on an unknown flag name the setting that is meant: --config.rounds for --rounds."""
    fail = parser.error

    def fail_with_hint(message: str) -> NoReturn:
        found = re.search(r"unrecognized arguments:.*?--(\w+)(=\S+)?", message)
        if found and (key := settings.find_setting(found[1])):
            message += f". Did you mean --config.{key}{found[2] or ''}?"
        fail(message)

    parser.error = fail_with_hint
    return parser


def split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return (a command's own arguments, {key: text} of `--config.<key>=<value>`)."""
    own, overrides, rest = [], {}, iter(argv)
    for argument in rest:
        key, is_set, text = argument.partition("=")
        if key.startswith("--config."):
            overrides[key.removeprefix("--config.")] = text if is_set else next(rest, "")
        else:
            own.append(argument)
    return own, overrides


def with_exit_status(when_interrupted: str = "") -> Callable[[Callable[_P, int]], Callable[_P, int]]:
    """Make a decorator of a command that returns its exit status.

    An InputError is printed and gives 2, a NonFiniteError likewise 1; an interrupt prints the given text and gives 130.
    """

    def decorate(main: Callable[_P, int]) -> Callable[_P, int]:
        @functools.wraps(main)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> int:
            try:
                return main(*args, **kwargs)
            except (InputError, NonFiniteError) as error:
                print(f"error: {error}", file=sys.stderr)
                return 2 if isinstance(error, InputError) else 1
            except KeyboardInterrupt:
                print(when_interrupted, end="\n" if when_interrupted else "", file=sys.stderr)
                return 130

        return run

    return decorate
