"""The part of a command line that all commands share."""

from collections.abc import Sequence


def split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """(the command's own arguments, what `--config.<key>=<value>` sets: {"algorithm.mu": "0.01"})."""
    own, overrides, rest = [], {}, iter(argv)
    for argument in rest:
        key, is_set, text = argument.partition("=")
        if key.startswith("--config."):
            overrides[key.removeprefix("--config.")] = text if is_set else next(rest, "")
        else:
            own.append(argument)
    return own, overrides
