"""The parts that command lines share: the flag --config, overrides of the config, and the exit status."""

import argparse
import contextlib
import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

from fedjax_het.cli.configuration import config_files, settings
from fedjax_het.errors import InputError, NonFiniteError

_P = ParamSpec("_P")
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))  # in the texts of TensorStore's errors, too


def add_config_flag(parser: argparse.ArgumentParser, **options: Any) -> None:
    about = "a Python file with get_config(), or an embedded config (`fedjax-het list` names them)"
    parser.add_argument("--config", type=config_files.find_config, required=True, help=about, **options)


def make_parser(prog: str, description: str, suffix: str = "") -> argparse.ArgumentParser:
    """Make the parser of a command that trains runs; its help explains overrides, followed by `suffix`."""
    epilog = f"--config.<key>=<value> sets a key in all runs{suffix}."
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

    An InputError or a full disk is printed and gives 2, a NonFiniteError is printed and gives 1; an interrupt prints
    the given text and gives 130.
    """

    def decorate(main: Callable[_P, int]) -> Callable[_P, int]:
        @functools.wraps(main)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> int:
            try:
                with report_full_disk():
                    return main(*args, **kwargs)
            except (InputError, NonFiniteError) as error:
                print(f"error: {error}", file=sys.stderr)
                return 2 if isinstance(error, InputError) else 1
            except KeyboardInterrupt:
                print(when_interrupted, end="\n" if when_interrupted else "", file=sys.stderr)
                return 130

        return run

    return decorate


@contextlib.contextmanager
def report_full_disk(folder: Path | None = None) -> Iterator[None]:
    """Raise as an InputError what a full disk, or a quota that is used up, has caused.

    Args:
        folder: The folder that is written; where errors do not name another, the message names it.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if reason := next((phrase for phrase in _FULL if phrase in str(cause)), None):
                break
            cause = cause.__cause__ or cause.__context__
        else:
            raise
        place = getattr(cause, "filename", None)
        if isinstance(place, str) and not (folder and Path(place).absolute().is_relative_to(folder.absolute())):
            folder = Path(place).absolute().parent
        where = f" of '{folder}'" if folder else ""
        raise InputError(
            f"the disk{where} is full ({reason}). Make room there; the same command then resumes."
        ) from error
