"""Command lines that train, compare, report and measure."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The folder of experiments/ and configs/: the checkout, or fedjax_het/ where it is installed."""

_IN_CHECKOUT = __name__ == "experiments"  # else it is fedjax_het.experiments
PROGRAM = "python -m experiments" if _IN_CHECKOUT else "fedjax-het"
"""How a command line begins; `__main__` has the commands."""


def module_command(name: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The command that runs a module of this package, "train" or "sweep.batched", in another process."""
    return [python, "-m", f"{__name__}.{name}", *arguments]


def module_environment() -> dict[str, str]:
    """The environment for `module_command`: in any directory it imports what this process imported."""
    chosen = dict(os.environ)
    if _IN_CHECKOUT:
        chosen["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if os.getcwd() not in sys.path:
        chosen["PYTHONSAFEPATH"] = "1"  # a folder of our name in the current directory is not ours
    return chosen
