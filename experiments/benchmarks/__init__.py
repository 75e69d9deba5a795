"""Measurements of rounds, aggregators, streaming and scaling."""

import sys
from collections.abc import Callable

from fedjax_het.errors import InputError


def run_to_exit_status(run: Callable[[], int]) -> int:
    """Run a command and return its exit status: its own, 2 after an InputError, which is printed, or 130 if stopped."""
    try:
        return run()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
