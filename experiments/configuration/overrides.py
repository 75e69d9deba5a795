"""Overrides of config keys, which all commands accept."""

from collections.abc import Sequence


def split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return (the other arguments, {"algorithm.mu": "0.01"} of `--config.<key>=<value>`)."""
    own, overrides, rest = [], {}, iter(argv)
    for argument in rest:
        key, is_set, text = argument.partition("=")
        if key.startswith("--config."):
            overrides[key.removeprefix("--config.")] = text if is_set else next(rest, "")
        else:
            own.append(argument)
    return own, overrides
